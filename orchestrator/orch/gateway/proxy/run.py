"""The process of `orch proxy`: one for each ORCH_HOME, in the foreground, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, to_builtins

from orch_protocol.core.errors import ConfigError, LockedError
from orch_worker.session.log.lock import FolderLock
from orch_worker.system.atomic_write import atomic_write

from ...client.failure import CommandError
from ...config import paths
from ...config.version import __version__
from ..core import Gateway
from ..store import FileStore
from . import connection
from .access import TOKEN_PREFIX, Access, check_token, is_loopback_host
from .control import RECEIPT, STATUS, STOP, ControlServer
from .server import ProxyServer
from .upstreams import Upstreams

__all__ = ["DEFAULT_PORT", "ProxyOptions", "ProxyStatus", "log_to_stderr", "run"]

DEFAULT_PORT: Final = 6724
GRACE_SECONDS: Final = 10.0
"""How long requests in progress may continue after a signal or `orch proxy stop`."""
LOCK_SECONDS: Final = 15.0
"""How long a new proxy waits for the end of one that is being stopped."""
ATTACH_SECONDS: Final = 60.0
"""How long a proxy that ends with its last attached connection waits for the first one."""
POLL_SECONDS: Final = 0.05
TOKEN_FILE: Final = "token"


class ProxyOptions(Struct, frozen=True):
    """How the proxy runs. `upstreams` are texts NAME=URL. See `orch proxy --help` for the others."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    profile: Any = "balanced"
    upstreams: tuple[str, ...] = ()
    token: str = ""
    until_detached: bool = False


class ProxyStatus(Struct, frozen=True):
    """The running proxy. `base_url` is the address for clients, with the token if there is one."""

    pid: int
    url: str
    base_url: str
    profile: str
    upstreams: dict[str, str]
    requests: int
    attached: int
    version: str
    started_at: str


def run(home: Path, options: ProxyOptions, ready: Callable[[ProxyStatus], None], env: Mapping[str, str]) -> None:
    """Run the proxy of `home` until it is stopped. `ready` is called when it accepts connections.

    Raises ConfigError for an option that cannot be used, LockedError if a proxy is running, and OSError if the port is
    in use.
    """
    check_token(options.token)
    if not options.token and not is_loopback_host(options.host):
        raise ConfigError(
            f"--host {options.host} lets other machines use the proxy: set a token with ORCH_PROXY_TOKEN or --token, "
            "or listen on 127.0.0.1"
        )
    folder = paths.private_dir(paths.gateway_dir(paths.private_dir(home)))
    paths.write_gitignore(home)
    lock = _lock(home, folder)
    try:
        asyncio.run(_Process(folder, options, env).serve(ready))
    finally:
        lock.release()


def _lock(home: Path, folder: Path) -> FolderLock:
    """Lock `folder`. Wait for a proxy that is starting or ending. Raises LockedError if one is running."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return FolderLock.acquire(folder)
        except LockedError:
            status = connection.call(home, STATUS)
            if status is not None:
                raise LockedError(
                    f"a proxy for {home} is already running: {status['url']}, process {status['pid']}. "
                    "Use it, or stop it first: orch proxy stop"
                ) from None
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


class _Process:
    """A proxy and its control socket."""

    def __init__(self, folder: Path, options: ProxyOptions, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._options = options
        is_off = options.profile == "off"
        home = folder.parent
        store = FileStore(paths.conversations_dir(home), None if is_off else options.profile, models=home)
        self._gateway = gateway = Gateway(store, "off" if is_off else "on")
        self._upstreams = Upstreams(options.upstreams)
        self._server = ProxyServer(gateway, self._upstreams, Access(options.token), self._receipt, env)
        self._control = ControlServer(
            folder,
            {STATUS: self._status, STOP: self._stop_requested, RECEIPT: self._server.receipt_of},
            self._last_detached,
        )
        self._url = ""
        self._started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._stop = asyncio.Event()

    async def serve(self, ready: Callable[[ProxyStatus], None]) -> None:
        """Serve until the proxy is stopped, then end in order."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_type)
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._signaled)
        options = self._options
        try:
            port = await self._listen()
            shown = f"[{options.host}]" if ":" in options.host else options.host
            self._url = f"http://{shown}:{port}"
            self._upstreams.check_no_loop(options.host, port)
            self._write_token()
            await self._control.start()
            ready(await self._current())
            if options.until_detached:
                loop.call_later(ATTACH_SECONDS, self._last_detached)
            await self._stop.wait()
        finally:
            self._control.leave()
            await self._server.close(GRACE_SECONDS)
            with contextlib.suppress(FileNotFoundError):
                (self._folder / TOKEN_FILE).unlink()
            self._control.close()

    async def _listen(self) -> int:
        options = self._options
        try:
            return await self._server.start(options.host, options.port)
        except OSError as error:
            raise CommandError(
                "OSError",
                f"cannot listen on {options.host} port {options.port}: {error.strerror or error}. "
                "Choose another one with --port; 0 selects a free port",
            ) from None

    def _write_token(self) -> None:
        """Write the token for programs of this user. A token that a killed proxy left is removed."""
        path = self._folder / TOKEN_FILE
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        if self._options.token:
            with atomic_write(path, sync="none") as file:
                file.write(self._options.token.encode())

    async def _current(self) -> ProxyStatus:
        token = self._options.token
        return ProxyStatus(
            pid=os.getpid(),
            url=self._url,
            base_url=f"{self._url}{TOKEN_PREFIX}{token}" if token else self._url,
            profile=self._options.profile,
            upstreams={name: each.url for name, each in self._upstreams.by_name.items()},
            requests=self._server.requests,
            attached=self._control.attached,
            version=__version__,
            started_at=self._started_at,
        )

    async def _receipt(self) -> Any:
        return to_builtins(await asyncio.to_thread(self._gateway.receipt))

    async def _status(self) -> Any:
        return to_builtins(await self._current())

    async def _stop_requested(self) -> Any:
        self._stop.set()
        return {"pid": os.getpid()}

    def _signaled(self) -> None:
        """End in order at the first signal, and at once at the second."""
        if self._stop.is_set():
            os._exit(1)
        self._stop.set()

    def _last_detached(self) -> None:
        if self._options.until_detached and not self._control.attached:
            self._stop.set()


def _log_type(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log the type of an error that nothing has handled, without its text."""
    error = context.get("exception")
    logging.getLogger("orch.gateway.proxy").error("unhandled error: %s", type(error).__name__ if error else "unknown")


def log_to_stderr() -> None:
    """Write warnings of the gateway to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("orch: %(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger = logging.getLogger("orch.gateway")
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
