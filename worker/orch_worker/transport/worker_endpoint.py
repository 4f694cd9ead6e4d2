"""A worker's edge: its line to the root, with commands coming in and reports and calls going out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextvars import Context
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.spec import AgentSpec, WorkerBirth
from orch_protocol.core.errors import (
    AgentBusyError,
    ErrorInfo,
    OrchError,
    ProtocolError,
    QueryTimeoutError,
    error_from,
    error_info,
)
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Usage
from orch_protocol.core.prompts import PromptResult
from orch_protocol.core.values import ExportResult, ExportValue
from orch_protocol.resources.slash_commands import UserAction, UserActionResult
from orch_protocol.services.service import Service
from orch_protocol.session.tree import CompactRequest, CompactResult, EditResult, SessionEdit
from orch_protocol.wire.frames import MAX_BODY, VERSION, FrameChannel, encode_body
from orch_protocol.wire.tool_events import CallReport
from orch_protocol.wire.worker_messages import (
    AgentEvent,
    BranchSummarized,
    CancelCurrentTurn,
    EmptyBody,
    Hello,
    Init,
    Ping,
    Progress,
    Query,
    RateLimited,
    RetractSteering,
    RootCall,
    RootReply,
    SetSteeringModes,
    SteeringHeard,
    SteeringRetractedReply,
    SteerTurn,
    StopWorker,
    SummarizeBranch,
    TurnEvent,
    TurnFinished,
    WithdrawTools,
)

from ..agent.runtime import Runtime
from ..agent.steering import SteeringMessage
from ..agent.turn import CancelToken
from ..system.secrets import mask_secrets, secrets_of
from ..tools.api.root_client import RootClient
from .reliable_channel import ReliableChannel
from .turn_event_buffer import TurnEventBuffer

__all__ = ["Make", "RootConnection", "WorkerEndpoint"]

ROOT_CALL_SECONDS = 3600.0
CONNECT_SECONDS = 30.0
PROGRESS_SECONDS = 0.1
LEAVE_SECONDS = 2.0
LARGE = MAX_BODY // 2
"""Bytes of a call from which on it may go by way of a file."""

T = TypeVar("T")
P = TypeVar("P", bound=Struct)
R = TypeVar("R")
Make: TypeAlias = Callable[[AgentSpec, dict[str, str], RootClient, tuple[str, ...]], Runtime]


class RootConnection(Protocol):
    """Carries frames to the root."""

    def send(self, data: bytes) -> None:
        """Send one frame. Must not raise for the peer's sake."""

    def close(self) -> None:
        """Let what was sent leave, then end (at most 2 s)."""


