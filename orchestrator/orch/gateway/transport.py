"""HTTP clients for the SDKs of model APIs whose requests go through the gateway.

client = anthropic.Anthropic(http_client=orch.gateway.client("~/.orch/conversations"))
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, Literal, ParamSpec, TypeVar

import httpx2

from orch_protocol.agent.config import ArchivalConfig, Profile

from .core import Exchange, Gateway
from .core_thread import CoreThread, open_gateway

__all__ = ["AsyncGatewayTransport", "GatewayTransport", "async_client", "client"]

P = ParamSpec("P")
T = TypeVar("T")

REPLACED_REQUEST_HEADERS: Final = ("accept-encoding", "content-length", "transfer-encoding")
REPLACED_RESPONSE_HEADERS: Final = ("content-encoding", "content-length", "transfer-encoding")
LIMITS: Final = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)
EVENT_STREAM: Final = "text/event-stream"


def client(
    folder: str | os.PathLike[str],
    profile: Profile | Literal["off"] = "balanced",
    *,
    config: ArchivalConfig | None = None,
    warn: Callable[[str], None] | None = None,
    transport: httpx2.BaseTransport | None = None,
    **options: Any,
) -> httpx2.Client:
    """Return an `httpx2.Client` for a blocking SDK client. Long conversations are archived below `folder`.

    `profile` and `config` are those of `Archiver`. With the profile "off", all requests pass unchanged. `warn` is
    called with each problem, for example a damaged folder; None writes it to the log "orch.gateway". Requests are sent
    with `transport`, None for a new HTTPTransport; for a proxy, pass one with the proxy. `options` are further
    arguments of `httpx2.Client`. Closing the client closes the files. Raises ConfigError for an unknown profile or
    a file, and StoreError if the folder cannot be created or written.
    """
    gateway = open_gateway(folder, profile, config, warn)
    sender = transport or httpx2.HTTPTransport(limits=LIMITS)
    return httpx2.Client(transport=GatewayTransport(gateway, sender), **{"follow_redirects": True, **options})


def async_client(
    folder: str | os.PathLike[str],
    profile: Profile | Literal["off"] = "balanced",
    *,
    config: ArchivalConfig | None = None,
    warn: Callable[[str], None] | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
    **options: Any,
) -> httpx2.AsyncClient:
    """Return an `httpx2.AsyncClient` for an SDK client of an event loop. See `client` for the arguments and errors."""
    gateway = open_gateway(folder, profile, config, warn)
    sender = transport or httpx2.AsyncHTTPTransport(limits=LIMITS)
    return httpx2.AsyncClient(transport=AsyncGatewayTransport(gateway, sender), **{"follow_redirects": True, **options})


class GatewayTransport(httpx2.BaseTransport):
    """Sends the requests of a client through `gateway`, with `sender`."""

    def __init__(self, gateway: Gateway, sender: httpx2.BaseTransport) -> None:
        self._core = CoreThread(gateway)
        self._sender = sender

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            return self._sender.handle_request(request)
        body = request.read()
        begin = self._core.gateway.begin
        exchange = self._core.run(begin, request.url.path, dict(request.headers), body)
        if exchange.unchanged and not exchange.reads:
            return self._sender.handle_request(request)
        response = self._sender.handle_request(_changed(request, exchange))
        if not exchange.reads or response.status_code != 200:
            return response
        if _is_stream(response):
            return _streamed(response, _Stream(self, request, exchange, response))
        try:
            while response.status_code == 200:
                received = self._core.run(exchange.read, response.read())
                if not exchange.again:
                    return _answered(response, received)
                response = self._sender.handle_request(_changed(request, exchange))
            return response
        finally:
            self._core.leave(exchange)

    def next_response(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response:
        """Return the response of the server that continues a stream."""
        return self._sender.handle_request(_changed(request, exchange))

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of the core in its thread."""
        return self._core.run(function, *args, **kwargs)

    def leave(self, exchange: Exchange) -> None:
        """Close an exchange whose client is gone."""
        self._core.leave(exchange)

    def close(self) -> None:
        self._core.close()
        self._sender.close()


