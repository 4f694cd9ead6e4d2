"""The HTTP client of the SDKs: TLS context, timeouts, size limits and redirects."""

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
    "connection_failure",
    "ssl_context",
    "timeout",
]

T = TypeVar("T", bound=BaseException)

SEND_SECONDS: Final = 60.0
LAST_SECONDS: Final = 2.0
DECODE_BYTES: Final = 1 << 16
"""Compressed bodies are decoded in chunks of at most this number of bytes."""
EVENT_ENDS: Final = (b"\n\n", b"\n\r\n", b"\r\r")
ENCODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})


class Deadlines(Struct, frozen=True):
    """Timeouts for a provider, in seconds.

    - `connect`: for opening the connection.
    - `first`: until the first byte.
    - `idle`: between bytes, including keep-alive messages.
    - `content`: between events that add content.
    - `thinking`: between bytes before the first content, because some providers send nothing while a model reasons; 0
      means the same as `idle`.
    """

    connect: float = 10.0
    first: float = 120.0
    idle: float = 60.0
    content: float = CONTENT_SECONDS
    thinking: float = 0.0


class ResponseLimits(Struct, frozen=True):
    """Size limits in decoded bytes, for a whole response and for one server-sent event."""

    response: int = 32 << 20
    event: int = 16 << 20


class ResponseTooLargeError(Exception):
    """A response exceeds one of its `ResponseLimits`."""


class CrossOriginRedirectError(Exception):
    """A server redirects a request to another origin."""


@cache
def ssl_context() -> ssl.SSLContext:
    """Return the shared TLS context, which has the same settings as the TLS contexts of the SDKs."""
    return httpx2.create_ssl_context()


def timeout(deadlines: Deadlines) -> httpx2.Timeout:
    """Return the timeouts of the client, except the read timeout.

    The read timeout changes after the first byte, so `ResponseWatch` applies this timeout.
    """
    return httpx2.Timeout(connect=deadlines.connect, read=None, write=SEND_SECONDS, pool=deadlines.connect)


def cause(error: BaseException | None, kind: type[T]) -> T | None:
    """Return the first exception of type `kind` among `error` and its causes, or None.

    SDKs wrap exceptions of the HTTP client.
    """
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error


