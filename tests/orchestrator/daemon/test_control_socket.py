from __future__ import annotations

import asyncio
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
from orch_protocol.services.requests import Killed
from orch_protocol.wire.frames import VERSION


class Desk:
    """A handler whose requests wait for the test: `met` fills as they begin, `open` lets them end."""

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
                client.tell({"n": number})
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
    """A client that speaks lines."""

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


async def test_a_request_gets_its_answer(tmp_path: Path) -> None:
    """The params reach the handler as they are, the result comes back under the request's id."""
    async with serving(tmp_path) as (_, desk, connect):
        caller = await connect()
        assert await caller.ask(7, "echo", {"a": [1, "é"]}) == {"id": 7, "result": {"a": [1, "é"]}}
        assert [(client.pid, client.uid) for client in desk.clients] == [(os.getpid(), os.getuid())]


async def test_events_come_before_their_answer(tmp_path: Path) -> None:
    """Whatever the handler tells is a line under the request's id; the answer ends it."""
    async with serving(tmp_path) as (_, _, connect):
        caller = await connect()
        caller.say(3, "events")
        assert [await caller.hear() for _ in range(4)] == [
            *({"id": 3, "event": {"n": number}} for number in range(3)),
            {"id": 3, "result": "told"},
        ]


async def test_an_error_names_type_message_and_exit_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours keep their class; anything else is told, logged, and the next request is served."""
    async with serving(tmp_path) as (_, _, connect):
        caller = await connect()
        assert await caller.ask(1, "missing") == {
            "id": 1,
            "error": {"type": "AgentNotFoundError", "message": "no agent 'x': see orch list", "exit_code": "3"},
        }
        monkeypatch.setattr(logging.getLogger("orch.daemon.control_socket"), "disabled", False)  # import-linter sets it
        with caplog.at_level(logging.ERROR):
            answer = await caller.ask(2, "broken")
        assert answer["error"] == {"type": "OrchError", "message": "RuntimeError: boom", "exit_code": "1"}
        assert '"method": "broken", "event": "request_failed"' in caplog.text
        assert (await caller.ask(3, "echo"))["id"] == 3


async def test_answers_come_as_they_are_ready(tmp_path: Path) -> None:
    """A request that takes long does not hold up the next one on the same connection."""
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
async def test_a_line_that_is_no_request_is_answered(tmp_path: Path, line: bytes) -> None:
    """Whatever the bytes, the answer is an error with id 0 and the connection lives."""
    async with serving(tmp_path) as (_, _, connect):
        caller = await connect()
        caller.raw(line)
        answer = await caller.hear()
        assert (answer["id"], answer["error"]["type"], answer["error"]["exit_code"]) == (0, "ProtocolError", "2")
        assert f"not a request ({len(line) + 1} bytes)" in answer["error"]["message"]
        caller.raw(b"")
        assert (await caller.ask(2, "echo"))["id"] == 2


async def test_ten_megabytes_pass(tmp_path: Path) -> None:
    """A long prompt goes through whole, both ways."""
    async with serving(tmp_path) as (_, _, connect):
        caller = await connect()
        text = "x" * 10_000_000
        assert (await caller.ask(1, "echo", {"t": text}))["result"]["t"] == text


async def test_a_line_over_the_limit_is_refused_and_skipped(tmp_path: Path) -> None:
    """The error says the limit; what follows the long line is served."""
    async with serving(tmp_path, max_line=1000) as (_, _, connect):
        caller = await connect()
        caller.raw(b"x" * 10_000)
        answer = await caller.hear()
        assert (answer["id"], answer["error"]["type"]) == (0, "MessageTooLargeError")
        assert "1000 bytes" in answer["error"]["message"]
        assert (await caller.ask(2, "echo"))["id"] == 2


async def test_another_version_is_an_error_naming_both(tmp_path: Path) -> None:
    """Only what it takes to replace the daemon is answered to every version."""
    async with serving(tmp_path, version=5) as (_, desk, connect):
        caller = await connect()
        error = (await caller.ask(1, "echo", version=4))["error"]
        assert error["type"] == "VersionMismatchError"
        assert "version 4" in error["message"]
        assert "version 5" in error["message"]
        desk.open.set()
        for number, method in enumerate(sorted(ANY_VERSION)):
            assert (await caller.ask(number, method, version=4))["result"] == {"method": method}


async def test_a_client_that_leaves_drops_its_waits(tmp_path: Path) -> None:
    """A query nobody waits for any more is cancelled; a spawn that was asked for still happens."""
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


async def test_another_user_is_refused(tmp_path: Path) -> None:
    """The kernel says who connects; a uid that is not the daemon's gets an error and nothing else."""
    async with serving(tmp_path, uid=os.getuid() + 1) as (_, desk, connect):
        caller = await connect()
        caller.say(1, "echo")
        error = (await caller.hear())["error"]
        assert f"uid {os.getuid()} may not ask it" in error["message"]
        assert desk.clients == []


