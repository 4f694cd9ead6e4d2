"""Connections that leave HTTP, such as WebSocket: their bytes pass unchanged in both directions."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import ClientResponse, StreamReader, hdrs, web
from aiohttp.http import StreamWriter

from .headers import passed_on
from .responses import SwitchingResponse

__all__ = ["UPGRADE", "asks_for_websocket", "tunnel"]

UPGRADE = "websocket"
BUFFER_BYTES = 1 << 16


def asks_for_websocket(request: web.BaseRequest) -> bool:
    """Return whether the client asks to use the connection for a WebSocket."""
    return request.headers.get(hdrs.UPGRADE, "").lower() == UPGRADE


async def tunnel(request: web.BaseRequest, upstream: ClientResponse) -> web.StreamResponse:
    """Pass bytes on in both directions until one side closes. `upstream` is the response with status 101."""
    connection = upstream.connection
    if connection is None or connection.protocol is None:
        raise ConnectionResetError
    loop = asyncio.get_running_loop()
    server: Any = connection.protocol
    client: Any = request.protocol
    response = SwitchingResponse(status=101, reason=upstream.reason, headers=passed_on(upstream.raw_headers))
    response.headers[hdrs.CONNECTION] = "Upgrade"
    response.headers[hdrs.UPGRADE] = upstream.headers.get(hdrs.UPGRADE, UPGRADE)
    response.force_close()
    from_server, from_client = (StreamReader(side, BUFFER_BYTES, loop=loop) for side in (server, client))
    await response.prepare(request)
    client.set_parser(_Received(from_client))
    server.set_parser(_Received(from_server), from_server)
    writer = StreamWriter(server, loop)
    pumps = [
        asyncio.create_task(_pump(from_server, response.write)),
        asyncio.create_task(_pump(from_client, writer.write)),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        upstream.close()
    return response


class _Received:
    """A parser of aiohttp's protocols that gives all bytes to `reader`."""

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self._reader.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        self._reader.feed_eof()


async def _pump(reader: StreamReader, write: Any) -> None:
    while piece := await reader.readany():
        await write(piece)
