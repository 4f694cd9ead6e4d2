"""A strict, scripted model server on the loopback interface for the Messages, Chat Completions and Responses APIs.

The server refuses the requests that real servers refuse, and stores every request. It sends the answers of the test,
and can end a response in all the ways of real servers. No data leaves this machine.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

from msgspec import Struct, field

from wire import chat_rules, cloud_rules, messages_rules, responses_rules
from wire.rules import Refused, check_compatible

How = Literal["eof", "drop", "reset", "error", "garbage", "stall", "pings"]
APIS: dict[str, Any] = {
    "/v1/messages": messages_rules,
    "/v1/chat/completions": chat_rules,
    "/v1/responses": responses_rules,
}


class Request(Struct):
    """A request as it arrived. `refused` is the reason of a refusal, or None if the request was accepted."""

    path: str
    headers: dict[str, str]
    raw: bytes
    refused: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the body."""
        content: dict[str, Any] = json.loads(self.raw)
        return content


class Answer(Struct, kw_only=True):
    """The reaction of the server to one request.

    `blocks` are dicts: `{"text"}`, `{"thinking"}`, `{"redacted"}`, `{"call", "input", "id"?, "raw"?}`, `{"other"}`.
    `usage` has input, output, cache_read and cache_write. If `status` is set, the answer is an error of the type
    `kind`. After `after` events, the stream ends as `how` states; None means all events. If `how` is "pings", the
    server sends comments and empty lines until the client disconnects. `hangup` closes the connection before the first
    byte. The server waits for `gate` before it answers. `pause` is a number of events and what the server waits for
    after them. `crumbs` is the size in bytes of the pieces in which the stream is sent. `raw` contains bytes that
    replace the stream or the body of the error.
    """

    blocks: tuple[dict[str, Any], ...] = ()
    stop: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    status: int = 200
    kind: str = "api_error"
    message: str = "something happened"
    headers: dict[str, str] = field(default_factory=dict)
    after: int | None = None
    how: How = "eof"
    hangup: bool = False
    gate: asyncio.Event | None = None
    pause: tuple[int, asyncio.Event] | None = None
    crumbs: int = 0
    raw: tuple[bytes, ...] | None = None


def say(text: str, **more: Any) -> Answer:
    """Return an answer with this text."""
    return Answer(blocks=({"text": text},), **more)


def call(*calls: dict[str, Any], text: str = "", thinking: str = "", **more: Any) -> Answer:
    """Return an answer with `calls`. Each call is a dict with `call`, `input` and an optional `id`."""
    before = ({"thinking": thinking},) if thinking else ()
    return Answer(blocks=(*before, *(({"text": text},) if text else ()), *calls), **more)


