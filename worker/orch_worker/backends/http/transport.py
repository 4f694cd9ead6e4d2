"""The HTTP client of the SDKs: TLS context, timeouts, size limits and redirects."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aiohttp
import httpx2
from msgspec import Struct

from orch_protocol.core.errors import ConfigError

from ..models import CONTENT_SECONDS
from .aiohttp_client import ConnectionFailure, FailureKind, aiohttp_failure, named_error, with_observer
from .pace import ReadingPace
from .proxies import proxy_of

__all__ = [
    "CrossOriginRedirectError",
    "Deadlines",
    "ResponseLimits",
    "ResponseTooLargeError",
    "ResponseWatch",
    "cause",
    "connection_failure",
    "http_client",
    "refusal_of_proxy",
    "ssl_context",
    "ssl_context_for",
    "timeout",
    "unsendable_request",
]

T = TypeVar("T", bound=BaseException)

CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
"""Variables that name certificates of servers. The first one that is set applies."""
FOLDER: Final = "SSL_CERT_DIR"
BUNDLE: Final = "REQUESTS_CA_BUNDLE"
LIMITS: Final = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)
"""The limits of the SDKs."""
KEEP_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", 0x10), 60),  # TCP_KEEPALIVE in macOS
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5),
)
"""The options with which a connection notices that the server is gone, as in one of the SDKs."""
SEND_SECONDS: Final = 60.0
LAST_SECONDS: Final = 2.0
DECODE_BYTES: Final = 1 << 16
"""Compressed bodies are decoded in chunks of at most this number of bytes."""
PROXY_AUTHENTICATION: Final = "407"
HEAD_BYTES: Final = 1 << 14
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
    """Return the shared TLS context, which has the same settings as the TLS contexts of the SDKs.

    SSL_CERT_FILE or SSL_CERT_DIR replace the certificates of the system, and REQUESTS_CA_BUNDLE adds to them. Raise
    ConfigError if one of these variables names a file or folder that cannot be used.
    """
    variable = next(filter(os.environ.get, CERTIFICATES), "")
    if not variable:
        return httpx2.create_ssl_context()
    path = os.environ[variable]
    try:
        if variable == BUNDLE:
            context = httpx2.create_ssl_context()
            context.load_verify_locations(**{"capath" if os.path.isdir(path) else "cafile": path})
            return context
        if variable == FOLDER:
            os.listdir(path)  # OpenSSL ignores a folder that does not exist.
        return httpx2.create_ssl_context()
    except (OSError, ValueError) as error:  # An SSLError is an OSError.
        raise ConfigError(
            f"cannot read the certificates in {variable}={path}: {_reason(error)}. Correct or unset {variable}"
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "it contains no certificate in the PEM format"
    return (isinstance(error, OSError) and error.strerror) or str(error)


@cache
def _no_certificates() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def ssl_context_for(url: str) -> ssl.SSLContext:
    """Return the TLS context for requests to `url`. Raise ConfigError like `ssl_context`.

    For plain HTTP, the context trusts no server and needs no certificates.
    """
    return _no_certificates() if urlsplit(url).scheme == "http" else ssl_context()


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


def connection_failure(error: BaseException) -> ConnectionFailure | None:
    """Return how the connection failed. Return None if `error` is not a connection failure."""
    causes = [error]
    while (next_cause := causes[-1].__cause__) is not None:
        causes.append(next_cause)
    # The errors of aiohttp are more exact than the errors of httpx and of the SDKs, which they cause.
    return next(filter(None, (*map(aiohttp_failure, causes), *map(_httpx_failure, causes))), None)


def _httpx_failure(error: BaseException) -> ConnectionFailure | None:
    kinds: tuple[tuple[type[Exception], FailureKind], ...] = (
        (httpx2.TimeoutException, "silent"),
        (httpx2.ConnectError, "refused"),
        (httpx2.TransportError, "lost"),
    )
    kind = next((kind for exception, kind in kinds if isinstance(error, exception)), None)
    return None if kind is None else ConnectionFailure(kind, named_error(error))


def refusal_of_proxy(error: BaseException) -> BaseException | None:
    """Return the exception among `error` and its causes that means that a proxy requires other credentials."""
    found = cause(error, httpx2.ProxyError)
    return found if found is not None and str(found).startswith(PROXY_AUTHENTICATION) else None


def unsendable_request(error: BaseException | None) -> BaseException | None:
    """Return the exception among `error` and its causes that means that the request itself is not valid.

    Its address or one of its headers cannot be sent, so no server was asked.
    """
    kinds = (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)
    return next((found for kind in kinds if (found := cause(error, kind)) is not None), None)


class ResponseWatch:
    """Watches the timeouts, the size and the redirects of one response.

    `sent` is True as soon as part of the request may have been sent. `begun` is True once a response with status 200
    has started. `content_missing` is True if the timeout for content expired although bytes arrived. `head` is the
    beginning of the decoded response.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        limits: ResponseLimits = ResponseLimits(),  # noqa: B008 - immutable
        is_watched: Callable[[], bool] = lambda: True,
    ) -> None:
        self.pace = ReadingPace(is_watched)
        self.sent = False
        self.begun = False
        self._connected: Any = None
        self._deadlines = deadlines
        self._limits = limits
        self._seconds = deadlines.thinking or deadlines.idle
        self._watch = asyncio.timeout(deadlines.first)
        self._content_deadline = float("inf")
        self._bytes_deadline = float("inf")
        self.head = b""
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
        self.pace.content_arrived()
        self._seconds = self._deadlines.idle
        self._content_deadline = self._now() + self._deadlines.content
        self.bytes_arrived()

    def count_bytes(self, decoded: bytes) -> None:
        """Count decoded bytes. Raise ResponseTooLargeError if there are too many."""
        if len(self.head) < HEAD_BYTES:
            self.head += decoded[: HEAD_BYTES - len(self.head)]
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
        self.pace.stop()
        self._seconds = min(self._seconds, LAST_SECONDS)
        self.bytes_arrived()

    def request_sent(self) -> None:
        """Record that the headers of the request are being sent."""
        self.sent = True

    async def on_trace_event(self, step: str, info: dict[str, Any]) -> None:
        """Record that the client reached `step` of the request."""
        if step == "connection.connect_tcp.complete":
            self._connected = info["return_value"]
        elif step.endswith(".send_request_headers.started"):
            self.request_sent()

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
    if request.url.userinfo:
        # The client has written a user and a password in the address to a header. aiohttp refuses both together.
        request.url = request.url.copy_with(userinfo=b"")


