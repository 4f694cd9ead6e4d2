"""The sessions of aiohttp that send the requests of the SDKs' clients, and the errors of these sessions.

The SDKs' aiohttp clients create sessions that report nothing. The sessions from this module tell the observer of a
request when its headers are sent, and when its response begins and ends.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import aiohttp
import httpx2

__all__ = ["ConnectionFailure", "FailureKind", "RequestObserver", "aiohttp_failure", "named_error", "with_observer"]

FailureKind: TypeAlias = Literal["silent", "refused", "lost"]
SocketOption: TypeAlias = tuple[int, int, int]


class ConnectionFailure(NamedTuple):
    """How a connection failed, and the reason."""

    kind: FailureKind
    reason: str


class ResponsePace(Protocol):
    """Reads a response."""

    def response_begun(self, on_end: Callable[[Callable[[], None]], None]) -> None:
        """The response has begun. `on_end` takes a function that is called as soon as the whole body has arrived."""


class RequestObserver(Protocol):
    """Observes one request."""

    pace: ResponsePace

    def request_sent(self) -> None:
        """The headers of the request are being sent."""


def with_observer(
    client: httpx2.AsyncClient, observer: Callable[[], Any], options: Sequence[SocketOption]
) -> httpx2.AsyncClient:
    """Return `client`, an SDK's aiohttp client, whose requests report to the result of `observer`.

    `observer` is called in the context of the request and returns a RequestObserver. `options` are the options of
    sockets.
    """
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            transport.client = partial(_session, transport, observer, options)  # type: ignore[attr-defined]
    return client


def _session(
    transport: Any, observer: Callable[[], RequestObserver], options: Sequence[SocketOption]
) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()

    async def on_headers_sent(*_: object) -> None:
        observer().request_sent()

    async def on_response(_session: object, _context: object, end: aiohttp.TraceRequestEndParams) -> None:
        observer().pace.response_begun(end.response.content.on_eof)

    def make_socket(address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        for option in options:
            made.setsockopt(*option)
        return made

    trace.on_request_headers_sent.append(on_headers_sent)
    trace.on_request_end.append(on_response)
    limits: httpx2.Limits = transport.limits
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=transport.ssl_context,
            limit=limits.max_connections or 0,
            keepalive_timeout=limits.keepalive_expiry,
            socket_factory=make_socket,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),  # The SDK's client stores cookies.
        trace_configs=[trace],
    )


def aiohttp_failure(error: BaseException) -> ConnectionFailure | None:
    """Return how the connection failed. Return None if `error` is not an error of aiohttp.

    The SDKs convert these errors to less exact errors of httpx, which differ between the SDKs.
    """
    match error:
        case aiohttp.ServerTimeoutError():
            return ConnectionFailure("silent", named_error(error))
        case aiohttp.ClientConnectorError():
            return ConnectionFailure("refused", named_error(error.os_error))
        case aiohttp.ClientPayloadError():
            return ConnectionFailure("lost", "the server closed the connection before the end of the response")
        case aiohttp.ServerDisconnectedError():
            return ConnectionFailure("lost", "the server closed the connection without a response")
        case aiohttp.ClientResponseError():
            # Its message contains the line of the response, which can contain the key.
            return ConnectionFailure("lost", f"the server sent an invalid HTTP response ({type(error).__name__})")
        case aiohttp.ClientError():
            return ConnectionFailure("lost", named_error(error))
    return None


def named_error(error: BaseException) -> str:
    """Return the type and the text of `error`."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
