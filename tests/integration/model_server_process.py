"""A strict model server for commands that run in other processes."""

from __future__ import annotations

import asyncio
import threading
import time

from integration.command_shell import SECONDS
from wire.model_server import ModelServer

__all__ = ["Served"]

PAUSE = 0.05


class Served:
    """A strict model server in a thread."""

    def __init__(self) -> None:
        self.server = ModelServer()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.__aenter__(), self._loop).result(SECONDS)

    def until_asked(self, requests: int) -> None:
        """Return when the server has received `requests` requests in all."""
        deadline = time.monotonic() + SECONDS
        while len(self.server.requests) < requests:
            assert time.monotonic() < deadline, f"{len(self.server.requests)} requests of {requests} arrived"
            time.sleep(PAUSE)

    def open(self, gate: asyncio.Event) -> None:
        """Set the event `gate`, so that the waiting answer is sent."""
        self._loop.call_soon_threadsafe(gate.set)

    def close(self) -> None:
        """End the server."""
        asyncio.run_coroutine_threadsafe(self.server.__aexit__(), self._loop).result(SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    def env(self) -> dict[str, str]:
        """Return the variables with the address of the server."""
        return {
            "ANTHROPIC_API_KEY": "k1",
            "ANTHROPIC_BASE_URL": self.server.url,
            "OPENAI_API_KEY": "k2",
            "OPENAI_BASE_URL": f"{self.server.url}/v1",
        }
