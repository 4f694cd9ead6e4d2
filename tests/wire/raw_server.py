"""A server that answers with given bytes, and a client that sends and receives bytes."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

__all__ = ["RawRequest", "RawServer", "events", "exchange", "headers_of", "reset", "response"]

SECONDS = 20


class RawRequest(Struct):
    """A request as it arrived."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        """Return the values of a header."""
        return [value for each, value in self.headers if each.lower() == name.lower()]


Answer = Callable[[RawRequest, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """A server. `answer` writes the response to a request; then the connection is closed."""

    def __init__(self) -> None:
        self.requests: list[RawRequest] = []
        self.answer: Answer | bytes = response(b"{}")
        self.arrived = asyncio.Event()
        self.left = asyncio.Event()
        """Set when a client closes its connection before the end of the response."""

    @property
    def url(self) -> str:
        """The address of the server."""
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = [(name, value.strip()) for name, _, value in (field.partition(":") for field in fields if field)]
            request = RawRequest(line, headers, b"")
            request.body = await _body(reader, request)
            self.requests.append(request)
            self.arrived.set()
            answering = asyncio.ensure_future(self._answer(request, writer))
            leaving = asyncio.ensure_future(reader.read(1))
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.left.set()
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()

    async def _answer(self, request: RawRequest, writer: asyncio.StreamWriter) -> None:
        if isinstance(self.answer, bytes):
            writer.write(self.answer)
            await writer.drain()
        else:
            await self.answer(request, writer)


async def _body(reader: asyncio.StreamReader, request: RawRequest) -> bytes:
    if request.header("transfer-encoding") == ["chunked"]:
        pieces = []
        while size := int(await reader.readline(), 16):
            pieces.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(pieces)
    return await reader.readexactly(int((request.header("content-length") or ["0"])[0]))


def response(body: bytes, status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    """Return the bytes of a response, which has only the given headers and its length."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def events(*pieces: bytes, headers: tuple[str, ...] = (), end: bool = True) -> bytes:
    """Return the bytes of a chunked stream of events."""
    head = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked", *headers, "", ""]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return "\r\n".join(head).encode() + chunks + b"0\r\n\r\n" * end


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset."""
    line: socket.socket = writer.get_extra_info("socket")
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def request_bytes(line: str, *headers: str, body: bytes = b"", host: str = "127.0.0.1") -> bytes:
    """Return the bytes of a request, after whose response the connection is closed."""
    fields = [f"{line} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    length = [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([*fields, *length, "", ""]).encode() + body


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        yield reader, writer
    finally:
        writer.close()


async def exchange(port: int, line: str, *headers: str, **options: Any) -> tuple[str, list[tuple[str, str]], bytes]:
    """Send one request. Return the status line, the headers and the bytes of the body, with its chunks."""
    async with connected(port) as (reader, writer):
        writer.write(request_bytes(line, *headers, **options))
        async with asyncio.timeout(SECONDS):
            received = await reader.read()
    head, _, body = received.partition(b"\r\n\r\n")
    status, *fields = head.decode("latin-1").split("\r\n")
    return status, headers_of(fields), body


def headers_of(fields: list[str]) -> list[tuple[str, str]]:
    """Return the headers in the lines of a head, in order."""
    return [(name, value.strip()) for name, _, value in (field.partition(":") for field in fields)]
