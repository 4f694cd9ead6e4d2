"""The tool host's side of its connection, served in this process."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.errors import ErrorInfo
from orch_protocol.core.values import ExportResult
from orch_protocol.policy.policy import FilterRules
from orch_protocol.wire.tool_host_messages import (
    LENGTH_BYTES,
    Answer,
    CallTool,
    CancelCall,
    DescribeNames,
    ExportedValue,
    ExportName,
    HostedOutput,
    NamesDescribed,
    Request,
    ToolReturned,
    decode_answer,
    encode,
)
from orch_worker.tool_host import service
from orch_worker.tools.api.base import ToolContext, tool


class Worker:
    """The worker's end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._id = reader, writer, 0

    def send(self, request: Request) -> None:
        """Send a request."""
        self._writer.write(encode(request))

    async def receive(self) -> Answer:
        """Return the next answer."""
        return decode_answer(
            await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(LENGTH_BYTES)))
        )

    def begin(self, tool: str, *, code_ran: bool = False, rules: FilterRules | None = None, **input: Any) -> int:
        """Begin a call, and return its id."""
        self._id += 1
        self.send(CallTool(self._id, tool, json.dumps(input).encode(), "c", 30.0, (), None, rules, code_ran))
        return self._id

    async def call(self, tool: str, **input: Any) -> HostedOutput:
        """Return the result of a call."""
        id = self.begin(tool, **input)
        answer = await self.receive()
        assert isinstance(answer, ToolReturned)
        assert answer.id == id
        return answer.output

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    ours, theirs = socket.socketpair()
    context = ToolContext(tmp_path, agent_id="a1", folder=tmp_path)
    serving = asyncio.create_task(service.serve(theirs, context))
    worker = Worker(*await asyncio.open_connection(sock=ours))
    yield worker
    worker.close()
    await serving
    await asyncio.sleep(0)


async def test_results_and_errors_are_answers(worker: Worker, tmp_path: Path) -> None:
    """Unknown tools, invalid arguments and exceptions are error results with the text for the model."""
    (tmp_path / "a.txt").write_text("one\n")
    assert await worker.call("read_file", path="a.txt") == HostedOutput("     1\tone")
    missing = await worker.call("read_file", path="b.txt")
    assert (missing.is_error, missing.text.startswith("'b.txt' does not exist.")) == (True, True)
    assert "Invalid arguments for read_file" in (await worker.call("read_file", where="a.txt")).text
    assert "'fetch_url' is not a tool of a tool host" in (await worker.call("fetch_url", url="x")).text


async def test_names_that_are_not_text_have_an_encoding(worker: Worker) -> None:
    """Paths are bytes, and other text is sent without lone surrogates."""
    written = await worker.call("write_file", path="a\udcff.txt", content="x")
    assert written.files_changed == (os.fsencode("a\udcff.txt"),)
    assert not any(0xD800 <= ord(letter) <= 0xDFFF for letter in written.text)


async def test_rules_of_the_worker_filter_files(worker: Worker, tmp_path: Path) -> None:
    """The tool host applies the rules that come with the call, and returns the labels of the shown files."""
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("x\n")
    rules = FilterRules("list_files", ("b.txt",), {"untrusted": ("c.txt",)}, frozenset(), enforce_taint=True)
    output = await worker.call("list_files", rules=rules)
    assert output.text == "a.txt\nc.txt\n[1 files were skipped because of the policy]"
    assert [label.bit for label in output.marks] == ["untrusted"]


async def test_code_elsewhere_forgets_what_was_read(worker: Worker, tmp_path: Path) -> None:
    """A file that changed since it was read is overwritten only after code may have changed it."""
    file = tmp_path / "a.txt"
    file.write_text("one\n")
    await worker.call("read_file", path="a.txt")
    file.write_text("changed\n")
    assert (await worker.call("write_file", path="a.txt", content="two")).is_error
    assert not (await worker.call("write_file", path="a.txt", content="two", code_ran=True)).is_error


async def test_canceled_call_has_an_answer(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker learns that the call has ended, and a cancellation of another id has no effect."""
    ended = []

    @tool
    async def bash(command: str) -> str:
        """Wait for ever."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(command)
        return ""

    monkeypatch.setattr(service, "load", lambda _names: (bash,))
    started = worker.begin("bash", command="x")
    worker.send(CancelCall(99))
    worker.send(CancelCall(started))
    answer = await worker.receive()
    assert (answer.id, type(answer)) == (started, ToolReturned)
    assert ended in ([], ["x"])  # the call may end before it has begun


async def test_variables_are_described_and_exported(worker: Worker) -> None:
    """A variable that does not exist is an error."""
    await worker.call("run_python", code="x = [1, 2]")
    worker.send(DescribeNames(7))
    described = await worker.receive()
    assert isinstance(described, NamesDescribed)
    assert described.names["x"].description.kind == "list"
    worker.send(ExportName(8, "y"))
    assert await worker.receive() == ExportedValue(
        8,
        ExportResult(
            error=ErrorInfo(
                "NoValueError", "cannot read variable 'y': the agent has no run_python, so it has only handles"
            )
        ),
    )


async def test_result_above_the_limit_is_an_error(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker would end a tool host that sends more."""
    monkeypatch.setattr(service, "MAX_ANSWER", 100)
    output = await worker.call("run_python", code="print('x' * 1000)")
    assert output.is_error
    assert output.text.endswith("bytes; maximum 100.")
