"""The worker's side of the tool host: starts it, sends it calls, checks its answers, and replaces it after its end.

Code of the agent runs in the tool host. Therefore every answer is decoded strictly, and an answer that a tool host of
orch would not send ends the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from orch_protocol.core.errors import NoValueError
from orch_protocol.core.taint import taint_label
from orch_protocol.core.values import MAX_BOUND_NAMES, BoundName, ValueInfo
from orch_protocol.policy.builtin_tools import facts_of
from orch_protocol.policy.policy import FilterRules
from orch_protocol.wire.frames import DECODE_ERRORS
from orch_protocol.wire.tool_host_messages import (
    LENGTH_BYTES,
    MAX_ANSWER,
    Answer,
    CallTool,
    CancelCall,
    DescribeNames,
    ExportedValue,
    ExportName,
    HostedOutput,
    NamesDescribed,
    Request,
    StartToolHost,
    ToolReturned,
    decode_answer,
    encode,
)

from ..policy.path_rules import opened_path, shell_context
from ..system.files import error_text
from ..system.threads import DAEMON_THREADS
from ..tools.api.base import ToolContext, ToolError, ToolOutput
from ..tools.values.store import NAME

__all__ = ["HostChannel", "StartHost", "ToolHostClient"]

CANCEL_SECONDS: Final = 3.0
"""Maximum time for the answer to a canceled request. After this time, the tool host is stuck and is ended."""
CLOSE_SECONDS: Final = 4.0
"""Maximum time in which a tool host ends its commands and itself."""
MAX_PATH_BYTES: Final = 4096
MAX_IMAGE_NAME: Final = 255
PYTHON: Final = "run_python"

ENDED: Final = (
    "The tool host, the process that runs the agent's tools, ended before the call was done{why}. The call may have "
    "run in part. {lost}The next call starts a new tool host."
)
REPLACED: Final = "[The tool host, the process that runs the agent's tools, ended after an earlier call{why}. {lost}]"
LOST_PYTHON: Final = "The variables of run_python are lost. "
LOST_JOBS: Final = "Its background jobs have ended. "

AnswerType = TypeVar("AnswerType", ToolReturned, ExportedValue, NamesDescribed)


class HostChannel:
    """A started tool host: the stream socket to it, and the write end of its lifeline.

    The kernel kills the tool host when the lifeline is closed.
    """

    def __init__(self, connection: socket.socket, lifeline: int) -> None:
        self.connection = connection
        self.process: subprocess.Popen[bytes] | None = None
        """The process, if it is a child of this process."""
        self._lifeline = lifeline

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for the end of the process, which closes the read end of its lifeline."""
        poller = select.poll()
        poller.register(self._lifeline, 0)
        poller.poll(seconds * 1000)

    def kill(self) -> None:
        """Kill the process and release its descriptors. Idempotent."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
            self.connection.close()
            if self.process is not None:
                self.process.kill()
                self.process.wait()


StartHost = Callable[[], Awaitable[HostChannel]]
"""A function that starts a tool host. It raises OSError on failure."""


class ToolHostEnded(ToolError):
    """The tool host ended before it answered."""


class ToolHostClient:
    """The tool host of one agent. The first call starts the process with `start`, and so does the first after its end.

    `umask` and `hides_paths` are those of `StartToolHost`.
    """

    def __init__(self, start: StartHost, *, umask: int | None, hides_paths: bool) -> None:
        self._start, self._umask, self._hides_paths = start, umask, hides_paths
        self._host: _RunningHost | None = None
        self._starting = asyncio.Lock()
        self._code_ran = False
        self._note = ""
        """What the next result tells about the end of the last process."""
        self._closed = False

    async def call(self, tool: str, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        """Run the built-in tool `tool` and return its result.

        Raise ToolError if the tool host cannot be started, or ends before it answers.
        """
        rules = await self._filter_rules(tool, input, context) if facts_of(tool).filters_files else None
        host = await self._running(context)
        while not await host.is_responsive():  # A call sent now would be lost with the process.
            host = await self._running(context)
        code_ran, self._code_ran = self._code_ran, False
        host.runs_python |= tool == PYTHON
        host.runs_jobs |= bool(input.get("background"))
        request = CallTool(
            host.new_id(),
            tool,
            json.dumps(input).encode(),
            context.call_id,
            context.seconds,
            tuple(map(os.fsencode, context.credentials)),
            None if context.judged_path is None else os.fsencode(context.judged_path),
            rules,
            code_ran,
        )
        output = _tool_output((await host.request(request, ToolReturned)).output)
        note, self._note = self._note, ""
        return replace(output, text=f"{output.text}\n{note}".lstrip()) if note else output

    async def export(self, name: str, context: ToolContext) -> ValueInfo:
        """Store the variable or handle `name` in a file, and describe it. Raise NoValueError on failure."""
        try:
            host = await self._running(context)
            result = (await host.request(ExportName(host.new_id(), name), ExportedValue)).result
        except ToolError as error:
            raise NoValueError(str(error)) from error
        if result.value is None:
            raise NoValueError(result.error.message if result.error is not None else f"{name!r} has no value")
        return result.value

    async def bound_names(self) -> dict[str, BoundName]:
        """Return the variables that the agent's code has bound. Empty if no tool host is running, or if it ends."""
        if self._host is None or not self._host.runs_python:
            return {}
        try:
            return (await self._host.request(DescribeNames(self._host.new_id()), NamesDescribed)).names
        except ToolHostEnded:
            return {}

    def code_ran(self) -> None:
        """Note that code of the agent ran, and may have changed any file."""
        self._code_ran = True

    def close(self) -> None:
        """Ask the tool host to end its commands and itself, and kill it after some seconds."""
        self._closed = True
        if self._host is not None:
            self._host.close()

    async def _running(self, context: ToolContext) -> _RunningHost:
        async with self._starting:
            if self._host is None:
                if self._closed:
                    raise ToolError("Nothing was run: the agent is ending.")
                try:
                    channel = await self._start()
                except OSError as error:
                    raise ToolError(
                        f"Nothing was run: the tool host, the process that runs the agent's tools, cannot be started: "
                        f"{error_text(error)}."
                    ) from error
                host = _RunningHost(channel, self._ended)
                try:
                    await host.open(self._start_message(context))
                except BaseException:  # The call was canceled, or the message has no encoding.
                    channel.kill()
                    raise
                self._host = host
            return self._host

    async def _filter_rules(self, tool: str, input: dict[str, Any], context: ToolContext) -> FilterRules | None:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(DAEMON_THREADS, _filter_rules, tool, input, context)

    def _start_message(self, context: ToolContext) -> StartToolHost:
        return StartToolHost(
            agent_id=context.agent_id,
            cwd=str(context.cwd),
            env=dict(context.env),
            folder=None if context.folder is None else str(context.folder),
            umask=self._umask,
            sandbox=context.sandbox,
            policy=context.policy,
            orch_folders=context.orch_folders,
            in_process=context.in_process,
            hides_paths=self._hides_paths,
            granted=tuple(context.granted),
        )

    def _ended(self, host: _RunningHost, why: str) -> None:
        if self._host is host:
            self._host = None
        lost = host.lost
        if lost and not host.was_used_at_end:
            self._note = REPLACED.format(why=why, lost=lost.rstrip())


