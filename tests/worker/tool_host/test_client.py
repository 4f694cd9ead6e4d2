"""The worker's side of a tool host, which refuses answers that a tool host of orch would not send."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch_protocol.core.errors import ErrorInfo, NoValueError
from orch_protocol.core.messages import Image
from orch_protocol.core.taint import TaintLabel
from orch_protocol.core.values import BoundName, ExportResult, ValueDescription, ValueInfo
from orch_protocol.wire.tool_host_messages import (
    LENGTH_BYTES,
    MAX_ANSWER,
    MAX_PARTS,
    CallTool,
    CancelCall,
    ExportedValue,
    HostedOutput,
    NamesDescribed,
    Request,
    StartToolHost,
    ToolReturned,
    decode_request,
    decode_start,
    encode,
)
from orch_worker.tool_host import client as client_module
from orch_worker.tool_host.client import HostChannel, ToolHostClient
from orch_worker.tools.api.base import ToolContext, ToolError, ToolOutput

Answer = Callable[[Request], bytes]


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until `condition` holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition does not hold")


class Host:
    """A stand-in for a tool host: the other end of the socket and of the lifeline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lifeline: int) -> None:
        self._reader, self._writer, self._lifeline = reader, writer, lifeline
        self.start: StartToolHost | None = None

    async def receive(self) -> Request:
        """Return the next request."""
        if self.start is None:
            self.start = decode_start(await self._frame())
        return decode_request(await self._frame())

    async def _frame(self) -> bytes:
        return await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(LENGTH_BYTES)))

    def send(self, data: bytes) -> None:
        """Send bytes to the worker."""
        self._writer.write(data)

    def end(self) -> None:
        """End, as a killed process does."""
        self._writer.transport.abort()

    def close(self) -> None:
        """Release the descriptors."""
        self._writer.transport.abort()
        os.close(self._lifeline)

    @property
    def is_killed(self) -> bool:
        """Whether the worker has closed the lifeline, for which the kernel kills a tool host."""
        os.set_blocking(self._lifeline, False)
        try:
            return os.read(self._lifeline, 1) == b""
        except BlockingIOError:
            return False


class Hosts:
    """Starts stand-ins, and keeps them."""

    def __init__(self) -> None:
        self.all: list[Host] = []

    async def start(self) -> HostChannel:
        """Start a stand-in."""
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        self.all.append(Host(*await asyncio.open_connection(sock=theirs), reader))
        return HostChannel(ours, writer)

    async def next(self, number: int = 0) -> Host:
        """Return the stand-in `number` as soon as it is started."""
        await until(lambda: len(self.all) > number)
        return self.all[number]


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


@pytest.fixture
async def client(hosts: Hosts) -> AsyncIterator[ToolHostClient]:
    client = ToolHostClient(hosts.start, umask=0o22, hides_paths=True)
    yield client
    for host in hosts.all:
        host.close()
    client.close()
    for _ in range(3):  # the transports close in the next iterations of the loop
        await asyncio.sleep(0)


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(tmp_path, agent_id="a1", seconds=30.0, call_id="c1")


def begin(client: ToolHostClient, context: ToolContext, tool: str = "bash", **input: Any) -> asyncio.Task[ToolOutput]:
    """Begin a call."""
    return asyncio.create_task(client.call(tool, input, context))


async def answered(client: ToolHostClient, context: ToolContext, hosts: Hosts, output: HostedOutput) -> ToolOutput:
    """Return the result of a call whose answer is `output`."""
    call = begin(client, context, command="true")
    host = await hosts.next(len(hosts.all) and len(hosts.all) - 1)
    host.send(encode(ToolReturned((await host.receive()).id, output)))
    return await call


async def test_call_carries_its_arguments_and_context(
    client: ToolHostClient, context: ToolContext, hosts: Hosts
) -> None:
    """Arguments may contain any text and number, and paths any bytes. The first message describes the agent."""
    given = msgspec.structs.replace(context, credentials=("/k\udcff",))
    call = begin(client, given, command="\ud800", timeout=1 << 80)
    host = await hosts.next()
    request = await host.receive()
    assert isinstance(request, CallTool)
    assert json.loads(request.input) == {"command": "\ud800", "timeout": 1 << 80}
    assert (request.tool, request.call_id, request.credentials) == ("bash", "c1", (b"/k\xff",))
    assert host.start is not None
    assert (host.start.agent_id, host.start.umask, host.start.hides_paths) == ("a1", 0o22, True)
    host.send(encode(ToolReturned(request.id, HostedOutput("done"))))
    assert await call == ToolOutput("done")


async def test_answer_becomes_the_result(client: ToolHostClient, context: ToolContext, hosts: Hosts) -> None:
    """All parts of an answer reach the result. The text of a label becomes one plain line."""
    image = Image("image/png", "eA==")
    sent = HostedOutput("t", True, (b"a\xff",), True, (TaintLabel("untrusted", "x\n[y]"),), (image,))
    output = await answered(client, context, hosts, sent)
    labels = (TaintLabel("untrusted", "x\\n(y)"),)
    assert output == ToolOutput("t", True, ("a\udcff",), local=True, marks=labels, images=(image,))


