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
from typing import Any, ParamSpec, TypeVar, get_args

from orch_protocol.agent.config import ArchivalConfig, Profile
from orch_protocol.core.errors import ConfigError

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
    """Return a gateway whose state is below `folder`. Raises ConfigError for an unknown profile.

    With the profile "off", nothing changes. See `Archiver` for `profile` and `config`, and `Gateway` for `warn`.
    """
    if profile != "off" and profile not in get_args(Profile):
        raise ConfigError(
            f"unknown profile {profile!r} of the gateway: use off, {', '.join(map(str, get_args(Profile)))}"
        )
    given: Any = None if profile == "off" else profile
    store = FileStore(Path(folder).expanduser(), given, config, models=paths.home())
    return Gateway(store, "off" if profile == "off" else "on", warn=warn)


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
