"""The gateway of a folder, and the thread in which it works.

All work happens in one thread, so that a client can be used from several threads, and folding a long conversation does
not block an event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, ParamSpec, TypeVar, get_args

from orch_protocol.agent.config import ArchivalConfig, Profile
from orch_protocol.core.errors import ConfigError
from orch_worker.session.log.lock import private_folder
from orch_worker.system.files import io_error

from ..config import paths
from .core import Exchange, Gateway
from .store import FileStore

__all__ = ["CoreThread", "open_gateway"]

P = ParamSpec("P")
T = TypeVar("T")


def open_gateway(
    folder: str | os.PathLike[str],
    profile: str,
    config: ArchivalConfig | None,
    warn: Callable[[str], None] | None,
) -> Gateway:
    """Return a gateway whose state is below `folder`, which is created if it does not exist.

    Raises ConfigError for an unknown profile and for a file, and StoreError if the folder cannot be written. With the
    profile "off", nothing changes. See `Archiver` for `profile` and `config`, and `Gateway` for `warn`.
    """
    if profile != "off" and profile not in get_args(Profile):
        raise ConfigError(
            f"unknown profile {profile!r} of the gateway: use off, {', '.join(map(str, get_args(Profile)))}"
        )
    given: Any = None if profile == "off" else profile
    path = Path(folder).expanduser()
    _check_writable(path)
    store = FileStore(path, given, config, models=paths.home())
    return Gateway(store, "off" if profile == "off" else "on", warn=warn)


def _check_writable(folder: Path) -> None:
    """Create `folder`. Requests pass unchanged if their state cannot be stored, so the folder is checked before."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder: pass a new or existing folder for the state of conversations")
    private_folder(folder)
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise io_error("write to", folder, error) from error


class CoreThread:
    """The thread in which `gateway` works. It starts with the first request."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._executor = ThreadPoolExecutor(1, "orch-gateway")

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function and return its result."""
        return self._executor.submit(function, *args, **kwargs).result()

    async def run_async(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function and return its result. If the caller is canceled, a call that has begun continues."""
        return await asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))

    def leave(self, exchange: Exchange) -> None:
        """Close an exchange without waiting."""
        with suppress(RuntimeError):  # A stream can be closed after its client.
            self._executor.submit(exchange.close)

    def submit(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function after all earlier calls, whether or not the caller waits."""
        self._executor.submit(function, *args, **kwargs)

    def close(self) -> None:
        """Close the files of the gateway after all earlier calls."""
        self._executor.submit(self.gateway.close).result()
        self._executor.shutdown()