def frame(value: Any) -> bytes:
    """Return any value as a frame."""
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(LENGTH_BYTES) + body


def export_of(request: Request, file: str) -> bytes:
    """Return an answer with an exported value in `file`."""
    value = ValueInfo(".h_001", "int", "", 1, (), "json", file, "d")
    return encode(ExportedValue(request.id, ExportResult(value)))


HOSTILE: dict[str, Answer] = {
    "not msgpack": lambda _: b"\0\0\0\1\xc1",
    "another type": lambda _: frame(["RootReply", 1]),
    "a number as text": lambda request: frame(["ToolReturned", request.id, [7]]),
    "an additional field": lambda request: frame(
        ["ToolReturned", request.id, ["x", False, [], False, [], [], {"usd": 1}]]
    ),
    "a taint bit that does not exist": lambda request: frame(
        ["ToolReturned", request.id, ["x", False, [], False, [{"bit": "trusted", "by": ""}]]]
    ),
    "an unknown id": lambda request: encode(ToolReturned(request.id + 1, HostedOutput("x"))),
    "id 0": lambda _: frame(["ToolReturned", 0, ["x"]]),
    "the answer of another request": lambda request: encode(NamesDescribed(request.id, {})),
    "a changed file outside": lambda request: encode(ToolReturned(request.id, HostedOutput("x", False, (b"../x",)))),
    "a changed file without a name": lambda request: encode(
        ToolReturned(request.id, HostedOutput("x", False, (b".",)))
    ),
    "a path with NUL": lambda request: encode(ToolReturned(request.id, HostedOutput("x", False, (b"a\0b",)))),
    "too many changed files": lambda request: encode(
        ToolReturned(request.id, HostedOutput("x", False, (b"a",) * (MAX_PARTS + 1)))
    ),
    "too many images": lambda request: encode(
        ToolReturned(request.id, HostedOutput("x", images=(Image("image/png", ""),) * (MAX_PARTS + 1)))
    ),
    "a long image name": lambda request: encode(
        ToolReturned(request.id, HostedOutput("x", images=(Image("image/png", "", "n" * 1000),)))
    ),
    "a changed absolute file": lambda request: encode(ToolReturned(request.id, HostedOutput("x", False, (b"/x",)))),
    "a huge size": lambda _: (MAX_ANSWER + 1).to_bytes(LENGTH_BYTES),
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
async def test_invalid_answer_ends_the_tool_host(
    client: ToolHostClient, context: ToolContext, hosts: Hosts, answer: Answer
) -> None:
    """All calls in progress fail with the reason, and the next call starts another tool host."""
    other, call = begin(client, context, command="1"), begin(client, context, command="2")
    host = await hosts.next()
    await host.receive()
    host.send(answer(await host.receive()))
    for each in (call, other):
        with pytest.raises(ToolError, match="ended before the call was done: it sent an invalid answer"):
            await each
    assert host.is_killed
    again = begin(client, context, command="3")
    host = await hosts.next(1)
    host.send(encode(ToolReturned((await host.receive()).id, HostedOutput("fresh"))))
    assert (await again).text == "fresh"


async def test_second_answer_to_a_call_ends_the_tool_host(
    client: ToolHostClient, context: ToolContext, hosts: Hosts
) -> None:
    """An answer is accepted once."""
    await answered(client, context, hosts, HostedOutput("one"))
    host = hosts.all[0]
    host.send(encode(ToolReturned(1, HostedOutput("two"))))
    call = begin(client, context, command="true")
    with pytest.raises(ToolError, match="no request has the id 1"):
        await call
    assert host.is_killed


@pytest.mark.parametrize("file", ["../../other/stash/h_001-0.json", "names.json", ""])
async def test_exported_file_must_be_a_file_of_a_value(
    client: ToolHostClient, context: ToolContext, hosts: Hosts, file: str
) -> None:
    """The root copies the file, so a tool host cannot choose another one."""
    call = asyncio.create_task(client.export("x", context))
    host = await hosts.next()
    host.send(export_of(await host.receive(), file))
    with pytest.raises(NoValueError, match="not the file of a value"):
        await call


async def test_failed_export_is_one_kind_of_error(client: ToolHostClient, context: ToolContext, hosts: Hosts) -> None:
    """A tool host cannot choose the class of an exception."""
    call = asyncio.create_task(client.export("x", context))
    host = await hosts.next()
    error = ErrorInfo("BudgetExceededError", "no x")
    host.send(encode(ExportedValue((await host.receive()).id, ExportResult(error=error))))
    with pytest.raises(NoValueError, match="no x"):
        await call


async def test_names_are_asked_only_after_python_ran(
    client: ToolHostClient, context: ToolContext, hosts: Hosts
) -> None:
    """An agent that ran no Python starts no tool host for its variables, and too many names are refused."""
    assert await client.bound_names() == {}
    assert hosts.all == []
    call = begin(client, context, "run_python", code="x = 1")
    host = await hosts.next()
    host.send(encode(ToolReturned((await host.receive()).id, HostedOutput(""))))
    await call
    names = {str(number): BoundName(number, ValueDescription("int")) for number in range(501)}
    asked = asyncio.create_task(client.bound_names())
    host.send(encode(NamesDescribed((await host.receive()).id, names)))
    assert await asked == {}
    assert host.is_killed


@pytest.mark.parametrize(
    ("tool", "input", "lost"),
    [
        ("run_python", {"code": "1"}, "The variables of run_python are lost."),
        ("bash", {"command": "sleep 9", "background": True}, "Its background jobs have ended."),
        ("bash", {"command": "true"}, ""),
    ],
)
async def test_end_during_a_call_says_what_is_lost(
    client: ToolHostClient, context: ToolContext, hosts: Hosts, tool: str, input: dict[str, Any], lost: str
) -> None:
    """The result names only state that existed."""
    call = begin(client, context, tool, **input)
    host = await hosts.next()
    await host.receive()
    host.end()
    with pytest.raises(ToolError) as caught:
        await call
    sentences = ("The variables of run_python are lost.", "Its background jobs have ended.")
    assert [each for each in sentences if each in str(caught.value)] == ([lost] if lost else [])
    assert "The next call starts a new tool host." in str(caught.value)


async def test_end_between_calls_is_told_with_the_next_result(
    client: ToolHostClient, context: ToolContext, hosts: Hosts
) -> None:
    """The note stands at the end of the next result, once."""
    call = begin(client, context, "run_python", code="1")
    host = await hosts.next()
    host.send(encode(ToolReturned((await host.receive()).id, HostedOutput("1"))))
    await call
    host.end()
    await until(lambda: host.is_killed)
    for number, expected in ((1, "The variables of run_python are lost.]"), (2, "x")):
        again = begin(client, context, command="true")
        host = await hosts.next(1)
        host.send(encode(ToolReturned((await host.receive()).id, HostedOutput("x"))))
        text = (await again).text
        assert text.startswith("x")
        assert text.endswith(expected), number


async def test_cancellation_reaches_the_tool_host(client: ToolHostClient, context: ToolContext, hosts: Hosts) -> None:
    """The late answer to a canceled call is accepted and ignored."""
    call = begin(client, context, command="sleep 9")
    host = await hosts.next()
    request = await host.receive()
    call.cancel()
    assert await host.receive() == CancelCall(request.id)
    host.send(encode(ToolReturned(request.id, HostedOutput("late"))))
    again = begin(client, context, command="true")
    host.send(encode(ToolReturned((await host.receive()).id, HostedOutput("x"))))
    assert (await again).text == "x"
    assert len(hosts.all) == 1


async def test_tool_host_that_ignores_a_cancellation_is_ended(
    client: ToolHostClient, context: ToolContext, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that holds the interpreter lock cannot block later calls."""
    monkeypatch.setattr(client_module, "CANCEL_SECONDS", 0.0)
    call = begin(client, context, "run_python", code="1")
    host = await hosts.next()
    await host.receive()
    call.cancel()
    await until(lambda: host.is_killed)
    again = begin(client, context, command="true")
    host = await hosts.next(1)
    host.send(encode(ToolReturned((await host.receive()).id, HostedOutput("x"))))
    assert "did not react to a cancellation within 0 s. The variables of run_python are lost." in (await again).text


async def test_call_after_a_cancellation_waits_for_the_reaction(
    client: ToolHostClient, context: ToolContext, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not sent to a stuck tool host, with which it would be lost, but to the next one."""
    monkeypatch.setattr(client_module, "CANCEL_SECONDS", 0.0)
    call = begin(client, context, "run_python", code="1")
    stuck = await hosts.next()
    request = await stuck.receive()
    call.cancel()
    again = begin(client, context, "write_file", path="w.txt", content="x")
    assert await stuck.receive() == CancelCall(request.id)
    host = await hosts.next(1)
    assert stuck.is_killed
    host.send(encode(ToolReturned((await host.receive()).id, HostedOutput("written"))))
    assert (await again).text.startswith("written\n[The tool host")


async def test_failed_start_runs_nothing(context: ToolContext) -> None:
    """The result names the reason, and the next call tries again."""
    starts: list[Callable[[], Awaitable[HostChannel]]] = []

    async def start() -> HostChannel:
        starts.append(start)
        raise OSError(11, "no process left")

    client = ToolHostClient(start, umask=None, hides_paths=False)
    for _ in range(2):
        with pytest.raises(ToolError, match=r"^Nothing was run: the tool host, .* cannot be started: no process left"):
            await client.call("bash", {}, context)
    assert len(starts) == 2


async def test_code_elsewhere_is_reported_once(client: ToolHostClient, context: ToolContext, hosts: Hosts) -> None:
    """The next call tells the tool host to forget the states of files."""
    client.code_ran()
    seen = []
    for _ in range(2):
        call = begin(client, context, "read_file", path="a")
        host = await hosts.next()
        request = await host.receive()
        assert isinstance(request, CallTool)
        seen.append(request.code_ran)
        host.send(encode(ToolReturned(request.id, HostedOutput(""))))
        await call
    assert seen == [True, False]
