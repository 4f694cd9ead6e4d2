"""The HTTP server of the proxy: passes requests to model servers, and those of the gateway's APIs through the core.

It does not retry and stores no keys. Log entries contain the types of errors, but no headers and no bodies.
"""

from __future__ import annotations

import asyncio
import io
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import aiohttp
from aiohttp import ClientResponse, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from msgspec import to_builtins
from multidict import CIMultiDict
from yarl import URL

from orch_protocol.core.errors import ConfigError
from orch_worker.backends.http.aiohttp_client import aiohttp_failure, named_error
from orch_worker.backends.http.proxies import proxy_of
from orch_worker.backends.http.transport import ssl_context_for

from ..api import encode_value
from ..core import Exchange, Gateway, operation_of
from ..core_thread import CoreThread
from .access import Access, Refused
from .encodings import DECODABLE, Decoder, decode
from .headers import error_body, request_headers
from .responses import response_for
from .tunnel import asks_for_websocket, tunnel
from .upstreams import ANTHROPIC, OPENAI, STATS, Upstream, Upstreams, split_client

__all__ = ["ProxyServer"]

MAX_BODY: Final = 64 << 20
"""Size in bytes of the largest body that the gateway reads. Larger bodies pass unchanged."""
MAX_HEAD: Final = 1 << 16
"""Size in bytes of the longest line of a head, for example a header with a long key."""
MAX_HEADERS: Final = 500
CONNECT_SECONDS: Final = 30.0
"""How long a connection to a server may take, with the look-up of its name and the handshake of TLS."""
IDLE_SECONDS: Final = 30.0
"""How long an idle connection to a server stays open."""
CANCEL_SECONDS: Final = 0.5
EVENT_STREAM: Final = "text/event-stream"
JSON: Final = "application/json"
KINDS: Final = {401: "authentication_error", 404: "not_found_error"}
"""The types of errors, by status."""
CHANGED_HEADERS: Final = (hdrs.CONTENT_LENGTH, hdrs.CONTENT_ENCODING)

log: Final = logging.getLogger("orch.gateway.proxy")
_no_log: Final = logging.getLogger("orch.gateway.proxy.aiohttp")
_no_log.disabled = True


