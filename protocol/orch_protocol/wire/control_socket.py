"""Lines of the control socket: requests, responses and notices."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

__all__ = ["ALREADY_RUNNING", "ControlNotice", "ControlRequest", "ControlResponse"]

ALREADY_RUNNING: Final = 3
"""Exit status of a daemon if another daemon is already running in the same ORCH_HOME."""


class ControlRequest(Struct, frozen=True, omit_defaults=True):
    """A request of a client. `credentials` are the environment variables with API keys in the client's shell.

    `run` is the name of another run of the same home, whose files the daemon reads; "" for the daemon's own run.
    """

    id: int
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    version: int = 1
    credentials: dict[str, str] = {}
    run: str = ""

    def __repr__(self) -> str:
        return f"Request(id={self.id}, method={self.method!r})"


class ControlResponse(Struct, frozen=True, omit_defaults=True):
    """A line sent to a client: an `event` of a running request, or the last line of the request.

    The last line has exactly one of `result` and `error`.
    """

    id: int
    result: Any = None
    event: Any = None
    error: dict[str, str] | None = None


class ControlNotice(Struct, frozen=True):
    """An event with a message for people, which a client prints on stderr."""

    notice: str