class WorkerEndpoint:
    """Serves one agent over the line that `connect` opens with a callback for arriving frames.

    `enter` is called with the agent's spec before anything else of it; a process of its own goes to its folder. `make`
    makes the agent.
    """

    def __init__(
        self,
        connect: Callable[[Callable[[bytes], None]], RootConnection],
        *,
        birth: WorkerBirth,
        incarnation: int,
        spool: Path,
        enter: Callable[[AgentSpec], None] | None = None,
        make: Make = Runtime,
    ) -> None:
        self._make = make
        self._enter = enter
        self._birth = birth
        self._runtime: Runtime | None = None
        self._turn: asyncio.Task[None] | None = None
        self._compaction: asyncio.Task[None] | None = None
        """Somebody asked for it between turns: a turn waits for it."""
        self._asides: set[asyncio.Task[None]] = set()
        self._progress: Progress | None = None
        self._progress_due: asyncio.TimerHandle | None = None
        self._query, self._events = "", 0
        self._tale: TurnEventBuffer | None = None
        """What happened in the turn so far, while nobody watches it."""
        self._calls: dict[str, asyncio.Future[RootReply]] = {}
        self._stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._line = connect(self._on_data)
        self._courier = ReliableChannel(FrameChannel(incarnation, spool), self._line.send)

    async def serve(self) -> int:
        """Say hello, then serve until told to leave; return the exit code. Waits at most 30 s to be initialised."""
        self._courier.send("hello", Hello(self._birth.token, VERSION, os.getpid()))
        overdue = asyncio.get_running_loop().call_later(CONNECT_SECONDS, self._on_no_init)
        try:
            return await self._stopped
        finally:
            overdue.cancel()
            await self._leave()

    def stop(self, code: int = 0) -> None:
        """Leave with exit code `code`."""
        if not self._stopped.done():
            self._stopped.set_result(code)

    def report(self, phase: str, detail: str, step: int) -> None:
        """Tell the root what the agent does, if it still does it a moment from now; nobody waits for it to arrive."""
        self._progress = Progress(phase, detail, step)
        if self._progress_due is None:
            loop = asyncio.get_running_loop()
            self._progress_due = loop.call_later(PROGRESS_SECONDS, self._send_progress)

    def emit(self, query_id: str, kind: str, text: str, name: str, step: int, is_error: bool) -> None:
        """Tell the root what happened in the turn; it may be lost, which its number shows.

        While nobody watches it is kept for who may come yet.
        """
        if query_id != self._query:
            return
        self._events += 1
        event = TurnEvent(self._events, kind, text, name, step, is_error)  # type: ignore[arg-type]
        if self._tale is not None:
            self._tale.add(event)
        else:
            self._courier.send("event", event, query_id, reliable=False)

    def called(self, query_id: str, called: CallReport) -> None:
        """Tell the root what became of a call; what cannot be told is no reason for the call to fail."""
        try:
            self._courier.send("called", called, query_id)
        except OrchError as error:
            print(f"observers are not told of a call of {called.tool}: {error}", flush=True)

    def heard(self, steer_id: str) -> None:
        """Tell the root that what was said is in the conversation."""
        self._courier.send("steered", SteeringHeard(), steer_id)

    async def call_root(self, service: Service[P, R], params: P, seconds: float | None = None) -> R:
        """Call a service of the root and return its result. Raises the OrchError that the root answers with."""
        call_id = new_id()
        seconds = ROOT_CALL_SECONDS if seconds is None else seconds
        answer = self._calls[call_id] = asyncio.get_running_loop().create_future()
        try:
            payload = msgspec.Raw(encode_body(params))
            if len(payload) < LARGE:
                self._courier.send("root_call", RootCall(service.name, payload), call_id)
            else:
                await asyncio.create_task(self._send_large(RootCall(service.name, payload), call_id), context=Context())
            async with asyncio.timeout(seconds):
                reply: RootReply = await answer
        except TimeoutError:
            raise QueryTimeoutError(f"the root did not answer {service.name!r} within {seconds:g} s") from None
        finally:
            del self._calls[call_id]
            if not answer.done() or answer.cancelled():
                # The root must not take an answer for somebody who has given up.
                self._courier.send("cancel", CancelCurrentTurn(), call_id)
        if reply.error is not None:
            raise error_from(reply.error)
        return msgspec.msgpack.decode(reply.payload, type=service.result)

    async def _send_large(self, call: RootCall, call_id: str) -> None:
        """Send what goes by way of a file, in a task of its own: whoever asks may be held to other files."""
        self._courier.send("root_call", call, call_id)

    # Frames from the root.

    def _on_data(self, data: bytes) -> None:
        try:
            received = self._courier.receive(data)
        except ProtocolError as error:
            print(f"frame dropped: {error}", flush=True)
            return
        if received is not None:
            frame, body = received
            if isinstance(body, ErrorInfo):
                self._on_unreadable(frame.kind, frame.id, body)
            else:
                self._dispatch(frame.kind, frame.id, body)

    def _dispatch(self, kind: str, id: str, body: Struct) -> None:
        """Handle one frame of the root. `kind` decides where several kinds have an empty body."""
        match body:
            case Init():
                self._on_init(id, body)
            case Ping():
                self._on_ping(id)
            case Query():
                self._on_query(id, body)
            case SteerTurn():
                self._on_steer(id, body)
            case RetractSteering():
                self._on_unsay(id, body)
            case SetSteeringModes():
                self._on_hearing(body)
            case SummarizeBranch():
                self._on_sum_up(id, body)
            case CompactRequest():
                self._on_compact(id, body)
            case RateLimited():
                self._on_limit(body)
            case SessionEdit():
                self._on_edit(id, body)
            case UserAction():
                self._on_do(id, body)
            case ExportValue():
                self._on_export(id, body)
            case AgentEvent():
                self._on_happened(body)
            case WithdrawTools():
                self._on_narrow(body)
            case CancelCurrentTurn():
                self._on_cancel(body)
            case RootReply():
                self._on_root_reply(id, body)
            case StopWorker():
                self.stop()
            case EmptyBody() if kind == "watch":
                self._on_watch(id)
            case EmptyBody() if kind == "prompt":
                self._on_prompt(id)
            case EmptyBody() if kind == "drop":
                self._on_drop(id)
            case _:
                self._on_unexpected(id, body)

    def _on_unexpected(self, id: str, body: Struct) -> None:
        print(f"a root does not send {type(body).__name__} ({id}): dropped", flush=True)

    def _on_unreadable(self, kind: str, id: str, error: ErrorInfo) -> None:
        """A frame arrived without its body, and will not come again: whoever waits for what it asks for is told."""
        print(f"{kind} {id} cannot be read: {error.message}", flush=True)
        if kind in ("init", "query"):
            self._finish(id, TurnFinished(error=error))
        if kind == "init":
            self.stop(71)
        if kind == "root_reply":
            self._on_root_reply(id, RootReply(error=error))

    def _on_no_init(self) -> None:
        if self._runtime is None:
            print(f"no word from the root for {CONNECT_SECONDS:g} s", flush=True)
            self.stop(70)

    def _on_init(self, id: str, body: Init) -> None:
        try:
            if self._enter is not None:
                self._enter(body.spec)
            self._runtime = self._make(body.spec, self._birth.keys, self, body.orch_folders)
            for lane in body.crowded:
                self._runtime.gate.limit(lane)
            ready = self._runtime.ready(body.transcript)
        except Exception as error:
            import traceback

            traceback.print_exc()
            self._courier.send("finished", TurnFinished(error=error_info(error)), id)
            self.stop(71)
        else:
            self._courier.send("ready", ready)

    def _on_ping(self, id: str) -> None:
        self._courier.send("pong", EmptyBody(), id, reliable=False)

    def _on_query(self, id: str, body: Query) -> None:
        if self._stopped.done():
            return  # the next process is asked the same
        if self._runtime is None or self._in_turn:
            busy = AgentBusyError("the worker is in the middle of a turn; one query at a time")
            self._finish(id, TurnFinished(error=error_info(busy)))
            return
        self._query, self._events, self._tale = id, 0, None if body.stream else TurnEventBuffer()
        turn = self._run(self._runtime, self._runtime.begin(), id, body)
        self._turn = asyncio.get_running_loop().create_task(turn)

    def _on_watch(self, id: str) -> None:
        if id == self._query and self._tale is not None:
            tale, self._tale = self._tale, None
            self._courier.send("so_far", tale.so_far(id), id)

    def _on_steer(self, id: str, body: SteerTurn) -> None:
        if self._runtime is not None:
            self._runtime.steer(SteeringMessage(id, body.text), follow_up=body.follow_up)

    def _on_unsay(self, id: str, body: RetractSteering) -> None:
        gone = self._runtime.unsay(body.ids) if self._runtime is not None else ()
        self._courier.send("unsaid", SteeringRetractedReply(tuple(gone)), id)

    def _on_hearing(self, body: SetSteeringModes) -> None:
        if self._runtime is not None:
            self._runtime.hear(body.steering, body.follow_up)

    def _on_sum_up(self, id: str, body: SummarizeBranch) -> None:
        self._beside(self._sum_up(id, body))

    async def _sum_up(self, id: str, body: SummarizeBranch) -> None:
        try:
            if self._runtime is None:
                raise AgentBusyError("the agent is not up yet")
            summed = await self._runtime.sum_up(body)
        except Exception as error:
            summed = BranchSummarized(error=error_info(error))
        self._courier.send("summed", summed, id)

    def _on_compact(self, id: str, body: CompactRequest) -> None:
        if self._runtime is None or self._in_turn or _is_under_way(self._compaction):
            busy = AgentBusyError("the agent is in the middle of a turn, or being compacted: wait for that")
            self._courier.send("compacted", CompactResult(error=error_info(busy)), id)
        else:
            self._compaction = asyncio.get_running_loop().create_task(self._compact(self._runtime, id, body))

    async def _compact(self, runtime: Runtime, id: str, body: CompactRequest) -> None:
        try:
            answer = CompactResult(await runtime.compact(id, body))
        except Exception as error:
            answer = CompactResult(error=error_info(error))
        self._courier.send("compacted", answer, id)

    def _on_limit(self, body: RateLimited) -> None:
        if self._runtime is not None:
            self._runtime.gate.limit(body.lane)

    def _on_edit(self, id: str, body: SessionEdit) -> None:
        try:
            if self._runtime is None or self._in_turn or _is_under_way(self._compaction):
                raise AgentBusyError("the agent is in the middle of a turn; its session changes between turns")
            done = self._runtime.edit(body)
        except Exception as error:
            done = EditResult(error=error_info(error))
        self._courier.send("edited", done, id)

    def _on_prompt(self, id: str) -> None:
        self._beside(self._show_prompt(id))

    def _on_do(self, id: str, body: UserAction) -> None:
        self._beside(self._do(id, body)).set_name(id)

    def _on_drop(self, id: str) -> None:
        for doing in [each for each in self._asides if each.get_name() == id]:
            doing.cancel()

    def _beside(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Let `work` go on beside whatever else there is to do."""
        task = asyncio.get_running_loop().create_task(work)
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)
        return task

    async def _do(self, id: str, body: UserAction) -> None:
        try:
            if self._runtime is None:
                raise AgentBusyError("the worker is not up yet")
            from ..agent.user_actions import done  # most agents are never told to

            did = await done(self._runtime, body.deed, body.hooks)
        except Exception as error:
            did = UserActionResult(error=error_info(error))
        self._courier.send("did", did, id)

    async def _show_prompt(self, id: str) -> None:
        try:
            if self._runtime is None:
                raise AgentBusyError("the worker is not up yet")
            said = PromptResult(await self._runtime.prompt())
        except Exception as error:
            said = PromptResult(error=error_info(error))
        self._courier.send("prompted", said, id)

    def _on_export(self, id: str, body: ExportValue) -> None:
        exporting = asyncio.get_running_loop().create_task(self._export(id, body))
        self._asides.add(exporting)
        exporting.add_done_callback(self._asides.discard)

    async def _export(self, id: str, body: ExportValue) -> None:
        try:
            if self._runtime is None:
                raise AgentBusyError("the worker is not up yet")
            from ..tools.python.export import export  # by those who are asked for a value

            said = ExportResult(await export(self._runtime.context, body.name))
        except Exception as error:
            said = ExportResult(error=error_info(error))
        self._courier.send("exported", said, id)

    def _on_happened(self, body: AgentEvent) -> None:
        if self._runtime is not None:
            self._runtime.happened(body)

    def _on_narrow(self, body: WithdrawTools) -> None:
        if self._runtime is not None:
            self._runtime.toolbox.withdraw(body.withdrawn)

    def _on_cancel(self, body: CancelCurrentTurn) -> None:
        if self._runtime is not None:
            self._runtime.cancel(body.short)

    def _on_root_reply(self, id: str, body: RootReply) -> None:
        answer = self._calls.get(id)
        if answer is not None and not answer.done():
            answer.set_result(body)

    # Turns.

    def _send_progress(self) -> None:
        self._progress_due = None
        if self._progress is not None and self._in_turn:
            self._courier.send("progress", self._progress, reliable=False)

    @property
    def _in_turn(self) -> bool:
        return _is_under_way(self._turn)

    async def _run(self, runtime: Runtime, brake: CancelToken, query_id: str, query: Query) -> None:
        try:
            if self._compaction is not None:
                await asyncio.wait([self._compaction])
            finished = await runtime.query(query_id, query, brake)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if self._stopped.done() or (task is not None and task.cancelling()):
                raise
            own = OrchError("the turn was cancelled from within: a model or a hook awaited what had been cancelled")
            finished = TurnFinished(error=error_info(own), usage=getattr(error, "usage", None) or Usage())
        except Exception as error:
            finished = TurnFinished(error=error_info(error))
        self._finish(query_id, finished)
        if query_id == self._query:
            self._query, self._tale = "", None  # of a turn that is over nobody need be told

    def _finish(self, query_id: str, finished: TurnFinished) -> None:
        if finished.error is not None:
            told = mask_secrets(finished.error.message, secrets_of(self._birth.keys))
            finished = replace(finished, error=replace(finished.error, message=told))
        try:
            self._courier.send("finished", finished, query_id)
        except Exception as error:
            self._courier.send("finished", TurnFinished(error=ErrorInfo("ProtocolError", str(error))), query_id)

    async def _leave(self) -> None:
        if self._progress_due is not None:
            self._progress_due.cancel()
        if at_it := [task for task in (self._turn, self._compaction) if task is not None and not task.done()]:
            for task in at_it:
                task.cancel()
            await asyncio.wait(at_it, timeout=LEAVE_SECONDS)
        try:
            if self._runtime is not None:
                await self._runtime.farewell(LEAVE_SECONDS)
                self._runtime.close()
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._runtime.backend.close()
        except (OrchError, TimeoutError) as error:
            # The next process of this agent reads what there is.
            print(f"leaving all the same: {str(error) or 'its backend does not close'}", flush=True)
        finally:
            self._courier.flush()
            self._courier.close()
            self._line.close()


def _is_under_way(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done()
