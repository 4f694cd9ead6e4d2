from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.daemon.control_socket import ANY_VERSION, Client, ControlServer
from orch_protocol.core.errors import AgentNotFoundError
from orch_protocol.services.agents.lifecycle import Killed
from orch_protocol.wire.frames import VERSION


class Desk:
    """A handler whose requests wait for the test: `met` has the requests that began, and `open` lets them end."""

    def __init__(self) -> None:
        self.met: asyncio.Queue[str] = asyncio.Queue()
        self.open = asyncio.Event()
        self.dropped: asyncio.Queue[str] = asyncio.Queue()
        self.done: asyncio.Queue[str] = asyncio.Queue()
        self.clients: list[Client] = []

    async def __call__(self, method: str, params: msgspec.Raw, client: Client) -> Any:
        self.clients.append(client)
        if method == "echo":
            return msgspec.json.decode(params)
        if method == "missing":
            raise AgentNotFoundError("no agent 'x': see orch list")
        if method == "broken":
            raise RuntimeError("boom")
        if method == "surrogate":
            return Killed(("\ud800",))
        if method == "events":
            for number in range(3):
                client.send_event({"n": number})
            return "told"
        self.met.put_nowait(method)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.dropped.put_nowait(method)
            raise
        self.done.put_nowait(method)
        return {"method": method}


class Caller:
    """A client that sends and receives lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, id: int, method: str, params: Any = None, version: int = VERSION) -> None:
        self.raw(json.dumps({"id": id, "method": method, "params": params or {}, "version": version}).encode())

    def raw(self, line: bytes) -> None:
        self.writer.write(line + b"\n")

    async def hear(self) -> Any:
        async with asyncio.timeout(20):
            line = await self.reader.readline()
        return json.loads(line) if line else None

    async def ask(self, *arguments: Any, **named: Any) -> Any:
        self.say(*arguments, **named)
        return await self.hear()


Connect = Callable[[], Awaitable[Caller]]


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[tuple[ControlServer, Desk, Connect]]:
    desk = Desk()
    server = ControlServer(str(folder / "s"), desk, **options)
    callers: list[Caller] = []

    async def connect() -> Caller:
        callers.append(Caller(*await asyncio.open_unix_connection(folder / "s", limit=1 << 26)))
        return callers[-1]

    await server.start()
    try:
        yield server, desk, connect
    finally:
        desk.open.set()
        await server.close()
        for caller in callers:
            caller.writer.close()


async def test_request_reaches_the_handler_and_returns_its_result(tmp_path: Path) -> None:
    """The parameters are unchanged, and the response has the id of the request."""
    async with serving(tmp_path) as (_, desk, connect):
        caller = await connect()
        assert await caller.ask(7, "echo", {"a": [1, "é"]}) == {"id": 7, "result": {"a": [1, "é"]}}
        assert [(client.pid, client.uid) for client in desk.clients] == [(os.getpid(), os.getuid())]


async def test_second_start_keeps_the_open_socket(tmp_path: Path) -> None:
    """The first socket would otherwise stay open, and Python would warn about it."""
    async with serving(tmp_path) as (server, _, connect):
        before = os.stat(tmp_path / "s")
        await server.start()
        assert os.path.samestat(os.stat(tmp_path / "s"), before)
        assert (await (await connect()).ask(1, "echo", {})) == {"id": 1, "result": {}}
    gc.collect()  # filterwarnings turns a ResourceWarning into an error


async def test_events_precede_their_response(tmp_path: Path) -> None:
    """The events have the id of the request."""
    async with serving(tmp_path) as (_, _, connect):
        caller = await connect()
        caller.say(3, "events")
        assert [await caller.hear() for _ in range(4)] == [
            *({"id": 3, "event": {"n": number}} for number in range(3)),
            {"id": 3, "result": "told"},
        ]


async def test_error_response_has_type_message_and_exit_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An internal error is logged, and the connection stays open."""
    async with serving(tmp_path) as (_, _, connect):
        caller = await connect()
        assert await caller.ask(1, "missing") == {
            "id": 1,
            "error": {"type": "AgentNotFoundError", "message": "no agent 'x': see orch list", "exit_code": "3"},
        }
        # import-linter disables the logger.
        monkeypatch.setattr(logging.getLogger("orch.daemon.control_socket"), "disabled", False)
        with caplog.at_level(logging.ERROR):
            answer = await caller.ask(2, "broken")
        assert answer["error"] == {"type": "OrchError", "message": "RuntimeError: boom", "exit_code": "1"}
        assert '"method": "broken", "event": "request_failed"' in caplog.text
        assert (await caller.ask(3, "echo"))["id"] == 3


