"""The HTTP server of `orch proxy` at the level of bytes: what passes, who may use it, and what happens on failures."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from orch.gateway.core import Gateway
from orch.gateway.proxy import server as server_module
from orch.gateway.proxy.access import Access
from orch.gateway.proxy.server import ProxyServer
from orch.gateway.proxy.upstreams import Upstreams
from orch.gateway.store import FileStore
from orchestrator.gateway.gateway_world import CLIENTS, TIGHT, Client
from wire.model_server import ModelServer, call, say
from wire.raw_server import RawRequest, RawServer, connected, events, exchange, request_bytes, reset, response

SECONDS = 20
KEY = "sk-secret-of-the-client"
TOKEN = "a-token-of-16-characters"
BODY = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}).encode()
PATHS = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}

Start = Callable[..., Any]


@pytest.fixture
async def upstream() -> AsyncIterator[RawServer]:
    """A server that answers with given bytes."""
    async with RawServer() as server:
        yield server


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """A function that starts a proxy before the server at `url` and returns its port."""
    async with AsyncExitStack() as stack:

        async def start(
            url: str, *settings: str, token: str = "", gateway: Gateway | None = None, env: dict[str, str] | None = None
        ) -> int:
            gateway = gateway or Gateway(FileStore(tmp_path / "conversations", config=TIGHT))
            both = [f"anthropic={url}", f"openai={url}", *settings]

            async def stats() -> Any:
                return {"own": True}

            proxy = ProxyServer(gateway, Upstreams(both), Access(token), stats, env or {})
            port = await proxy.start("127.0.0.1", 0)
            stack.push_async_callback(proxy.close, 0.0)
            return port

        yield start


def plain(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return headers without those about the connection to the client."""
    return [(name, value) for name, value in headers if name.lower() not in ("connection", "transfer-encoding")]


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "POST", "PURGE"])
async def test_requests_and_responses_pass_as_they_are(method: str, upstream: RawServer, start: Start) -> None:
    """The target, the headers and the body arrive unchanged, and nothing is added. The response comes back so too."""
    upstream.answer = response(
        b"\x00\xff\r\n\r\n",
        "299 Some Reason",
        *("Retry-After: 7", "Request-Id: r1", "X-A: 1", "x-a: 2", "Set-Cookie: a=b"),
    )
    port = await start(upstream.url)
    target = "/v1/files/a%2Fb/../c//d%20e?x=%C3%A4&x=1&y"
    sent = ("X-Api-Key: k", "Cookie: c=d", "X-Two: 1", "X-Two: 2", "Accept-Encoding: br", "Content-Encoding: br")
    status, headers, body = await exchange(port, f"{method} {target}", *sent, body=b"\x00\xfe" * 9)
    assert (status, body) == ("HTTP/1.1 299 Some Reason", b"\x00\xff\r\n\r\n")
    assert plain(headers) == [
        *[("Retry-After", "7"), ("Request-Id", "r1"), ("X-A", "1"), ("x-a", "2"), ("Set-Cookie", "a=b")],
        ("Content-Length", "6"),
    ]
    (request,) = upstream.requests
    assert (request.line, request.body) == (f"{method} {target} HTTP/1.1", b"\x00\xfe" * 9)
    own = [("Host", upstream.url.removeprefix("http://")), ("Content-Length", "18")]
    given = [(name, value) for name, value in request.headers if name != "Connection"]
    assert sorted(given) == sorted([*own, *(tuple(each.split(": ")) for each in sent)])


async def test_headers_of_one_connection_do_not_pass(upstream: RawServer, start: Start) -> None:
    """Headers that Connection lists, and those that HTTP defines for one connection, end at the proxy."""
    upstream.answer = response(b"", "200 OK", "Connection: X-Hop, close", "X-Hop: 1", "Keep-Alive: timeout=5", "X-B: 2")
    port = await start(upstream.url)
    given = ("X-Mine: 1", "Proxy-Authorization: secret", "TE: trailers", "X-Orch-Token: t", "X-Kept: 3")
    message = request_bytes("GET /v1/models", *given).replace(b"close", b"close, X-Mine")
    async with connected(port) as (reader, writer):
        writer.write(message)
        received = await reader.read()
    assert b"X-B: 2" in received
    assert b"Hop" not in received
    assert b"Keep-Alive" not in received
    names = {name.lower() for name, _ in upstream.requests[0].headers}
    assert names <= {"host", "x-kept", "connection"}