async def _watch_response(response: httpx2.Response) -> None:
    _listening.get().on(response)


def http_client(kind: Callable[..., httpx2.AsyncClient], base_url: str) -> httpx2.AsyncClient:
    """Return the HTTP client for `base_url`, whose requests a `ResponseWatch` observes.

    `kind` is the aiohttp client of an SDK. Raise ConfigError if the proxy or the certificates that the environment sets
    cannot be used.
    """
    url = proxy_of(base_url, os.environ).url
    context = ssl_context() if url.startswith("https:") else ssl_context_for(base_url)
    proxy = httpx2.Proxy(url, ssl_context=context if url.startswith("https:") else None) if url else None
    options: dict[str, Any] = {
        "trust_env": False,
        "event_hooks": {"request": [_prepare_request], "response": [_watch_response]},
    }
    if url.startswith("socks"):  # aiohttp has no SOCKS proxies.
        transport = httpx2.AsyncHTTPTransport(
            verify=context, trust_env=False, limits=LIMITS, proxy=proxy, socket_options=KEEP_ALIVE
        )
        return kind(transport=transport, **options)
    if proxy is not None and proxy.auth is not None:
        credentials = {"Proxy-Authorization": aiohttp.encode_basic_auth(*proxy.auth)}
        if urlsplit(base_url).scheme == "http":
            options["headers"] = credentials  # The proxy gets the request itself, not a CONNECT request.
        proxy = httpx2.Proxy(proxy.url, ssl_context=proxy.ssl_context, headers=credentials)
    return with_observer(kind(verify=context, limits=LIMITS, proxy=proxy, **options), _listening.get, KEEP_ALIVE)


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
            await self._response_watch.pace.after_reading(len(chunk))

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
