"""Archival for the Claude Agent SDK, through `orch proxy`.

    options = ClaudeAgentOptions(env=environment())

The SDK starts Claude Code, which sends its requests to the proxy. Sessions of Claude Code keep the whole conversation.
The proxy answers recalls, and neither Claude Code nor the program sees them.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from orch_protocol.core.errors import ConfigError, LaunchError

from ..client.failure import CommandError
from ..config import paths
from ..gateway.proxy import connection
from ..gateway.proxy.connection import Attachment
from ..gateway.proxy.upstreams import ANTHROPIC, client_variables, direct_variables

__all__ = ["environment"]

VARIABLE: Final = "ANTHROPIC_BASE_URL"

_attached: dict[Path, Attachment] = {}
_lock: Final = threading.Lock()


def environment(home: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Return the variables for `ClaudeAgentOptions(env=...)` with which Claude Code uses the proxy of `home`.

    `home` is an ORCH_HOME; None is the usual one. If no proxy is running there, one is started; it ends after the last
    program that uses it. A server in the variable ANTHROPIC_BASE_URL stays the server of the requests. Raises
    ConfigError if a running proxy uses another server, and LaunchError if the proxy cannot be used.
    """
    folder = paths.home() if home is None else Path(home).expanduser().absolute()
    with _lock:
        attached = _attach(folder)
    return {VARIABLE: client_variables(attached.base_url)[VARIABLE]} | direct_variables(os.environ)


def _attach(home: Path) -> Attachment:
    """Attach to the proxy of `home`, until the end of this program."""
    given = os.environ.get(VARIABLE, "").rstrip("/")
    try:
        running = connection.call(home, "status")
        if running is None or given.startswith(running["url"]):
            given = given if running is None else ""
        attached = connection.start(home, [f"--upstream={ANTHROPIC}={given}"] if given else [])
    except CommandError as error:
        raise LaunchError(f"the proxy of {home} cannot be used: {error}") from None
    used = attached.status["upstreams"][ANTHROPIC]
    if given and used != given:
        attached.close()
        raise ConfigError(
            f"{VARIABLE} is {given}, and the running proxy of {home} sends requests to {used}: end it with "
            f"`orch proxy stop`, or unset the variable"
        )
    if (earlier := _attached.pop(home, None)) is not None:
        earlier.close()
    _attached[home] = attached
    return attached