class ProxyServer:
    """Serves the clients of one gateway. `stats` returns the data for the path /stats.

    Raises ConfigError if the environment sets a proxy or certificates that cannot be used.
    """

    def __init__(
        self,
        gateway: Gateway,
        upstreams: Upstreams,
        access: Access,
        stats: Callable[[], Awaitable[Any]],
        env: Mapping[str, str],
    ) -> None:
        self._archives = gateway.archives
        self._core = CoreThread(gateway)
        self._upstreams = upstreams
        self._access = access
        self._stats = stats
        self._proxies = {name: _proxy_for(each.url, env) for name, each in upstreams.by_name.items()}
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None
        self._active: set[asyncio.Task[Any]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port. With `port` 0, the system selects a free one. Raises OSError."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, ssl=ssl_context_for("https://"), keepalive_timeout=IDLE_SECONDS, socket_factory=_socket
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS),
            auto_decompress=False,
            skip_auto_headers=(hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT),
            max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
            max_headers=MAX_HEADERS,
        )
        server = web.Server(
            self._handle,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            logger=_no_log,  # It would quote invalid headers.
            max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
            max_headers=MAX_HEADERS,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=CANCEL_SECONDS)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, host, port)
        await self._site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def close(self, grace: float) -> None:
        """Accept no connection any more, let requests finish for `grace` seconds, then cancel them. Close all files."""
        if self._site is not None:
            await self._site.stop()
        if self._active:
            await asyncio.wait(self._active, timeout=grace)
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()
        await asyncio.to_thread(self._core.close)

    async def receipt_of(self, client: str) -> Any:
        """Return what the conversations of a client with a name cost, after all its requests that have ended."""
        return to_builtins(await self._core.run_async(self._core.gateway.receipt_of_client, client))

    @property
    def requests(self) -> int:
        """The number of requests in progress."""
        return len(self._active)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._active.add(task)
        task.add_done_callback(self._active.discard)
        style = _style(request.raw_path)
        try:
            client, path = split_client(self._access.path_of(request.raw_path, request.headers))
            if _path_of(path) == STATS:
                return await self._own(request)
            upstream, target = self._upstreams.find(path, request.headers)
            style = ANTHROPIC if upstream.name == ANTHROPIC else style
            return await self._pass(request, upstream, target, client)
        except Refused as refused:
            return _error(style, refused.status, KINDS.get(refused.status, "invalid_request_error"), str(refused))
        except _Failed as failed:
            log.warning("%s", failed)
            return _error(style, 502, "api_error", str(failed))
        except web.RequestPayloadError as error:
            return _error(style, 400, "invalid_request_error", f"the body of the request is not valid HTTP: {error}")
        except ConnectionError:
            raise  # The client has disconnected.
        except Exception as error:  # aiohttp would log the text of the error, which can quote headers.
            log.error("a request failed: %s", type(error).__name__)
            return _error(style, 500, "api_error", f"orch proxy failed with {type(error).__name__}")

    async def _own(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, f"{STATS} answers GET requests")
        return web.Response(body=encode_value(await self._stats()), content_type=JSON)

    async def _pass(self, request: web.BaseRequest, upstream: Upstream, target: str, client: str) -> web.StreamResponse:
        assert self._session is not None
        sender = _Sender(self._session, request, upstream, target, self._proxies[upstream.name])
        if asks_for_websocket(request):
            if self._archives and operation_of(_path_of(target)) and _falls_back_to_http(request):
                raise Refused(426, "orch proxy archives conversations over HTTP: use HTTP in place of WebSocket")
            sender.headers[hdrs.CONNECTION] = "Upgrade"
            sender.headers[hdrs.UPGRADE] = request.headers[hdrs.UPGRADE]
            async with await sender.send(None) as response:
                return await (tunnel(request, response) if response.status == 101 else _copy(request, response))
        if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        if request.method != hdrs.METH_POST or operation_of(_path_of(target)) is None:
            return await _pass_unread(request, sender, request.content if request.body_exists else None)
        body, is_complete = await _read_some(request.content)
        if not is_complete:
            return await _pass_unread(request, sender, _continued(body, request.content))
        decoded = decode(body, request.headers.get(hdrs.CONTENT_ENCODING, "").lower(), MAX_BODY)
        if decoded is None:
            return await _pass_unread(request, sender, io.BytesIO(body))
        headers = {name.lower(): value for name, value in request.headers.items()}
        exchange = await self._core.run_async(self._core.gateway.begin, _path_of(target), headers, decoded, client)
        try:
            if exchange.unchanged:
                return await self._pass_unchanged(request, sender, body, exchange)
            for name in CHANGED_HEADERS:
                sender.headers.popall(name, None)
            if exchange.reads:
                sender.headers[hdrs.ACCEPT_ENCODING] = "identity"
            return await self._pass_changed(request, sender, exchange)
        finally:
            self._core.leave(exchange)

    async def _pass_unchanged(
        self, request: web.BaseRequest, sender: _Sender, body: bytes, exchange: Exchange
    ) -> web.StreamResponse:
        """Pass a request and its response on. The core reads a copy of the response."""
        async with await sender.send(io.BytesIO(body)) as response:
            if not exchange.reads or response.status != 200:
                return await _copy(request, response)
            copy = _Copy(response, exchange)
            passed = await _copy(request, response, observe=copy.feed)
            self._core.submit(copy.end)
            return passed

    async def _pass_changed(self, request: web.BaseRequest, sender: _Sender, exchange: Exchange) -> web.StreamResponse:
        """Send the requests of `exchange`, and return its responses as one."""
        stream: web.StreamResponse | None = None
        while True:
            try:
                response = await sender.send(io.BytesIO(exchange.request))
            except _Failed as failed:
                if stream is None:
                    raise
                log.warning("%s", failed)
                await stream.write(exchange.error(error_body(_style(sender.target), "api_error", str(failed))))
                return stream
            async with response:
                is_read = response.status == 200 and exchange.reads and _encoding(response) in DECODABLE
                is_stream = is_read and _media_type(response) == EVENT_STREAM
                if stream is not None and not is_stream:
                    error, _ = await _read_some(response.content)
                    await stream.write(exchange.error(error))
                    return stream
                if not is_read:
                    return await _copy(request, response)
                if not is_stream:
                    if passed := await self._read(request, exchange, response):
                        return passed
                    continue
                if stream is None:
                    stream = response_for(response, without=CHANGED_HEADERS)
                    await stream.prepare(request)
                is_complete = await self._feed(exchange, response, stream)
            if not exchange.again:
                if not is_complete:
                    _break_off(request, sender.upstream)
                return stream

    async def _read(
        self, request: web.BaseRequest, exchange: Exchange, response: ClientResponse
    ) -> web.StreamResponse | None:
        """Return the response without streaming. Return None if the server has to be asked again."""
        body, is_complete = await _read_some(response.content)
        decoded = decode(body, _encoding(response), MAX_BODY) if is_complete else None
        if decoded is None:
            return await _copy(request, response, before=body)
        result = await self._core.run_async(exchange.read, decoded)
        if exchange.again:
            return None
        passed = response_for(response, without=CHANGED_HEADERS)
        passed.content_length = len(result)
        await passed.prepare(request)
        await passed.write(result)
        return passed

    async def _feed(self, exchange: Exchange, response: ClientResponse, stream: web.StreamResponse) -> bool:
        """Pass the events of a response on. Return whether the response was complete."""
        decoder = Decoder(_encoding(response))
        try:
            while piece := await _piece(response.content):
                if received := exchange.feed(decoder.feed(piece)):
                    await stream.write(received)
            is_complete = decoder.is_complete
        except ValueError:  # The server broke it off, or it is not encoded as its headers say.
            is_complete = False
        if received := await self._core.run_async(exchange.end):
            await stream.write(received)
        return is_complete