async def test_responses_are_sent_as_they_are_ready(tmp_path: Path) -> None:
    """A slow request does not delay the next request on the same connection."""
    async with serving(tmp_path) as (_, desk, connect):
        caller = await connect()
        caller.say(1, "query")
        assert await desk.met.get() == "query"
        assert (await caller.ask(2, "echo", {"x": 1}))["id"] == 2
        desk.open.set()
        assert await caller.hear() == {"id": 1, "result": {"method": "query"}}


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"id": "a", "method": "echo"}',
        b'{"id": 1}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"id":1,"method":"\\ud800"}',
    ],
)
async def test_malformed_line_gets_an_error_response(tmp_path: Path, line: bytes) -> None:
    """The response has the id 0, and the connection stays open."""
    async with serving(tmp_path) as (_, _, connect):
        caller = await connect()
        caller.raw(line)
        answer = await caller.hear()
        assert (answer["id"], answer["error"]["type"], answer["error"]["exit_code"]) == (0, "ProtocolError", "2")
        assert f"not a request ({len(line) + 1} bytes)" in answer["error"]["message"]
        caller.raw(b"")
        assert (await caller.ask(2, "echo"))["id"] == 2


async def test_ten_megabyte_messages_pass_both_ways(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, _, connect):
        caller = await connect()
        text = "x" * 10_000_000
        assert (await caller.ask(1, "echo", {"t": text}))["result"]["t"] == text


async def test_oversized_line_is_refused_and_skipped(tmp_path: Path) -> None:
    """The error states the limit, and the next line is served."""
    async with serving(tmp_path, max_line=1000) as (_, _, connect):
        caller = await connect()
        caller.raw(b"x" * 10_000)
        answer = await caller.hear()
        assert (answer["id"], answer["error"]["type"]) == (0, "MessageTooLargeError")
        assert "1000 bytes" in answer["error"]["message"]
        assert (await caller.ask(2, "echo"))["id"] == 2


async def test_other_version_is_an_error_naming_both(tmp_path: Path) -> None:
    """Only the requests that a client needs to replace the daemon are served."""
    async with serving(tmp_path, version=5) as (_, desk, connect):
        caller = await connect()
        error = (await caller.ask(1, "echo", version=4))["error"]
        assert error["type"] == "VersionMismatchError"
        assert "version 4" in error["message"]
        assert "version 5" in error["message"]
        desk.open.set()
        for number, method in enumerate(sorted(ANY_VERSION)):
            assert (await caller.ask(number, method, version=4))["result"] == {"method": method}


async def test_disconnect_cancels_waits(tmp_path: Path) -> None:
    """A pending query is cancelled, and a pending spawn is completed."""
    async with serving(tmp_path) as (_, desk, connect):
        caller = await connect()
        caller.say(1, "query")
        caller.say(2, "spawn")
        assert {await desk.met.get(), await desk.met.get()} == {"query", "spawn"}
        caller.writer.close()
        assert await desk.dropped.get() == "query"
        desk.open.set()
        assert await desk.done.get() == "spawn"
        assert desk.dropped.empty()


async def test_handler_learns_that_the_client_disconnected(tmp_path: Path) -> None:
    """All requests of a connection share the future."""
    async with serving(tmp_path) as (_, desk, connect):
        caller, other = await connect(), await connect()
        for each in (caller, caller, other):
            await each.ask(1, "echo")
        first, second, third = [client.disconnected for client in desk.clients]
        assert first is second is not None
        assert not first.done()
        caller.writer.close()
        async with asyncio.timeout(20):
            await first
        assert third is not None
        assert not third.done()