async def test_too_many_requests_at_once_are_refused(tmp_path: Path) -> None:
    """A connection holds a bounded number of requests."""
    async with serving(tmp_path) as (_, desk, connect):
        caller = await connect()
        for number in range(257):
            caller.say(number, "query")
        answer = await caller.hear()
        assert answer["id"] == 256
        assert "256 requests are under way" in answer["error"]["message"]
        assert desk.met.qsize() == 256


async def test_a_lone_surrogate_in_an_answer_is_replaced(tmp_path: Path) -> None:
    """Text that no encoding carries does not cost the answer."""
    async with serving(tmp_path) as (_, _, connect):
        assert (await (await connect()).ask(1, "surrogate"))["result"] == {"ids": ["\N{REPLACEMENT CHARACTER}"]}


async def test_leaving_takes_nothing_new_and_finishes_what_runs(tmp_path: Path) -> None:
    """While the server leaves, a running request is answered and a new one told to ask the next daemon."""
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


async def test_a_successors_socket_is_left_alone(tmp_path: Path) -> None:
    """A server whose folder was replaced while it ran does not take the next one's socket along."""
    async with serving(tmp_path) as (first, _, _), serving(tmp_path) as (_, _, connect):
        await first.close()
        assert (await (await connect()).ask(1, "echo"))["id"] == 1


async def test_whoever_connected_just_before_is_told(tmp_path: Path) -> None:
    """A connection that waits in the backlog when the server leaves is not cut without a word."""
    async with serving(tmp_path) as (server, desk, connect):
        late = await connect()
        await server.close()
        assert (await late.hear())["error"]["type"] == "DaemonLeaving"
        assert desk.clients == []


async def test_closing_ends_what_does_not_end_by_itself(tmp_path: Path) -> None:
    """After its grace, a request under way is dropped, told so, and the connection closed."""
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


async def test_a_socket_left_behind_is_replaced_by_a_private_one(tmp_path: Path) -> None:
    """A stale file at the path does not stop the server, and its own socket is for the user alone."""
    (tmp_path / "s").write_text("stale")
    before = os.umask(0)
    try:
        async with serving(tmp_path) as (_, _, connect):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
            assert (await (await connect()).ask(1, "echo"))["id"] == 1
    finally:
        os.umask(before)
    assert not (tmp_path / "s").exists()


async def test_events_of_a_request_come_before_its_answer(tmp_path: Path) -> None:
    """What the handler tells is sent under the request's id, in order."""

    async def handler(method: str, _: msgspec.Raw, client: Client) -> Any:
        client.tell({"n": 1})
        client.tell({"n": 2})
        return method

    path = str(tmp_path / "control.sock")
    server = ControlServer(path, handler)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(b'{"id": 3, "method": "watch"}\n')
        lines = [msgspec.json.decode(await reader.readline()) for _ in range(3)]
    finally:
        writer.close()
        await server.close()
    assert lines == [{"id": 3, "event": {"n": 1}}, {"id": 3, "event": {"n": 2}}, {"id": 3, "result": "watch"}]