async def test_head_and_redirects_pass(upstream: RawServer, start: Start) -> None:
    """The length of a body that is not sent passes, and a redirect is not followed."""
    upstream.answer = response(b"", "307 Temporary Redirect", "Location: http://127.0.0.1:1/elsewhere", length=999)
    port = await start(upstream.url)
    status, headers, body = await exchange(port, "HEAD /v1/models")
    assert (status, body) == ("HTTP/1.1 307 Temporary Redirect", b"")
    assert ("Content-Length", "999") in headers
    assert ("Location", "http://127.0.0.1:1/elsewhere") in headers
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/unknown"])
async def test_streams_pass_as_they_arrive(path: str, upstream: RawServer, start: Start) -> None:
    """The client gets each event before the server sends the next one."""
    gates = [asyncio.Event() for _ in range(3)]

    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(events(end=False))
        for number, gate in enumerate(gates):
            writer.write(events(b"data: %d\n\n" % number, end=False).partition(b"\r\n\r\n")[2])
            await gate.wait()
        writer.write(b"0\r\n\r\n")

    upstream.answer = answer
    port = await start(upstream.url)
    async with connected(port) as (reader, writer), asyncio.timeout(SECONDS):
        writer.write(request_bytes(f"POST {path}", body=BODY))
        for number, gate in enumerate(gates):
            await reader.readuntil(b"data: %d\n\n" % number)
            gate.set()
        assert (await reader.read()).endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/unknown"])
@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_client_that_disconnects_cancels_the_request(
    path: str, has_begun: bool, upstream: RawServer, start: Start
) -> None:
    """The connection to the server is closed at once, before and after the beginning of the response."""

    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        if has_begun:
            writer.write(events(b"data: 1\n\n", end=False))
        await asyncio.Event().wait()

    upstream.answer = answer
    port = await start(upstream.url)
    async with asyncio.timeout(SECONDS):
        async with connected(port) as (reader, writer):
            writer.write(request_bytes(f"POST {path}", body=BODY))
            await upstream.arrived.wait()
            if has_begun:
                await reader.readuntil(b"data: 1\n\n")
        await upstream.left.wait()


class Slow:
    """A function of the core that works until `go` is set."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(self, *args: Any) -> Any:
        """Wait, then call the function."""
        self.began.set()
        assert self.go.wait(SECONDS)
        return self.function(*args)


async def test_nothing_is_sent_for_a_client_that_left_during_the_work_of_the_core(
    upstream: RawServer, start: Start, tmp_path: Path
) -> None:
    """A client disconnects while its conversation is being archived."""
    gateway = Gateway(FileStore(tmp_path / "conversations"))
    slow = Slow(gateway.begin)
    gateway.begin = slow  # type: ignore[method-assign]
    port = await start(upstream.url, gateway=gateway)
    async with connected(port) as (_, writer):
        writer.write(request_bytes("POST /v1/messages", body=BODY))
        await asyncio.to_thread(slow.began.wait, SECONDS)
    await asyncio.sleep(0.05)  # the proxy sees the end of the connection in the same iteration of the event loop
    slow.go.set()
    status, *_ = await exchange(port, "GET /v1/models")
    assert status == "HTTP/1.1 200 OK"
    assert [request.line for request in upstream.requests] == ["GET /v1/models HTTP/1.1"]


def grown(client: Client) -> bytes:
    """Return the body of a request with a conversation that is archived."""
    for turn in range(6):
        client.say(f"Prompt {turn}. " + "Look at this part. " * 30)
        client.items.append({"role": "assistant", "content": f"Answer {turn}. " + "All is well. " * 60})
    client.say("And now?")
    return client.body()


def head_of(client: Client) -> list[str]:
    """Return the headers of a client."""
    return [f"{name}: {value}" for name, value in client.headers.items()]


async def test_no_request_follows_a_recall_of_a_client_that_left(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client disconnects between a recall and the next request to the server."""
    client = CLIENTS["messages"]()
    recall = call({"call": "search_archive", "input": {"query": "Prompt"}})
    async with ModelServer(recall, say("Here.")) as server:
        port = await start(server.url)
        slow = Slow(server_module.Exchange.end)
        monkeypatch.setattr(server_module.Exchange, "end", lambda exchange: slow(exchange))
        async with connected(port) as (_, writer):
            writer.write(request_bytes("POST /v1/messages", *head_of(client), body=grown(client)))
            await asyncio.to_thread(slow.began.wait, SECONDS)
        await asyncio.sleep(0.05)
        slow.go.set()
        await exchange(port, "GET /v1/models")
        assert [request.path for request in server.requests] == ["/v1/messages"]
        assert b"subagent_id" in server.requests[0].raw