async def test_server_that_shuts_down_is_not_a_disconnected_client(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, desk, connect):
        caller = await connect()
        await caller.ask(1, "echo")
        await server.close()
        assert desk.clients[0].disconnected is not None
        assert not desk.clients[0].disconnected.done()


async def test_other_user_is_refused(tmp_path: Path) -> None:
    """The socket's peer credentials have the uid of the client."""
    async with serving(tmp_path, uid=os.getuid() + 1) as (_, desk, connect):
        caller = await connect()
        caller.say(1, "echo")
        error = (await caller.hear())["error"]
        assert f"uid {os.getuid()} may not use it" in error["message"]
        assert desk.clients == []


async def test_concurrent_requests_of_a_connection_are_bounded(tmp_path: Path) -> None:
    """With 256 pending requests, the next request is refused."""
    async with serving(tmp_path) as (_, desk, connect):
        caller = await connect()
        for number in range(257):
            caller.say(number, "query")
        answer = await caller.hear()
        assert answer["id"] == 256
        assert "256 requests are under way" in answer["error"]["message"]
        assert desk.met.qsize() == 256


async def test_lone_surrogates_in_a_response_are_replaced(tmp_path: Path) -> None:
    """Text that cannot be encoded does not fail the response."""
    async with serving(tmp_path) as (_, _, connect):
        assert (await (await connect()).ask(1, "surrogate"))["result"] == {"ids": ["\N{REPLACEMENT CHARACTER}"]}


async def test_leaving_server_finishes_requests_and_refuses_new_ones(tmp_path: Path) -> None:
    """A running request is answered. New requests get the error that makes a client connect to the next daemon."""
    async with serving(tmp_path) as (server, desk, connect):
        caller, waiting = await connect(), await connect()
        caller.say(1, "spawn")
        await desk.met.get()
        await server.leave()
        assert not (tmp_path / "s").exists()
        assert (await waiting.ask(5, "echo"))["error"]["type"] == "DaemonLeaving"
        desk.open.set()
        assert (await caller.hear())["result"] == {"method": "spawn"}
        await server.close()
        assert [(await c.hear())["error"]["type"] for c in (caller, waiting)] == ["DaemonLeaving"] * 2
        assert [await c.hear() for c in (caller, waiting)] == [None, None]


async def test_socket_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    """A server that closes does not remove the socket of a newer server at the same path."""
    async with serving(tmp_path) as (first, _, _), serving(tmp_path) as (_, _, connect):
        await first.close()
        assert (await (await connect()).ask(1, "echo"))["id"] == 1


async def test_backlogged_connection_learns_that_the_server_leaves(tmp_path: Path) -> None:
    """A connection that was not accepted yet gets an error response instead of a reset."""
    async with serving(tmp_path) as (server, desk, connect):
        late = await connect()
        await server.close()
        assert (await late.hear())["error"]["type"] == "DaemonLeaving"
        assert desk.clients == []


async def test_close_drops_requests_after_the_grace_period(tmp_path: Path) -> None:
    """A dropped request gets an error response, and the connection is closed."""
    async with serving(tmp_path) as (server, desk, connect):
        caller = await connect()
        caller.say(1, "spawn")
        await desk.met.get()
        await server.close(grace=0)
        assert await desk.dropped.get() == "spawn"
        cut = await caller.hear()
        assert (cut["id"], cut["error"]["type"]) == (1, "OrchError")
        assert "stopped before spawn was done" in cut["error"]["message"]
        assert (await caller.hear())["error"]["type"] == "DaemonLeaving"
        assert await caller.hear() is None


async def test_stale_socket_is_replaced_by_a_private_one(tmp_path: Path) -> None:
    """A file at the path is replaced. The new socket is private under any umask, and is removed at the end."""
    (tmp_path / "s").write_text("stale")
    before = os.umask(0)
    try:
        async with serving(tmp_path) as (_, _, connect):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
            assert (await (await connect()).ask(1, "echo"))["id"] == 1
    finally:
        os.umask(before)
    assert not (tmp_path / "s").exists()