class _Stream(httpx2.SyncByteStream):
    """The stream that the client gets, from one or more responses of the server."""

    def __init__(
        self, transport: GatewayTransport, request: httpx2.Request, exchange: Exchange, response: httpx2.Response
    ) -> None:
        self._transport = transport
        self._request = request
        self._exchange = exchange
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        exchange, run = self._exchange, self._transport.run
        while True:
            for piece in self._response.iter_bytes():
                if received := exchange.feed(piece):
                    yield received
            if received := run(exchange.end):
                yield received
            if not exchange.again:
                return
            self._response.close()
            self._response = self._transport.next_response(self._request, exchange)
            if self._response.status_code != 200 or not _is_stream(self._response):
                yield exchange.error(self._response.read())
                return

    def close(self) -> None:
        self._response.close()
        self._transport.leave(self._exchange)


class AsyncGatewayTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of a client in an event loop through `gateway`, with `sender`."""

    def __init__(self, gateway: Gateway, sender: httpx2.AsyncBaseTransport) -> None:
        self._core = CoreThread(gateway)
        self._sender = sender

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            return await self._sender.handle_async_request(request)
        body = await request.aread()
        begin = self._core.gateway.begin
        exchange = await self._core.run_async(begin, request.url.path, dict(request.headers), body)
        if exchange.unchanged and not exchange.reads:
            return await self._sender.handle_async_request(request)
        response = await self._sender.handle_async_request(_changed(request, exchange))
        if not exchange.reads or response.status_code != 200:
            return response
        if _is_stream(response):
            return _streamed(response, _AsyncStream(self, request, exchange, response))
        try:
            while response.status_code == 200:
                received = await self._core.run_async(exchange.read, await response.aread())
                if not exchange.again:
                    return _answered(response, received)
                response = await self._sender.handle_async_request(_changed(request, exchange))
            return response
        finally:
            self._core.leave(exchange)

    async def next_response(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response:
        """Return the response of the server that continues a stream."""
        return await self._sender.handle_async_request(_changed(request, exchange))

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of the core in its thread."""
        return await self._core.run_async(function, *args, **kwargs)

    def leave(self, exchange: Exchange) -> None:
        """Close an exchange whose client is gone."""
        self._core.leave(exchange)

    async def aclose(self) -> None:
        await asyncio.to_thread(self._core.close)
        await self._sender.aclose()


class _AsyncStream(httpx2.AsyncByteStream):
    """The stream that the client gets, from one or more responses of the server."""

    def __init__(
        self, transport: AsyncGatewayTransport, request: httpx2.Request, exchange: Exchange, response: httpx2.Response
    ) -> None:
        self._transport = transport
        self._request = request
        self._exchange = exchange
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        exchange, run = self._exchange, self._transport.run
        while True:
            async for piece in self._response.aiter_bytes():
                if received := exchange.feed(piece):
                    yield received
            if received := await run(exchange.end):
                yield received
            if not exchange.again:
                return
            await self._response.aclose()
            self._response = await self._transport.next_response(self._request, exchange)
            if self._response.status_code != 200 or not _is_stream(self._response):
                yield exchange.error(await self._response.aread())
                return

    async def aclose(self) -> None:
        await self._response.aclose()
        self._transport.leave(self._exchange)


def _changed(request: httpx2.Request, exchange: Exchange) -> httpx2.Request:
    headers = [(name, value) for name, value in request.headers.multi_items() if name not in REPLACED_REQUEST_HEADERS]
    if not exchange.reads:
        headers += [(name, value) for name, value in request.headers.multi_items() if name == "accept-encoding"]
    return httpx2.Request(
        request.method, request.url, headers=headers, content=exchange.request, extensions=request.extensions
    )


def _is_stream(response: httpx2.Response) -> bool:
    return str(response.headers.get("content-type", "")).startswith(EVENT_STREAM)


def _kept_headers(response: httpx2.Response) -> list[tuple[str, str]]:
    return [(name, value) for name, value in response.headers.multi_items() if name not in REPLACED_RESPONSE_HEADERS]


def _streamed(response: httpx2.Response, stream: _Stream | _AsyncStream) -> httpx2.Response:
    return httpx2.Response(
        response.status_code, headers=_kept_headers(response), stream=stream, extensions=response.extensions
    )


def _answered(response: httpx2.Response, body: bytes) -> httpx2.Response:
    return httpx2.Response(
        response.status_code, headers=_kept_headers(response), content=body, extensions=response.extensions
    )