def connection_failure(
    error: BaseException | None,
) -> tuple[Literal["silent", "refused", "lost"], BaseException] | None:
    """Return the kind of connection failure and its exception. Return None if `error` is not a connection failure."""
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
    """Watches the timeouts, the size and the redirects of one response.

    `sent` is True as soon as part of the request may have been sent. `begun` is True once a response with status 200
    has started. `content_missing` is True if the timeout for content expired although bytes arrived.
    """

    def __init__(self, deadlines: Deadlines, limits: ResponseLimits = ResponseLimits()) -> None:  # noqa: B008 - immutable
        self.sent = False
        self.begun = False
        self._connected: Any = None
        self._deadlines = deadlines
        self._limits = limits
        self._seconds = deadlines.thinking or deadlines.idle
        self._watch = asyncio.timeout(deadlines.first)
        self._content_deadline = float("inf")
        self._bytes_deadline = float("inf")
        self._received = 0
        self._event = 0
        self._tail = b""

    @property
    def content_missing(self) -> bool:
        """Whether the expired timeout is the timeout for content."""
        return self._content_deadline < self._bytes_deadline

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Watch the request that is made in the `async with` block. Raise TimeoutError when a timeout expires.

        Use it once.
        """
        async with self._watch:
            _listening.set(self)
            self._bytes_deadline = self._now() + self._deadlines.first
            self._content_deadline = self._now() + self._deadlines.content
            try:
                yield
            finally:
                # After a cancellation at this point, the client would leave the connection open.
                if self._connected is not None and not self.sent:
                    await self._connected.aclose()

    def on(self, response: httpx2.Response) -> None:
        """Watch the unread body of `response`. Raise CrossOriginRedirectError for a redirect to another origin."""
        if response.has_redirect_location:
            origin, target = response.request.url, response.request.url.join(response.headers["location"])
            if _origin(origin) != _origin(target):
                raise CrossOriginRedirectError(f"{_origin(origin)} redirects to {_origin(target)}")
        self.begun = response.status_code == 200
        encoding = response.headers.pop("content-encoding", "identity").strip().lower()
        response.stream = _BoundedBody(response.stream, self, encoding)

    def bytes_arrived(self) -> None:
        """Record that bytes arrived."""
        self._bytes_deadline = self._now() + self._seconds
        self._reschedule()

    def content_arrived(self) -> None:
        """Record that the answer grew."""
        self._seconds = self._deadlines.idle
        self._content_deadline = self._now() + self._deadlines.content
        self.bytes_arrived()

    def count_bytes(self, decoded: bytes) -> None:
        """Count decoded bytes. Raise ResponseTooLargeError if there are too many."""
        self._received += len(decoded)
        if self._received > self._limits.response:
            raise ResponseTooLargeError(f"a response of more than {self._limits.response:,} bytes")
        window = self._tail + decoded
        end = max(window.rfind(mark) for mark in EVENT_ENDS)
        self._event = self._event + len(decoded) if end < 0 else len(window) - end
        self._tail = window[-2:]
        if self._event > self._limits.event:
            raise ResponseTooLargeError(f"a server-sent event of more than {self._limits.event:,} bytes")

    def response_complete(self) -> None:
        """Record that the answer is complete.

        The stream gets a short time to end, so that the connection can be reused.
        """
        self._seconds = min(self._seconds, LAST_SECONDS)
        self.bytes_arrived()

    async def on_trace_event(self, step: str, info: dict[str, Any]) -> None:
        """Record that the client reached `step` of the request."""
        if step == "connection.connect_tcp.complete":
            self._connected = info["return_value"]
        elif step.endswith(".send_request_headers.started"):
            self.sent = True

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _reschedule(self) -> None:
        if not self._watch.expired():
            self._watch.reschedule(min(self._bytes_deadline, self._content_deadline))


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"


_listening: ContextVar[ResponseWatch] = ContextVar("listening")


async def _prepare_request(request: httpx2.Request) -> None:
    request.extensions = {**request.extensions, "trace": _listening.get().on_trace_event}
    request.headers["accept-encoding"] = "gzip"  # `_BoundedBody` decodes only this encoding.


async def _watch_response(response: httpx2.Response) -> None:
    _listening.get().on(response)


def client_options(base_url: str) -> dict[str, Any]:
    """Return the options of the HTTP client for `base_url`. A `ResponseWatch` observes its requests.

    Proxies from the environment are not used for local servers, so that local data stays on this machine.
    """
    direct = dict.fromkeys(("all://", "http://", "https://")) if is_loopback(base_url) else {}
    return {
        "verify": ssl_context(),
        "event_hooks": {"request": [_prepare_request], "response": [_watch_response]},
        "mounts": direct,
    }


class _BoundedBody(httpx2.AsyncByteStream):
    """Yields the decoded bytes of a response in chunks of limited size. Raises ResponseTooLargeError or ValueError."""

    def __init__(self, stream: Any, watch: ResponseWatch, encoding: str) -> None:
        self._stream = stream
        self._response_watch = watch
        self._encoding = encoding
        self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32) if encoding in ENCODINGS else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # An SDK looks up its own attributes of the stream here.

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._decoder is None and self._encoding not in ("", "identity"):
            raise ValueError(f"content-encoding {self._encoding!r} is not supported")
        async for chunk in self._stream:
            self._response_watch.bytes_arrived()
            for piece in self._decode(chunk):
                self._response_watch.count_bytes(piece)
                yield piece

    def _decode(self, chunk: bytes) -> Iterator[bytes]:
        if self._decoder is None:
            yield chunk
            return
        if self._decoder.eof:
            return  # Otherwise the decoder would keep the remaining bytes in memory.
        try:
            while piece := self._decoder.decompress(chunk, DECODE_BYTES):
                yield piece
                chunk = self._decoder.unconsumed_tail
        except zlib.error as error:
            raise ValueError(f"the body is not valid {self._encoding}: {error}") from error

    async def aclose(self) -> None:
        await self._stream.aclose()
