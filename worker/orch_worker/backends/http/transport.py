"""The HTTP client under the SDKs: TLS context, deadlines, size limits and redirects of a response."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, Literal, TypeVar

import httpx2
from msgspec import Struct

from ..models import CONTENT_SECONDS
from ..registry import is_loopback

__all__ = [
    "CrossOriginRedirectError",
    "Deadlines",
    "ResponseLimits",
    "ResponseTooLargeError",
    "ResponseWatch",
    "cause",
    "client_options",
    "ssl_context",
    "timeout",
    "trouble",
]

T = TypeVar("T", bound=BaseException)

SEND_SECONDS: Final = 60.0
LAST_SECONDS: Final = 2.0
DECODE_BYTES: Final = 1 << 16
"""Compressed bodies are decoded in pieces of at most this size."""
EVENT_ENDS: Final = (b"\n\n", b"\n\r\n", b"\r\r")
ENCODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})


class Deadlines(Struct, frozen=True):
    """How long a provider may be silent, in seconds.

    `connect`: until it is connected. `first`: until its first byte. `idle`: between bytes, of keep-alive messages too.
    `content`: without an event that adds to the answer. `thinking`: between bytes before the first content, 0 for
    `idle`; some providers send nothing while a model reasons.
    """

    connect: float = 10.0
    first: float = 120.0
    idle: float = 60.0
    content: float = CONTENT_SECONDS
    thinking: float = 0.0


class ResponseLimits(Struct, frozen=True):
    """How much one response may be, in decoded bytes: as a whole, and one server-sent event."""

    response: int = 32 << 20
    event: int = 16 << 20


class ResponseTooLargeError(Exception):
    """A response exceeds its `ResponseLimits`."""


class CrossOriginRedirectError(Exception):
    """A server redirects to another origin."""


@cache
def ssl_context() -> ssl.SSLContext:
    """Return the one context that verifies providers' certificates, made by the SDKs' own rules."""
    return httpx2.create_ssl_context()


def timeout(deadlines: Deadlines) -> httpx2.Timeout:
    """Return the client's own limits. `ResponseWatch` sets the read timeout, which changes after the first byte."""
    return httpx2.Timeout(connect=deadlines.connect, read=None, write=SEND_SECONDS, pool=deadlines.connect)


