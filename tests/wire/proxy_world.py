"""The proxy in a thread before a strict model server, and clients that use it over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from orch.gateway.core import Gateway
from orch.gateway.proxy.access import Access
from orch.gateway.proxy.server import ProxyServer
from orch.gateway.proxy.upstreams import Upstreams
from orchestrator.gateway.gateway_world import Client, World
from wire.model_server import Answer
from wire.model_server_beside import Apart

__all__ = ["ProxyBeside", "ProxyWorld", "post"]

SECONDS = 60


class ProxyBeside:
    """A ProxyServer in a thread. Start it with `with`. `port` is its port."""

    def __init__(self, gateway: Gateway, url: str) -> None:
        self._gateway = gateway
        self._url = url
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="proxy", daemon=True)

    @property
    def url(self) -> str:
        """The address of the proxy."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ProxyBeside:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        upstreams = Upstreams([f"anthropic={self._url}", f"openai={self._url}"])
        server = ProxyServer(self._gateway, upstreams, Access(), _no_stats, {})
        self.port = await server.start("127.0.0.1", 0)
        self._ready.set()
        await self._stop.wait()
        await server.close(0.0)


async def _no_stats() -> Any:
    return {}


def post(port: int, client: Client, *, stream: bool = True) -> bytes:
    """Send the next request of `client` and return the response. Raises OSError or HTTPException if it breaks off."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("POST", client.path, client.body(stream=stream), client.headers)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    assert response.status == 200, body
    return body


class ProxyWorld(World):
    """A proxy before a strict model server. Start it with `with`."""

    def __init__(self, folder: Path, answer: Callable[[Any], Answer], **options: Any) -> None:
        self.apart = Apart(lambda request: answer(request.body))
        super().__init__(folder, answer, **options)

    def __enter__(self) -> ProxyWorld:
        self.apart.__enter__()
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.proxy.__exit__(kind, error, traceback)
        self.apart.__exit__()

    def restart(self) -> None:
        """End the proxy and start another one over the same folder."""
        self.proxy.__exit__(None, None, None)
        self.gateway = self._open()
        self._start()

    def send(self, client: Client, *, stream: bool = True) -> list[str]:
        body = post(self.proxy.port, client, stream=stream)
        self.sent += [request.raw for request in self.apart.server.requests[len(self.sent) :]]
        return client.read_stream(body) if stream else client.read_body(json.loads(body))

    def _start(self) -> None:
        self.proxy = ProxyBeside(self.gateway, self.apart.server.url).__enter__()