class _Failed(Exception):
    """The server cannot be reached, or it sent no response."""


class _Sender:
    """Sends the requests for one request of a client to `upstream`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        request: web.BaseRequest,
        upstream: Upstream,
        target: str,
        proxy: _Proxy | None,
    ) -> None:
        self.upstream = upstream
        self.target = target
        self.headers = request_headers(request.raw_headers)
        self._session = session
        self._method = request.method
        self._proxy = proxy

    async def send(self, body: Any) -> ClientResponse:
        """Return the response, whose body has not been read. Raises _Failed."""
        url = self.upstream.url_of(self.target)
        options = self._proxy.options(self.headers) if self._proxy is not None else {}
        try:
            return await self._session.request(
                self._method,
                URL(url, encoded=True),
                data=body,
                headers=self.headers,
                allow_redirects=False,
                **options,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = aiohttp_failure(error)
            raise _Failed(
                f"orch proxy cannot use the server {self.upstream.name!r} at {self.upstream.url}"
                f"{self._proxy or ''}: {failure.reason if failure else named_error(error)}. Check the network, or set "
                f"another address: orch proxy --upstream {self.upstream.name}=URL"
            ) from None


class _Proxy:
    """The HTTP proxy between this proxy and a server."""

    def __init__(self, url: str, shown: str, *, is_encrypted: bool) -> None:
        parts = URL(url)
        self._url = parts.with_user(None)
        self._credentials = aiohttp.encode_basic_auth(parts.user, parts.password or "") if parts.user else ""
        self._is_encrypted = is_encrypted
        self._shown = shown

    def options(self, headers: CIMultiDict[str]) -> dict[str, Any]:
        """Return the arguments of a request with `headers`, which get the credentials if the proxy reads them."""
        if self._credentials and not self._is_encrypted:
            headers[hdrs.PROXY_AUTHORIZATION] = self._credentials
        through = {hdrs.PROXY_AUTHORIZATION: self._credentials} if self._credentials and self._is_encrypted else None
        return {"proxy": self._url, "proxy_headers": through}

    def __str__(self) -> str:
        return f" through {self._shown}"


def _proxy_for(url: str, env: Mapping[str, str]) -> _Proxy | None:
    """Return the proxy that the environment sets for `url`. Raises ConfigError if it cannot be used."""
    found = proxy_of(url, env, lambda: True)
    if not found.url:
        return None
    if found.url.startswith("socks"):
        raise ConfigError(
            f"{found} is a SOCKS proxy, which orch proxy cannot use for {url}. Add the host to NO_PROXY, or unset "
            f"{found.variable}"
        )
    return _Proxy(found.url, str(found), is_encrypted=url.startswith("https:"))


class _Copy:
    """Gives a copy of the response that passes unchanged to the core."""

    def __init__(self, response: ClientResponse, exchange: Exchange) -> None:
        self._exchange = exchange
        self._is_stream = _media_type(response) == EVENT_STREAM
        encoding = _encoding(response)
        self._decoder = Decoder(encoding) if encoding in DECODABLE else None
        self._body = bytearray()

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the body. What cannot be decoded is left out."""
        if self._decoder is None:
            return
        try:
            decoded = self._decoder.feed(piece)
        except ValueError:
            self._decoder = None
            return
        if self._is_stream:
            self._exchange.feed(decoded)
        elif len(self._body) + len(decoded) <= MAX_BODY:
            self._body += decoded
        else:
            self._decoder = None

    def end(self) -> None:
        """Read what was taken. Call this function in the thread of the core."""
        if self._is_stream:
            self._exchange.end()
        elif self._decoder is not None and self._decoder.is_complete and self._body:
            self._exchange.read(bytes(self._body))