STREAM = b'event: message_start\ndata: {"type": "message_start"}\n\nevent: content_block_del'


@pytest.mark.parametrize("is_archived", [True, False])
@pytest.mark.parametrize("how", ["reset", "close", "short", "gzip"])
async def test_broken_responses_reach_the_client_as_far_as_they_came(
    how: str, is_archived: bool, upstream: RawServer, start: Start
) -> None:
    """The client sees the bytes before the break, and that the response is not complete."""

    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        match how:
            case "short":
                writer.write(response(STREAM, "200 OK", "Content-Type: text/event-stream", length=1000))
            case "gzip":
                writer.write(events(gzip.compress(STREAM)[:-12], headers=("Content-Encoding: gzip",)))
            case _:
                writer.write(events(STREAM, end=False))
        await writer.drain()
        if how == "reset":
            reset(writer)

    upstream.answer = answer
    port = await start(upstream.url)
    client = CLIENTS["messages"]()
    body = grown(client) if is_archived else BODY
    _, headers, received = await exchange(port, "POST /v1/messages", *head_of(client), body=body)
    assert (b"subagent_id" in upstream.requests[0].body) == is_archived
    names = {name.lower() for name, _ in headers}
    if how == "gzip" and not is_archived:
        assert gzip.compress(STREAM)[:-12] in received  # The client decodes it itself.
        assert "content-encoding" in names
    else:
        assert b'"message_start"' in received
        assert not received.endswith(b"0\r\n\r\n")
        assert "content-length" not in names or len(received) < 1000


async def test_a_broken_whole_response_reaches_the_client(upstream: RawServer, start: Start) -> None:
    """A body without streaming that ends too early is not taken for a complete one."""
    upstream.answer = response(b'{"type": "mess', "200 OK", "Content-Type: application/json", length=500)
    port = await start(upstream.url)
    client = CLIENTS["messages"]()
    grown(client)
    _, headers, body = await exchange(port, "POST /v1/messages", *head_of(client), body=client.body(stream=False))
    assert body == b'{"type": "mess'
    assert ("Content-Length", "500") in headers


