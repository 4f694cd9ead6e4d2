"""Pings to workers."""

from __future__ import annotations

import asyncio
from itertools import count

from orch_protocol.core.errors import ErrorInfo, error_from
from orch_protocol.wire.worker_messages import Ping

from ...processes.router import WorkerConnection
from .waiters import expire

__all__ = ["Pings"]

CHECK_SECONDS = 0.5


class Pings:
    """The pings in progress. All pings share one timer, because a timer for each ping would cost more than the ping."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ids = count(1)
        self._pongs: dict[str, tuple[asyncio.Future[None], float]] = {}
        self._check: asyncio.TimerHandle | None = None

    async def ping(self, peer: WorkerConnection, payload: bytes, seconds: float) -> None:
        """Wait at most `seconds` until `peer` answers. Raises TimeoutError."""
        id = str(next(self._ids))
        pong: asyncio.Future[None] = self._loop.create_future()
        if self._check is None:
            self._check = self._loop.call_later(CHECK_SECONDS, self._expire)
        self._pongs[id] = pong, self._loop.time() + seconds
        peer.send("ping", Ping(payload), id, reliable=False)
        try:
            await pong
        finally:
            self._pongs.pop(id, None)

    def on_pong(self, id: str) -> None:
        """Handle the pong to ping `id`."""
        pong, _ = self._pongs.get(id, (None, 0.0))
        if pong is not None and not pong.done():
            pong.set_result(None)

    def close(self, error: ErrorInfo) -> None:
        """Fail every ping with `error`."""
        if self._check is not None:
            self._check.cancel()
        for pong, _ in self._pongs.values():
            if not pong.done():
                pong.set_exception(error_from(error))

    def _expire(self) -> None:
        now = self._loop.time()
        for pong, deadline in self._pongs.values():
            if now >= deadline:
                expire(pong)
        self._check = self._loop.call_later(CHECK_SECONDS, self._expire) if self._pongs else None