async def _pass_unread(request: web.BaseRequest, sender: _Sender, body: Any) -> web.StreamResponse:
    async with await sender.send(body) as response:
        return await _copy(request, response)


async def _copy(
    request: web.BaseRequest,
    response: ClientResponse,
    *,
    before: bytes = b"",
    observe: Callable[[bytes], None] = lambda _: None,
) -> web.StreamResponse:
    """Pass a response on as it arrives. `before` is the part of its body that was read before."""
    passed = response_for(response)
    await passed.prepare(request)
    if before:
        await passed.write(before)
    try:
        while piece := await _piece(response.content):
            await passed.write(piece)
            observe(piece)
    except ValueError:
        _break_off(request, None)
        return passed
    await passed.write_eof()
    return passed


async def _piece(content: aiohttp.StreamReader) -> bytes:
    """Return the next bytes of a body, b"" at its end. Raises ValueError if the sender broke it off."""
    try:
        return await content.readany()
    except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
        if received := content._read_nowait(-1):  # aiohttp raises the error before it returns these bytes.
            return received
        raise ValueError(type(error).__name__) from None


async def _read_some(content: aiohttp.StreamReader) -> tuple[bytes, bool]:
    """Return the bytes of a body up to its end, to MAX_BODY or to where the sender broke it off, and whether it ended.

    A body that was broken off raises its error again when it is read further.
    """
    pieces: list[bytes] = []
    size = 0
    try:
        while size <= MAX_BODY:
            piece = await _piece(content)
            if not piece:
                return b"".join(pieces), True
            pieces.append(piece)
            size += len(piece)
    except ValueError:
        pass
    return b"".join(pieces), False


async def _continued(body: bytes, content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield `body`, and then what has not been read of `content`."""
    yield body
    async for piece in content.iter_any():
        yield piece


def _break_off(request: web.BaseRequest, upstream: Upstream | None) -> None:
    """Close the connection of the client without the end of the body, as the server did."""
    log.warning("%s broke off a response", upstream.name if upstream else "a server")
    if request.transport is not None:
        request.transport.close()


def _error(style: str, status: int, kind: str, message: str) -> web.Response:
    return web.Response(status=status, body=error_body(style, kind, message), content_type=JSON)


def _style(target: str) -> str:
    """Return the name of the server whose format errors for `target` have."""
    found = operation_of(_path_of(target))
    return ANTHROPIC if found is not None and found[0].format == ANTHROPIC else OPENAI


def _falls_back_to_http(request: web.BaseRequest) -> bool:
    """Return whether the client uses HTTP after the status 426. Codex does; other clients might fail."""
    return request.headers.get("originator", "").lower().startswith("codex")


def _path_of(target: str) -> str:
    return target.partition("?")[0]


def _media_type(response: ClientResponse) -> str:
    return response.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()


def _encoding(response: ClientResponse) -> str:
    return response.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()


def _socket(address: Any) -> socket.socket:
    """Return a socket that notices when the other side is gone."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return made