def cause(error: BaseException | None, kind: type[T]) -> T | None:
    """Return the first exception of type `kind` among `error` and its causes; SDKs wrap what their client raises."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error


def trouble(error: BaseException | None) -> tuple[Literal["silent", "refused", "lost"], BaseException] | None:
    """Return what became of a connection, and the exception that tells; None if `error` is about something else."""
    while error is not None:
        if isinstance(error, httpx2.TimeoutException):
            return "silent", error
        if isinstance(error, httpx2.ConnectError):
            return "refused", error
        if isinstance(error, httpx2.TransportError):
            return "lost", error
        error = error.__cause__
    return None


class ResponseWatch:
    """Watches one response: its deadlines, its size and its redirects.

    `sent` is true once anything of the request may have left, `begun` once a response with status 200 began.
    `content_missing` is true when a response was given up although bytes kept arriving.
    """

    def __init__(self, deadlines: Deadlines, limits: ResponseLimits = ResponseLimits()) -> None:  # noqa: B008 - immutable
        self.sent = False
        self.begun = False
        self._connected: Any = None
        self._deadlines = deadlines
        self._limits = limits
        self._seconds = deadlines.thinking or deadlines.idle
        self._watch = asyncio.timeout(deadlines.first)
        self._content_by = float("inf")
        self._bytes_by = float("inf")
        self._received = 0
        self._event = 0
        self._tail = b""

    @property
    def content_missing(self) -> bool:
        """Whether the deadline that passed is the one for content."""
        return self._content_by < self._bytes_by

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Watch the request that the block makes. Raises TimeoutError when a deadline passes. Use once."""
        async with self._watch:
            _listening.set(self)
            self._bytes_by = self._now() + self._deadlines.first
            self._content_by = self._now() + self._deadlines.content
            try:
                yield
            finally:
                # Cancelled between that and a connection of its own, the client would leave it open.
                if self._connected is not None and not self.sent:
                    await self._connected.aclose()

    def on(self, response: httpx2.Response) -> None:
        """Watch the unread body of `response`. Raises CrossOriginRedirectError for a redirect to another origin."""
        if response.has_redirect_location:
            origin, target = response.request.url, response.request.url.join(response.headers["location"])
            if _origin(origin) != _origin(target):
                raise CrossOriginRedirectError(f"{_origin(origin)} redirects to {_origin(target)}")
        self.begun = response.status_code == 200
        encoding = response.headers.pop("content-encoding", "identity").strip().lower()
        response.stream = _BoundedBody(response.stream, self, encoding)

    def hear(self) -> None:
        """Note that bytes arrived."""
        self._bytes_by = self._now() + self._seconds
        self._reschedule()

    def content(self) -> None:
        """Note that the answer grew."""
        self._seconds = self._deadlines.idle
        self._content_by = self._now() + self._deadlines.content
        self.hear()

    def take(self, decoded: bytes) -> None:
        """Count decoded bytes. Raises ResponseTooLargeError."""
        self._received += len(decoded)
        if self._received > self._limits.response:
            raise ResponseTooLargeError(f"a response of more than {self._limits.response:,} bytes")
        window = self._tail + decoded
        end = max(window.rfind(mark) for mark in EVENT_ENDS)
        self._event = self._event + len(decoded) if end < 0 else len(window) - end
        self._tail = window[-2:]
        if self._event > self._limits.event:
            raise ResponseTooLargeError(f"a server-sent event of more than {self._limits.event:,} bytes")

    def last(self) -> None:
        """Note that the answer is complete: the stream has a moment left to end, which keeps its connection."""
        self._seconds = min(self._seconds, LAST_SECONDS)
        self.hear()

    async def follow(self, step: str, info: dict[str, Any]) -> None:
        """Note that the client reached `step` of the request."""
        if step == "connection.connect_tcp.complete":
            self._connected = info["return_value"]
        elif step.endswith(".send_request_headers.started"):
            self.sent = True

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _reschedule(self) -> None:
        if not self._watch.expired():
            self._watch.reschedule(min(self._bytes_by, self._content_by))


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"


_listening: ContextVar[ResponseWatch] = ContextVar("listening")


async def _begun(request: httpx2.Request) -> None:
    request.extensions = {**request.extensions, "trace": _listening.get().follow}
    request.headers["accept-encoding"] = "gzip"  # what `_BoundedBody` decodes


async def _answered(response: httpx2.Response) -> None:
    _listening.get().on(response)


def client_options(base_url: str) -> dict[str, Any]:
    """Return the client for the server at `base_url`; the `ResponseWatch` is told when requests are sent.

    Proxies of the environment are not for servers of this machine: what stays here does not go through one elsewhere.
    """
    direct = dict.fromkeys(("all://", "http://", "https://")) if is_loopback(base_url) else {}
    return {"verify": ssl_context(), "event_hooks": {"request": [_begun], "response": [_answered]}, "mounts": direct}


class _BoundedBody(httpx2.AsyncByteStream):
    """The decoded bytes of a response, as they arrive, in bounded pieces. Raises ResponseTooLargeError, ValueError."""

    def __init__(self, stream: Any, ear: ResponseWatch, encoding: str) -> None:
        self._stream = stream
        self._ear = ear
        self._encoding = encoding
        self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32) if encoding in ENCODINGS else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # an SDK looks here for what it hung on to its own stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._decoder is None and self._encoding not in ("", "identity"):
            raise ValueError(f"content-encoding {self._encoding!r} is not supported")
        async for chunk in self._stream:
            self._ear.hear()
            for piece in self._decoded(chunk):
                self._ear.take(piece)
                yield piece

    def _decoded(self, chunk: bytes) -> Iterator[bytes]:
        if self._decoder is None:
            yield chunk
            return
        if self._decoder.eof:
            return  # the decoder would keep what follows in memory
        try:
            while piece := self._decoder.decompress(chunk, DECODE_BYTES):
                yield piece
                chunk = self._decoder.unconsumed_tail
        except zlib.error as error:
            raise ValueError(f"the body is not valid {self._encoding}: {error}") from error

    async def aclose(self) -> None:
        await self._stream.aclose()