def fail(status: int, kind: str = "api_error", message: str = "something happened", **headers: str) -> Answer:
    """Return an error answer. In the names of headers, underscores are replaced by dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status=status, kind=kind, message=message, headers=named)


class ModelServer:
    """A model server. It answers with the items of `script` in order, and then with the results of `otherwise`.

    Start it with `async with`. Its address is `url`. The server streams and refuses requests without streaming, because
    the backends of orch always stream. If `plain` is set, it also answers requests without streaming. If `compatible`
    is set, it refuses requests that compatible servers with strict chat templates refuse.
    """

    def __init__(
        self,
        *script: Answer,
        otherwise: Callable[[Request], Answer] | None = None,
        plain: bool = False,
        compatible: bool = False,
    ) -> None:
        self.plain = plain
        self.compatible = compatible
        self.script = deque(script)
        self.otherwise = otherwise or (lambda _: say("done"))
        self.requests: list[Request] = []
        self.connections = 0
        self.issued: dict[str, Any] = {}
        """Values that must come back unchanged, by their signature or id."""
        self.installed: list[str] = []
        """The models that the server lists as Ollama does."""
        self.facts: dict[str, Any] = {}
        """What the server says about its models: the answers to GET requests, by path."""
        self.arrived = asyncio.Event()
        """Set by every request. Clear it to wait for the next request."""
        self._lines: set[asyncio.StreamWriter] = set()
        self._number = 0

    @property
    def url(self) -> str:
        """The address of the server without a path."""
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    @property
    def refused(self) -> list[str]:
        """The reasons of all refusals."""
        return [request.refused for request in self.requests if request.refused is not None]

    async def __aenter__(self) -> ModelServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for line in list(self._lines):
            line.close()
        await self._server.wait_closed()

    def number(self) -> int:
        """Return the next number for an id."""
        self._number += 1
        return self._number

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._lines.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._lines.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request. Return whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Request(head[0].split()[1].partition("?")[0], headers, raw)
        if request.path == "/api/tags":
            writer.write(_json({"models": [{"name": name} for name in self.installed]}))
            return True
        if head[0].startswith("GET "):
            known = request.path in self.facts
            writer.write(_json(self.facts[request.path]) if known else _head(404, {"content-length": "0"}))
            return True
        self.requests.append(request)
        self.arrived.set()
        api = APIS.get(request.path) or cloud_rules.at(request.path)
        if api is None:
            answer = fail(404, "not_found_error", f"no such path: {request.path}")
        else:
            try:
                if self.compatible:
                    check_compatible(request.body)
                api.check(request.body | ({"stream": True} if self.plain else {}), request.headers, self.issued)
                answer = self.script.popleft() if self.script else self.otherwise(request)
            except Refused as refused:
                request.refused = str(refused)
                answer = fail(refused.status, refused.kind, str(refused))
        if answer.gate is not None:
            await answer.gate.wait()
        if answer.hangup:
            return False
        if answer.status != 200:
            error = (api or messages_rules).error(answer.kind, answer.message)
            body = json.dumps(error).encode() if answer.raw is None else b"".join(answer.raw)
            usual = {"content-type": "application/json", "content-length": str(len(body))}
            writer.write(_head(answer.status, usual | answer.headers) + body)
            await writer.drain()
            return True
        if self.plain and not request.body.get("stream"):
            writer.write(_json(api.whole(answer, request.body, self)))
            await writer.drain()
            return True
        return await self._stream(api, request, answer, writer)

    async def _stream(self, api: Any, request: Request, answer: Answer, writer: asyncio.StreamWriter) -> bool:
        usual = {"content-type": "text/event-stream", "transfer-encoding": "chunked"} | getattr(api, "headers", {})
        writer.write(_head(200, usual | answer.headers))
        sent = 0
        events = answer.raw if answer.raw is not None else api.events(answer, request.body, self)
        async for event in _each(events):
            if answer.after is not None and sent >= answer.after:
                return await self._break(api, answer, writer)
            if answer.pause is not None and sent == answer.pause[0]:
                await answer.pause[1].wait()
            sent += 1
            for piece in _pieces(event, answer.crumbs):
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                await writer.drain()
                if answer.crumbs:
                    await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _break(self, api: Any, answer: Answer, writer: asyncio.StreamWriter) -> bool:
        match answer.how:
            case "eof":
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return True
            case "error":
                event = api.error_event(answer.kind, answer.message)
                writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n0\r\n\r\n")
                await writer.drain()
                return True
            case "garbage":
                event = b"event: message\ndata: {half an eve\n\n"
                writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n0\r\n\r\n")
                await writer.drain()
                return True
            case "stall":
                await asyncio.Event().wait()
            case "pings":
                while True:
                    for ping in (b": ping\n\n", b"\n\n", b'event: ping\ndata: {"type": "ping"}\n\n'):
                        writer.write(f"{len(ping):x}\r\n".encode() + ping + b"\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.001)
            case "reset":
                line: socket.socket = writer.get_extra_info("socket")
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
        return False


async def _each(events: Any) -> AsyncIterator[bytes]:
    for event in events:
        yield event


def _pieces(event: bytes, size: int) -> list[bytes]:
    return [event[start : start + size] for start in range(0, len(event), size)] if size else [event]


def _json(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> bytes:
    body = json.dumps(data).encode()
    return (
        _head(status, {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}) + body
    )


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