class _RunningHost:
    """One process of a tool host. `on_end` is called once after its end, with the reason as part of a sentence."""

    def __init__(self, channel: HostChannel, on_end: Callable[[_RunningHost, str], None]) -> None:
        self.runs_python = self.runs_jobs = False
        self.was_used_at_end = False
        """Whether a call was in progress when the process ended, and its result tells so."""
        self._channel, self._on_end = channel, on_end
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._waiting: dict[int, tuple[type[Answer], asyncio.Future[Any]]] = {}
        self._canceled: dict[int, type[Answer]] = {}
        self._reacted = asyncio.Event()
        """Set while no canceled request waits for its answer, and after the end of the process."""
        self._reacted.set()
        self._has_ended = False
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def lost(self) -> str:
        """What the end of the process destroys, as sentences."""
        return LOST_PYTHON * self.runs_python + LOST_JOBS * self.runs_jobs

    async def open(self, start: StartToolHost) -> None:
        """Send the first message, and begin to read answers."""
        data = encode(start)
        reader, self._writer = await asyncio.open_connection(sock=self._channel.connection)
        self._reading = self._loop.create_task(self._read(reader))
        self._writer.write(data)

    async def is_responsive(self) -> bool:
        """Wait for the answers to canceled requests. Return False if the process has ended, also if it was stuck."""
        await self._reacted.wait()
        return not self._has_ended

    def new_id(self) -> int:
        """Return the id of the next request."""
        self._last_id += 1
        return self._last_id

    async def request(self, request: Request, expected: type[AnswerType]) -> AnswerType:
        """Send `request` and return its answer. Raise ToolHostEnded if the process ends before it answers."""
        assert self._writer is not None
        try:
            data = encode(request)
        except (UnicodeEncodeError, OverflowError) as error:
            raise ToolError(f"The call cannot be sent to the tool host: {error}.") from error
        if self._has_ended:
            raise ToolHostEnded(ENDED.format(why="", lost=self.lost))
        future: asyncio.Future[AnswerType] = self._loop.create_future()
        self._waiting[request.id] = expected, future
        self._writer.write(data)
        try:
            return await future
        except asyncio.CancelledError:
            if self._waiting.pop(request.id, None) is not None:
                self._cancel(request.id, expected)
            raise

    def close(self) -> None:
        """Let the process end itself within CLOSE_SECONDS, then kill it."""
        if self._has_ended or self._writer is None:
            return
        try:
            self._writer.write_eof()
            self._channel.wait(CLOSE_SECONDS)
        except OSError:
            pass  # The process has ended.
        self._end("")

    def _cancel(self, id: int, expected: type[Answer]) -> None:
        assert self._writer is not None
        if not self._has_ended:
            self._canceled[id] = expected
            self._reacted.clear()
            self._writer.write(encode(CancelCall(id)))
            self._loop.call_later(CANCEL_SECONDS, self._end_if_stuck, id)

    def _end_if_stuck(self, id: int) -> None:
        if id in self._canceled:
            self._end(f": it did not react to a cancellation within {CANCEL_SECONDS:g} s")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        why = ""
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
                if size > MAX_ANSWER:
                    raise ValueError(f"{size:,} bytes; maximum {MAX_ANSWER:,}")
                self._accept(decode_answer(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (ValueError, *DECODE_ERRORS) as error:
            why = f": it sent an invalid answer ({error})"
        self._end(why)

    def _accept(self, answer: Answer) -> None:
        """Pass `answer` to the request that waits for it. Raise ValueError for an invalid answer."""
        expected, future = self._waiting.get(answer.id, (None, None))
        if expected is None:
            expected = self._canceled.get(answer.id)
        if expected is None:
            raise ValueError(f"no request has the id {answer.id}")
        if type(answer) is not expected:
            raise ValueError(f"{type(answer).__name__} instead of {expected.__name__}")
        _check(answer)
        self._waiting.pop(answer.id, None)
        self._canceled.pop(answer.id, None)
        if not self._canceled:
            self._reacted.set()
        if future is not None and not future.done():
            future.set_result(answer)

    def _end(self, why: str) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        waiting, self._waiting = self._waiting, {}
        self._canceled.clear()
        self._reacted.set()
        if self._writer is not None:
            self._writer.transport.abort()
        self._channel.kill()
        for _, future in waiting.values():
            if not future.done():
                self.was_used_at_end = True
                future.set_exception(ToolHostEnded(ENDED.format(why=why, lost=self.lost)))
        self._on_end(self, why)


def _filter_rules(tool: str, input: dict[str, Any], context: ToolContext) -> FilterRules | None:
    """Return the rules for the files that the call finds. This function reads the disk."""
    start = context.judged_path
    if start is None:
        opened = opened_path(tool, input, shell_context(context.cwd, context.env))
        start = opened.real if opened is not None else str(context.cwd)
    return context.rules_for_files(tool, start)


def _check(answer: Answer) -> None:
    """Raise ValueError if a tool host of orch would not send `answer`, although its types are valid."""
    match answer:
        case ToolReturned(output=HostedOutput(files_changed=files, images=images)):
            for image in images:
                if len(image.name) > MAX_IMAGE_NAME:
                    raise ValueError(f"an image name of {len(image.name):,} characters; maximum {MAX_IMAGE_NAME}")
            for file in files:
                path = PurePosixPath(os.fsdecode(file))
                if not path.parts or path.is_absolute() or ".." in path.parts:
                    raise ValueError(f"a changed file outside the working folder: {str(path)[:100]!r}")
                if b"\0" in file or len(file) > MAX_PATH_BYTES:
                    raise ValueError(f"not the path of a file: {str(path)[:100]!r}")
        case ExportedValue(result=result):
            if result.value is not None and not NAME.fullmatch(result.value.file):
                raise ValueError(f"not the file of a value: {result.value.file!r}")
        case NamesDescribed(names=names):
            if len(names) > MAX_BOUND_NAMES:
                raise ValueError(f"{len(names):,} names; maximum {MAX_BOUND_NAMES}")


def _tool_output(output: HostedOutput) -> ToolOutput:
    return ToolOutput(
        output.text,
        is_error=output.is_error,
        files_changed=tuple(map(os.fsdecode, output.files_changed)),
        local=output.local,
        marks=tuple(taint_label(each.bit, each.by) for each in output.marks),
        images=output.images,
    )