async def test_bytes_before_a_break_are_not_lost(
    upstream: RawServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow client gets all bytes of the server, also if the server breaks off while the client reads."""
    has_left = asyncio.Event()

    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"first", length=1000))
        await is_writing.wait()
        writer.write(b" and last")
        writer.close()
        asyncio.get_running_loop().call_later(0.05, has_left.set)

    async def write(self: web.StreamResponse, data: bytes) -> None:
        is_writing.set()
        await has_left.wait()
        await original(self, data)

    is_writing = asyncio.Event()
    original = web.StreamResponse.write
    monkeypatch.setattr(web.StreamResponse, "write", write)
    upstream.answer = answer
    port = await start(upstream.url)
    _, _, body = await exchange(port, "GET /v1/files/f/content")
    assert body == b"first and last"


async def test_bodies_over_the_limit_pass_unread(
    upstream: RawServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests and responses that are larger than what the gateway reads pass unchanged, in both directions."""
    monkeypatch.setattr(server_module, "MAX_BODY", 20_000)
    big = b'{"text": "%s"}' % (b"x" * 400_000)
    upstream.answer = response(big, "200 OK", "Content-Type: application/json")
    port = await start(upstream.url)
    client = CLIENTS["messages"]()
    status, _, body = await exchange(port, "POST /v1/messages", *head_of(client), body=grown(client))
    assert (status, body) == ("HTTP/1.1 200 OK", big)
    assert b"subagent_id" in upstream.requests[0].body
    status, _, body = await exchange(port, "POST /v1/messages", *head_of(client), body=big)
    assert (status, body, upstream.requests[1].body) == ("HTTP/1.1 200 OK", big, big)


async def test_an_event_over_the_limit_passes_unread(
    upstream: RawServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory for an event without an end is limited: the client gets it as it arrives."""
    monkeypatch.setattr("orch.gateway.core.MAX_EVENT_BYTES", 1000)
    rest = asyncio.Event()

    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(events(b'data: {"type": "ping"}\n\n', b"data: " + b"x" * 5000, end=False))
        await rest.wait()
        writer.write(b"3\r\nend\r\n0\r\n\r\n")

    upstream.answer = answer
    port = await start(upstream.url)
    client = CLIENTS["messages"]()
    async with connected(port) as (reader, writer), asyncio.timeout(SECONDS):
        writer.write(request_bytes("POST /v1/messages", *head_of(client), body=grown(client)))
        await reader.readuntil(b"x" * 5000)
        rest.set()
        assert (await reader.read()).endswith(b"3\r\nend\r\n0\r\n\r\n")
    assert b"subagent_id" in upstream.requests[0].body


async def test_a_request_of_the_size_that_the_api_allows_is_read(upstream: RawServer, start: Start) -> None:
    """A Messages request may have 32 MB."""
    body = BODY[:-1] + b', "padding": "%s"}' % (b"x" * (32 << 20))
    port = await start(upstream.url)
    status, *_ = await exchange(port, "POST /v1/messages", body=body)
    assert status == "HTTP/1.1 200 OK"
    assert len(upstream.requests[0].body) == len(body) < server_module.MAX_BODY


async def test_a_client_that_waits_for_permission_to_send_gets_it(upstream: RawServer, start: Start) -> None:
    """curl waits for the status 100 before it sends a large body."""
    port = await start(upstream.url)
    head, _, body = request_bytes("POST /v1/messages", "Expect: 100-continue", body=BODY).partition(b"\r\n\r\n")
    async with connected(port) as (reader, writer), asyncio.timeout(SECONDS):
        writer.write(head + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    assert upstream.requests[0].header("expect") == []


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("problem", ["refused", "unknown name", "no response", "no http"])
async def test_an_unreachable_server_is_named_in_the_format_of_the_api(
    kind: str, problem: str, upstream: RawServer, start: Start
) -> None:
    """The status is 502, and the error says which server failed and what to do."""
    upstream.answer = b"" if problem == "no response" else b"SSH-2.0-x\r\n\r\n"
    urls = {"refused": "http://127.0.0.1:9", "unknown name": "http://server.invalid"}
    url = urls.get(problem, upstream.url)
    port = await start(url)
    status, _, body = await exchange(port, f"POST {PATHS[kind]}", body=BODY)
    assert status == "HTTP/1.1 502 Bad Gateway"
    error = json.loads(body)
    assert (error.get("type") == "error") == (kind == "messages")
    assert url in error["error"]["message"]
    assert "--upstream" in error["error"]["message"]
    assert len(upstream.requests) <= 1


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("POST /v1/messages", b"not JSON"),
        ("POST /v1/messages", b"\xff\xfe"),
        ("POST /v1/chat/completions", b'{"messages": 3}'),
        ("POST /v1/responses", b"[" * 9000),
        ("POST /v1/unknown?a=/v1/messages", b"{}"),
        ("GET /openai/", b""),
        ("POST /v1/messages", b""),
    ],
)
async def test_what_the_gateway_does_not_understand_passes(
    line: str, body: bytes, upstream: RawServer, start: Start
) -> None:
    """The server decides about bad bodies and unknown paths."""
    upstream.answer = response(b'{"error": "theirs"}', "400 Bad Request")
    port = await start(upstream.url)
    status, _, received = await exchange(port, line, body=body)
    assert (status, received) == ("HTTP/1.1 400 Bad Request", b'{"error": "theirs"}')
    sent = line.replace("/openai", "")
    assert (upstream.requests[0].line, upstream.requests[0].body) == (f"{sent} HTTP/1.1", body)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET http://example.com/v1/models", 400),
        ("GET //example.com/v1/models", 404),
        ("OPTIONS *", 400),
        ("POST /stats", 405),
    ],
)
async def test_targets_that_are_no_paths_are_refused(line: str, status: int, upstream: RawServer, start: Start) -> None:
    """The proxy connects to its servers only, also if the target of the request is another server."""
    port = await start(upstream.url)
    received, *_ = await exchange(port, line)
    assert received.split()[1] == str(status)


@pytest.mark.parametrize(
    ("headers", "host", "status"),
    [
        ((), "127.0.0.1:1234", 200),
        ((), "localhost", 200),
        ((), "[::1]:99", 200),
        ((), "LOCALHOST.:1", 200),
        (("Origin: http://localhost:3000",), "localhost", 200),
        ((), "evil.example", 403),
        ((), "127.0.0.1.evil.example", 403),
        ((), "localhost.evil.example:80", 403),
        ((), "10.0.0.1", 403),
        ((), "evil.example@127.0.0.1", 200),
        ((), "127.0.0.1@evil.example", 403),
        ((), "", 403),
        ((), "[::1", 403),
        (("Origin: https://evil.example",), "127.0.0.1", 403),
        (("Origin: null",), "127.0.0.1", 403),
        (("Origin: ",), "127.0.0.1", 403),
        (("Origin: http://localhost.evil.example",), "127.0.0.1", 403),
        (("Sec-Fetch-Site: cross-site",), "127.0.0.1", 403),
        (("Sec-Fetch-Site: none",), "127.0.0.1", 200),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/stats"])
async def test_web_pages_cannot_use_the_proxy(
    headers: tuple[str, ...], host: str, status: int, path: str, upstream: RawServer, start: Start
) -> None:
    """Requests with another Host, as after DNS rebinding, or of other sites are refused. Nothing is sent for them."""
    port = await start(upstream.url)
    received, *_ = await exchange(port, f"GET {path}", *headers, host=host)
    assert received.split()[1] == str(status)
    assert len(upstream.requests) == (status == 200 and path != "/stats")


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("GET /v1/models", (), 401),
        ("GET /stats", (), 401),
        ("GET /t/wrong/v1/models", (), 401),
        (f"GET /t/{TOKEN}x/v1/models", (), 401),
        (f"GET /t/{TOKEN[:-1]}/v1/models", (), 401),
        ("GET /t//v1/models", (), 401),
        ("GET /v1/models", ("X-Orch-Token: wrong",), 401),
        ("GET /v1/models", (f"Authorization: Bearer {TOKEN}",), 401),
        (f"GET /t/{TOKEN}/v1/models", (), 200),
        (f"GET /t/{TOKEN}/openai/v1/models?a=b", (), 200),
        (f"GET /t/{TOKEN}/stats", (), 200),
        ("GET /v1/models", (f"X-ORCH-TOKEN: {TOKEN}",), 200),
        ("GET /stats", (f"X-Orch-Token: {TOKEN}",), 200),
    ],
)
async def test_the_token_opens_the_proxy_and_is_not_passed_on(
    line: str, headers: tuple[str, ...], status: int, upstream: RawServer, start: Start
) -> None:
    """Clients send the token in a header or in the path. The server gets neither."""
    port = await start(upstream.url, token=TOKEN)
    received, _, body = await exchange(port, line, *headers, host="proxy.example")
    assert received.split()[1] == str(status)
    for request in upstream.requests:
        assert request.line.startswith("GET /v1/models")
        assert TOKEN not in str([value for name, value in request.headers if name.lower() != "authorization"])
    assert len(upstream.requests) == (status == 200 and "stats" not in line)
    assert TOKEN.encode() not in body


@pytest.mark.parametrize(
    ("line", "headers", "found"),
    [
        ("GET /v1/models", (), "openai /v1/models"),
        ("GET /v1/models", ("Anthropic-Version: 1",), "anthropic /v1/models"),
        ("GET /v1/models", ("X-Api-Key: k",), "anthropic /v1/models"),
        ("POST /v1/messages/batches?a=b", (), "anthropic /v1/messages/batches?a=b"),
        ("POST /v1/messages?beta=true", (), "anthropic /v1/messages?beta=true"),
        ("GET /anthropic/api/hello", (), "anthropic /api/hello"),
        ("GET /openai/v1/models", ("X-Api-Key: k",), "openai /v1/models"),
        ("GET /openai", (), "openai /"),
        ("GET /other/v1/x?y=/z", (), "other /base/v1/x?y=/z"),
        ("GET /versioned/v1/x", (), "versioned /api/v1/x"),
        ("GET /versioned/x", (), "versioned /api/v1/x"),
        ("GET /v1?x", ("X-Api-Key: k",), "anthropic /v1?x"),
    ],
)
async def test_each_request_reaches_its_server(line: str, headers: tuple[str, ...], found: str, start: Start) -> None:
    """The first part of the path names the server. Otherwise, keys of one provider never reach the other."""
    async with AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(RawServer()) for name in ("anthropic", "openai", "other", "versioned")
        }
        urls = {name: server.url for name, server in servers.items()}
        urls |= {"other": f"{urls['other']}/base/", "versioned": f"{urls['versioned']}/api/v1"}
        port = await start("http://127.0.0.1:9", *(f"{name}={url}" for name, url in urls.items()))
        await exchange(port, line, *headers)
        got = [(name, each.line.split()[1]) for name, server in servers.items() for each in server.requests]
    assert got == [tuple(found.split())]


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("name", ["ollama", "anthropc", "", "v2", "v1beta", "chat"])
async def test_a_request_with_an_unknown_server_name_is_sent_nowhere(
    kind: str, name: str, upstream: RawServer, start: Start
) -> None:
    """Its key and its prompt belong to another server. The error names the servers, and the option that adds one."""
    port = await start(upstream.url, f"local={upstream.url}")
    for request in (f"POST /{name}{PATHS[kind]}", f"GET /{name}?{PATHS[kind]}"):
        status, _, body = await exchange(port, request, "X-Api-Key: k", body=BODY)
        assert status == "HTTP/1.1 404 Not Found"
        assert upstream.requests == []
        message = json.loads(body)["error"]["message"]
        assert f"no model server {name!r}:" in message
        assert "/anthropic, /openai, /local or /v1" in message
        assert "orch proxy --upstream NAME=URL" in message


async def test_an_encoded_request_is_archived(upstream: RawServer, start: Start) -> None:
    """A body with gzip is decoded if the conversation is archived, and passes unchanged otherwise."""
    port = await start(upstream.url)
    for client in (CLIENTS["messages"]("s1"), CLIENTS["messages"]("s2")):
        body = gzip.compress(grown(client) if client.headers["x-session-id"] == "s1" else BODY)
        await exchange(port, "POST /v1/messages", *head_of(client), "Content-Encoding: gzip", body=body)
    archived, unchanged = upstream.requests
    assert b"subagent_id" in archived.body
    assert archived.header("content-encoding") == []
    assert (unchanged.body, unchanged.header("content-encoding")) == (body, ["gzip"])


@pytest.mark.parametrize("encoding", ["gzip", "br"])
async def test_encoded_responses_pass_unchanged(encoding: str, upstream: RawServer, start: Start) -> None:
    """The client gets the encoding that it accepts."""
    encoded = gzip.compress(b'{"usage": {"input_tokens": 1}}') if encoding == "gzip" else b"\x01\x02brotli"
    upstream.answer = response(encoded, "200 OK", "Content-Type: application/json", f"Content-Encoding: {encoding}")
    port = await start(upstream.url)
    _, headers, body = await exchange(port, "POST /v1/messages", f"Accept-Encoding: {encoding}", body=BODY)
    assert body == encoded
    assert ("Content-Encoding", encoding) in headers
    assert upstream.requests[0].header("accept-encoding") == [encoding]


async def test_web_sockets_pass_in_both_directions(start: Start) -> None:
    """Frames, subprotocols and headers of the handshake pass, and both sides can close."""
    seen: list[Any] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["realtime"])
        socket.headers["X-Turn"] = "t1"
        await socket.prepare(request)
        seen.append((request.path_qs, request.headers["Authorization"]))
        async for message in socket:
            seen.append(message.data)
            if message.data == "stop":
                break
            await (socket.send_bytes if message.type is aiohttp.WSMsgType.BINARY else socket.send_str)(message.data)
        await socket.close(code=4001, message=b"done")
        return socket

    app = web.Application()
    app.router.add_get("/v1/{rest:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    big = b"x" * 300_000
    try:
        port = await start(f"http://127.0.0.1:{runner.addresses[0][1]}")
        url = f"http://127.0.0.1:{port}/v1/responses?model=m"
        async with asyncio.timeout(SECONDS), aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {KEY}"}
            async with session.ws_connect(url, headers=headers, protocols=["realtime"]) as socket:
                assert socket.protocol == "realtime"
                for _ in range(5):
                    await socket.send_bytes(big)
                for _ in range(5):
                    assert await socket.receive_bytes() == big
                await socket.send_str("stop")
                closing = await socket.receive()
            assert (closing.type, closing.data) == (aiohttp.WSMsgType.CLOSE, 4001)
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect(url, headers={"Originator": "codex_cli_rs"})
            assert caught.value.status == 426
    finally:
        await runner.cleanup()
    assert seen == [("/v1/responses?model=m", f"Bearer {KEY}"), *[big] * 5, "stop"]


async def test_a_stream_of_gzip_files_is_read_whole(upstream: RawServer, start: Start) -> None:
    """A server that encodes each event for itself reaches the client of an archived conversation whole."""
    port = await start(upstream.url)
    client = CLIENTS["messages"]()
    body = grown(client)
    parts = [f'event: ping\ndata: {{"type": "ping", "n": {number}}}\n\n'.encode() for number in range(3)]
    upstream.answer = events(b"".join(map(gzip.compress, parts)), headers=("Content-Encoding: gzip",))
    *_, received = await exchange(port, "POST /v1/messages", *head_of(client), body=body)
    assert upstream.requests[-1].body != body
    assert b"".join(parts) in received


async def test_a_refused_upgrade_passes(upstream: RawServer, start: Start) -> None:
    """The response of a server without WebSocket reaches the client."""
    upstream.answer = response(b"no", "403 Forbidden")
    port = await start(upstream.url)
    asked = ("Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
    message = request_bytes("GET /v1/realtime", *asked).replace(b"Connection: close", b"Connection: Upgrade")
    async with connected(port) as (reader, writer), asyncio.timeout(SECONDS):
        writer.write(message)
        assert (await reader.readuntil(b"no")).startswith(b"HTTP/1.1 403 Forbidden")
    assert upstream.requests[0].header("upgrade") == ["websocket"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", ""])
async def test_keys_are_written_nowhere(
    url: str, upstream: RawServer, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither logs at the lowest level nor files contain a key, also after invalid requests and failures."""
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    upstream.answer = response(b"{}", "500 Internal Server Error")
    port = await start(url or upstream.url)
    client = CLIENTS["messages"]()
    body = grown(client)
    for bad in ((), ("Bad\x01Name: x",), (f"X: \x00{KEY}",)):
        await exchange(port, "POST /v1/messages", f"X-Api-Key: {KEY}", *bad, *head_of(client), body=body)
        await exchange(port, f"GET /v1/models?key={KEY}", f"Authorization: Bearer {KEY}", *bad)
    async with connected(port) as (reader, writer):
        writer.write(f"BAD {KEY}\r\n\r\n".encode())
        await reader.read()
    upstream.answer = response(b"{}", "200 OK", f"X-Echo: Bearer {KEY}\0")
    await exchange(port, "GET /v1/models", f"Authorization: Bearer {KEY}")
    assert KEY not in caplog.text
    assert files_with(tmp_path, b"Prompt 0")
    assert not files_with(tmp_path, KEY.encode())


def files_with(folder: Path, text: bytes) -> list[Path]:
    """Return the files below `folder` that contain `text`."""
    return [each for each in folder.rglob("*") if each.is_file() and text in each.read_bytes()]


async def test_a_proxy_of_the_environment_is_used(upstream: RawServer, start: Start) -> None:
    """HTTP_PROXY applies to the servers. Its password is for the proxy alone."""
    env = {"http_proxy": upstream.url.replace("http://", "http://user:word@")}
    port = await start("http://model.example", env=env)
    await exchange(port, "GET /v1/models")
    (request,) = upstream.requests
    assert request.line == "GET http://model.example/v1/models HTTP/1.1"
    assert len(request.header("proxy-authorization")) == 1


async def test_a_damaged_conversation_passes_with_a_warning(upstream: RawServer, start: Start, tmp_path: Path) -> None:
    """The server gets what the client sent, and the warning says which folder is damaged."""
    warnings: list[str] = []
    gateway = Gateway(FileStore(tmp_path / "conversations", config=TIGHT), warn=warnings.append)
    port = await start(upstream.url, gateway=gateway)
    client = CLIENTS["messages"]()
    body = grown(client)
    await exchange(port, "POST /v1/messages", *head_of(client), body=body)
    gateway.close()
    (folder,) = (path.parent for path in (tmp_path / "conversations").glob("*/gateway.jsonl"))
    (folder / "gateway.jsonl").unlink()
    (folder / "gateway.jsonl").mkdir()
    status, *_ = await exchange(port, "POST /v1/messages", *head_of(client), body=body)
    assert status == "HTTP/1.1 200 OK"
    assert b"subagent_id" in upstream.requests[0].body
    assert upstream.requests[1].body == body
    assert folder.name in warnings[0]
