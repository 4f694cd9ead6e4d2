"""The tool host's side: runs the calls of one agent, and answers requests of the worker."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from orch_protocol.core.errors import error_info
from orch_protocol.core.text import scrub
from orch_protocol.core.values import ExportResult
from orch_protocol.policy.builtin_tools import HOSTED
from orch_protocol.policy.sandbox import RUN_CODE, UNCONFINED
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
    decode_request,
    decode_start,
    encode,
)

from ..sandbox.launcher import receive_exactly
from ..sandbox.launcher_client import fork_launcher
from ..tools.api.base import ToolContext, ToolOutput
from ..tools.dispatch.error_text import exception_text
from ..tools.dispatch.presets import CATEGORIES, load
from ..tools.dispatch.result_limits import captured_text
from ..tools.files.read_stamps import ReadStamps
from ..tools.shell.sandboxed_exec import CommandSandbox
from .hide_paths import hide_paths

RUN_COMMANDS: Final = (RUN_CODE | frozenset(CATEGORIES["git"])) - {UNCONFINED}
"""Tools that start commands with hidden paths."""

__all__ = ["enter", "receive_start", "serve"]


def receive_start(connection: socket.socket) -> StartToolHost | None:
    """Wait for the first message of the worker. Return None if the worker closed the connection."""
    head = receive_exactly(connection, LENGTH_BYTES)
    body = receive_exactly(connection, int.from_bytes(head)) if head else b""
    return decode_start(body) if body else None


def enter(start: StartToolHost) -> ToolContext:
    """Prepare this process, which must have only one thread, for the agent. Return the context of its calls."""
    if start.umask is not None:
        os.umask(start.umask)
    try:
        os.chdir(start.cwd)
    except OSError as error:
        print(f"cannot change to folder {start.cwd}: {error.strerror}", flush=True)  # Tools report this error too.
    context = ToolContext(
        cwd=Path(start.cwd),
        env=start.env,
        agent_id=start.agent_id,
        folder=None if start.folder is None else Path(start.folder),
        sandbox=start.sandbox,
        policy=start.policy,
        orch_folders=start.orch_folders,
        in_process=start.in_process,
    )
    context.tool_state.get("granted", lambda: frozenset(start.granted))
    if start.hides_paths:
        hide_paths(context)
    if start.sandbox.covers_paths and not RUN_COMMANDS.isdisjoint(start.granted):
        # From now on, this process has threads, and another launcher must be started as a program.
        context.agent_object(CommandSandbox).forked_launcher = fork_launcher()
    return context


async def serve(connection: socket.socket, context: ToolContext) -> None:
    """Answer requests until the worker closes its end. Then end all commands and jobs."""
    reader, writer = await asyncio.open_connection(sock=connection)
    service = _Service(context, writer)
    try:
        while True:
            size = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
            service.handle(decode_request(await reader.readexactly(size)))
    except (asyncio.IncompleteReadError, OSError):
        pass  # The worker closed its end.
    finally:
        context.tool_state.close()
        writer.close()


class _Service:
    def __init__(self, context: ToolContext, writer: asyncio.StreamWriter) -> None:
        self._context, self._writer = context, writer
        self._tasks: dict[int, asyncio.Task[Answer]] = {}

    def handle(self, request: Request) -> None:
        """Start the work of `request`, which sends the answer."""
        match request:
            case CancelCall(id):
                if (task := self._tasks.get(id)) is not None:
                    task.cancel()
            case CallTool(id):
                self._begin(id, self._call(request), ToolReturned(id, HostedOutput("", is_error=True)))
            case ExportName(id):
                self._begin(id, self._export(request), ExportedValue(id, ExportResult()))
            case DescribeNames():
                from ..tools.python.bound_names import own_bound_names  # This import is slow and rarely needed.

                self._send(NamesDescribed(request.id, own_bound_names(self._context)))

    def _begin(self, id: int, work: Coroutine[None, None, Answer], if_canceled: Answer) -> None:
        """Do `work` in a task and send its answer. A canceled task is answered with `if_canceled`."""

        def finish(task: asyncio.Task[Answer]) -> None:
            del self._tasks[id]
            self._send(if_canceled if task.cancelled() else task.result())

        self._tasks[id] = task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(finish)

    async def _call(self, request: CallTool) -> ToolReturned:
        context = replace(
            self._context,
            seconds=request.seconds,
            call_id=request.call_id,
            credentials=tuple(map(os.fsdecode, request.credentials)),
            judged_path=None if request.judged_path is None else os.fsdecode(request.judged_path),
            filter_rules=request.filter_rules,
        )
        try:
            if request.code_ran:
                context.agent_object(ReadStamps).forget()
            output = await self._run(request, context)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # An exception of a tool must not end the other calls.
            output = ToolOutput(exception_text(error), is_error=True)
        return ToolReturned(request.id, _hosted_output(output))

    async def _run(self, request: CallTool, context: ToolContext) -> ToolOutput:
        if request.tool not in HOSTED:
            raise ValueError(f"{request.tool!r} is not a tool of a tool host")
        [tool] = load((request.tool,))
        return await tool.run(context, json.loads(request.input))

    async def _export(self, request: ExportName) -> ExportedValue:
        from ..tools.python.export import export_own  # This import is slow and rarely needed.

        try:
            result = ExportResult(await export_own(self._context, request.name))
        except Exception as error:
            result = ExportResult(error=error_info(error))
        return ExportedValue(request.id, result)

    def _send(self, answer: Answer) -> None:
        data = encode(answer)
        if len(data) <= MAX_ANSWER:
            self._writer.write(data)
        else:
            assert isinstance(answer, ToolReturned)
            text = f"The result has {len(data):,} bytes; maximum {MAX_ANSWER:,}."
            self._writer.write(encode(ToolReturned(answer.id, HostedOutput(text, is_error=True))))


def _hosted_output(output: ToolOutput) -> HostedOutput:
    return HostedOutput(
        captured_text(output.text) if output.text else "",
        output.is_error,
        tuple(map(os.fsencode, output.files_changed)),
        output.local,
        tuple(replace(each, by=scrub(each.by)) for each in output.marks),
        output.images,
    )
