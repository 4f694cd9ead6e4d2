"""The worker's end of the connection to the root: receives commands, sends reports and calls services."""

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
    AddLabels,
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
    SteeringDelivered,
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
from .text_joiner import TextJoiner
from .turn_event_buffer import TurnEventBuffer

__all__ = ["MakeRuntime", "RootConnection", "WorkerEndpoint"]

ROOT_CALL_SECONDS = 3600.0
CONNECT_SECONDS = 30.0
PROGRESS_SECONDS = 0.1
SHUTDOWN_SECONDS = 2.0
LARGE_CALL_BYTES = MAX_BODY // 2
"""Minimum size in bytes of a call that may be sent through a file."""

T = TypeVar("T")
P = TypeVar("P", bound=Struct)
R = TypeVar("R")
MakeRuntime: TypeAlias = Callable[[AgentSpec, dict[str, str], RootClient, tuple[str, ...]], Runtime]


class RootConnection(Protocol):
    """A connection that sends frames to the root."""

    def send(self, data: bytes) -> None:
        """Send one frame. This method must not raise if the peer fails."""

    def close(self) -> None:
        """Send all pending frames, then close the connection, within 2 s."""


class WorkerEndpoint:
    """Serves one agent over the connection from `connect`. `connect` takes a callback for received frames.

    First, `enter` is called with the agent's spec. In a separate process, `enter` changes to the agent's folder. Then
    `make` creates the agent.
    """

    def __init__(
        self,
        connect: Callable[[Callable[[bytes], None]], RootConnection],
        *,
        birth: WorkerBirth,
        incarnation: int,
        spool: Path,
        enter: Callable[[AgentSpec], None] | None = None,
        make: MakeRuntime = Runtime,
    ) -> None:
        self._make = make
        self._enter = enter
        self._birth = birth
        self._runtime: Runtime | None = None
        self._turn: asyncio.Task[None] | None = None
        self._compaction: asyncio.Task[None] | None = None
        """The task of a requested compaction between turns. The next turn waits for this task."""
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._progress: Progress | None = None
        self._progress_due: asyncio.TimerHandle | None = None
        self._query, self._events = "", 0
        self._event_buffer: TurnEventBuffer | None = None
        """Events of the current turn. The events are kept until a client watches the turn."""
        self._text = TextJoiner(self._send_text, asyncio.get_running_loop().call_later)
        self._text_step = 0
        self._calls: dict[str, asyncio.Future[RootReply]] = {}
        self._stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._connection = connect(self._on_data)
        self._channel = ReliableChannel(FrameChannel(incarnation, spool), self._connection.send)

    async def serve(self) -> int:
        """Send "hello", serve until the end is requested, and return the exit code.

        Stop if no "init" arrives within 30 s.
        """
        self._channel.send("hello", Hello(self._birth.token, VERSION, os.getpid()))
        overdue = asyncio.get_running_loop().call_later(CONNECT_SECONDS, self._on_no_init)
        try:
            return await self._stopped
        finally:
            overdue.cancel()
            await self._shut_down()

    def stop(self, code: int = 0) -> None:
        """End the service with the exit code `code`."""
        if not self._stopped.done():
            self._stopped.set_result(code)

    def report(self, phase: str, detail: str, step: int) -> None:
        """Send the current activity of the agent to the root after a short delay.

        Only the latest report is sent, and delivery is not guaranteed. The first report of a process is sent as soon as
        the turn waits, for example for the model, because other processes may wait until this one needs no processor.
        """
        is_first = self._progress is None
        self._progress = Progress(phase, detail, step)
        if self._progress_due is None:
            loop = asyncio.get_running_loop()
            self._progress_due = loop.call_later(0 if is_first else PROGRESS_SECONDS, self._send_progress)

    def emit(self, query_id: str, kind: str, text: str, name: str, step: int, is_error: bool) -> None:
        """Send an event of the turn to the root. An event may be lost. A gap in the event numbers shows such a loss.

        Events are buffered while no client watches the turn. Pieces of text that follow each other quickly are joined.
        """
        if query_id != self._query:
            return
        if kind == "text" and self.is_watched():
            self._text_step = step
            self._text.add(text)
        else:
            self._text.end()
            self._send_event(kind, text, name, step, is_error)

    def is_watched(self) -> bool:
        """Return whether a client watches the current turn."""
        return self._event_buffer is None

    def _send_text(self, text: str) -> None:
        self._send_event("text", text, "", self._text_step, is_error=False)

    def _send_event(self, kind: str, text: str, name: str, step: int, is_error: bool) -> None:
        self._events += 1
        event = TurnEvent(self._events, kind, text, name, step, is_error)  # type: ignore[arg-type]
        if self._event_buffer is not None:
            self._event_buffer.add(event)
        else:
            self._channel.send("event", event, self._query, reliable=False)

    def called(self, query_id: str, called: CallReport) -> None:
        """Report a finished call to the root. If reporting fails, the error is logged, and the call is not affected."""
        try:
            self._channel.send("called", called, query_id)
        except OrchError as error:
            print(f"observers did not get the report about a call of {called.tool}: {error}", flush=True)

    def steering_recorded(self, steer_id: str) -> None:
        """Report to the root that a steering message is in the conversation."""
        self._channel.send("steered", SteeringDelivered(), steer_id)

    async def call_root(self, service: Service[P, R], params: P, seconds: float | None = None) -> R:
        """Call a service of the root, and return the result.

        Raise the OrchError in the root's answer. Raise QueryTimeoutError if the root does not answer within `seconds`.
        """
        call_id = new_id()
        seconds = ROOT_CALL_SECONDS if seconds is None else seconds
        answer = self._calls[call_id] = asyncio.get_running_loop().create_future()
        try:
            payload = msgspec.Raw(encode_body(params))
            if len(payload) < LARGE_CALL_BYTES:
                self._channel.send("root_call", RootCall(service.name, payload), call_id)
            else:
                await asyncio.create_task(self._send_large(RootCall(service.name, payload), call_id), context=Context())
            async with asyncio.timeout(seconds):
                reply: RootReply = await answer
        except TimeoutError:
            raise QueryTimeoutError(f"the root did not answer {service.name!r} within {seconds:g} s") from None
        finally:
            del self._calls[call_id]
            if not answer.done() or answer.cancelled():
                # Cancel the call, because the caller no longer waits for the answer.
                self._channel.send("cancel", CancelCurrentTurn(), call_id)
        if reply.error is not None:
            raise error_from(reply.error)
        return msgspec.msgpack.decode(reply.payload, type=service.result)

    async def _send_large(self, call: RootCall, call_id: str) -> None:
        """Send a large call through a file.

        A separate task does this to avoid the file restrictions of the caller's context.
        """
        self._channel.send("root_call", call, call_id)

    # Frames from the root

    def _on_data(self, data: bytes) -> None:
        try:
            received = self._channel.receive(data)
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
        """Handle one frame from the root. `kind` distinguishes frames with an empty body."""
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
                self._on_retract_steering(id, body)
            case SetSteeringModes():
                self._on_set_steering_modes(body)
            case SummarizeBranch():
                self._on_summarize_branch(id, body)
            case CompactRequest():
                self._on_compact(id, body)
            case RateLimited():
                self._on_rate_limited(body)
            case SessionEdit():
                self._on_session_edit(id, body)
            case UserAction():
                self._on_user_action(id, body)
            case ExportValue():
                self._on_export(id, body)
            case AgentEvent():
                self._on_agent_event(body)
            case AddLabels():
                self._on_add_labels(body)
            case WithdrawTools():
                self._on_withdraw_tools(body)
            case CancelCurrentTurn():
                self._on_cancel_turn(body)
            case RootReply():
                self._on_root_reply(id, body)
            case StopWorker():
                self.stop()
            case EmptyBody() if kind == "watch":
                self._on_watch(id)
            case EmptyBody() if kind == "prompt":
                self._on_prompt(id)
            case EmptyBody() if kind == "drop":
                self._on_cancel_action(id)
            case _:
                self._on_unexpected(id, body)

    def _on_unexpected(self, id: str, body: Struct) -> None:
        print(f"a root does not send {type(body).__name__} ({id}): dropped", flush=True)

    def _on_unreadable(self, kind: str, id: str, error: ErrorInfo) -> None:
        """Handle a frame whose body cannot be read and will not be sent again. Report the error to the waiting side."""
        print(f"{kind} {id} cannot be read: {error.message}", flush=True)
        if kind in ("init", "query"):
            self._finish(id, TurnFinished(error=error))
        if kind == "init":
            self.stop(71)
        if kind == "root_reply":
            self._on_root_reply(id, RootReply(error=error))

    def _on_no_init(self) -> None:
        if self._runtime is None:
            print(f"no message from the root for {CONNECT_SECONDS:g} s", flush=True)
            self.stop(70)

    def _on_init(self, id: str, body: Init) -> None:
        try:
            if self._enter is not None:
                self._enter(body.spec)
            self._runtime = self._make(body.spec, self._birth.keys, self, body.orch_folders)
            for lane in body.rate_limited_models:
                self._runtime.gate.limit(lane)
            ready = self._runtime.ready(body.transcript)
        except Exception as error:
            import traceback

            traceback.print_exc()
            self._channel.send("finished", TurnFinished(error=error_info(error)), id)
            self.stop(71)
        else:
            self._channel.send("ready", ready)

    def _on_ping(self, id: str) -> None:
        self._channel.send("pong", EmptyBody(), id, reliable=False)

    def _on_query(self, id: str, body: Query) -> None:
        if self._stopped.done():
            return  # The next process of the agent gets the same query.
        if self._runtime is None or self._in_turn:
            busy = AgentBusyError("the worker is running a turn; only one query at a time is possible")
            self._finish(id, TurnFinished(error=error_info(busy)))
            return
        self._query, self._events, self._event_buffer = id, 0, None if body.stream else TurnEventBuffer()
        turn = self._run(self._runtime, self._runtime.begin_turn(), id, body)
        self._turn = asyncio.get_running_loop().create_task(turn)

    def _on_watch(self, id: str) -> None:
        if id == self._query and self._event_buffer is not None:
            buffer, self._event_buffer = self._event_buffer, None
            self._channel.send("so_far", buffer.so_far(id), id)

    def _on_steer(self, id: str, body: SteerTurn) -> None:
        if self._runtime is not None:
            self._runtime.steer(SteeringMessage(id, body.text), follow_up=body.follow_up)

    def _on_retract_steering(self, id: str, body: RetractSteering) -> None:
        retracted = self._runtime.retract_steering(body.ids) if self._runtime is not None else ()
        self._channel.send("unsaid", SteeringRetractedReply(tuple(retracted)), id)

    def _on_set_steering_modes(self, body: SetSteeringModes) -> None:
        if self._runtime is not None:
            self._runtime.set_queue_modes(body.steering, body.follow_up)

    def _on_summarize_branch(self, id: str, body: SummarizeBranch) -> None:
        self._run_in_background(self._summarize_branch(id, body))

    async def _summarize_branch(self, id: str, body: SummarizeBranch) -> None:
        try:
            if self._runtime is None:
                raise AgentBusyError("the agent is not up yet")
            summarized = await self._runtime.summarize_branch(body)
        except Exception as error:
            summarized = BranchSummarized(error=error_info(error))
        self._channel.send("summed", summarized, id)

    def _on_compact(self, id: str, body: CompactRequest) -> None:
        if self._runtime is None or self._in_turn or _is_under_way(self._compaction):
            busy = AgentBusyError("the agent is running a turn or a compaction: wait until it has ended")
            self._channel.send("compacted", CompactResult(error=error_info(busy)), id)
        else:
            self._compaction = asyncio.get_running_loop().create_task(self._compact(self._runtime, id, body))

    async def _compact(self, runtime: Runtime, id: str, body: CompactRequest) -> None:
        try:
            answer = CompactResult(await runtime.compact(id, body))
        except Exception as error:
            answer = CompactResult(error=error_info(error))
        self._channel.send("compacted", answer, id)

    def _on_rate_limited(self, body: RateLimited) -> None:
        if self._runtime is not None:
            self._runtime.gate.limit(body.lane)

    def _on_session_edit(self, id: str, body: SessionEdit) -> None:
        try:
            if self._runtime is None or self._in_turn or _is_under_way(self._compaction):
                raise AgentBusyError("the agent is running a turn; its session can be changed only between turns")
            done = self._runtime.edit(body)
        except Exception as error:
            done = EditResult(error=error_info(error))
        self._channel.send("edited", done, id)

    def _on_prompt(self, id: str) -> None:
        self._run_in_background(self._show_prompt(id))

    def _on_user_action(self, id: str, body: UserAction) -> None:
        self._run_in_background(self._run_user_action(id, body)).set_name(id)

    def _on_cancel_action(self, id: str) -> None:
        for task in [each for each in self._background_tasks if each.get_name() == id]:
            task.cancel()

    def _run_in_background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run `work` as a background task."""
        task = asyncio.get_running_loop().create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        return task

    async def _run_user_action(self, id: str, body: UserAction) -> None:
        try:
            if self._runtime is None:
                raise AgentBusyError("the worker is not up yet")
            from ..agent.user_actions import run_action  # This module is rarely needed.

            result = await run_action(self._runtime, body.action, body.hooks)
        except Exception as error:
            result = UserActionResult(error=error_info(error))
        self._channel.send("did", result, id)

    async def _show_prompt(self, id: str) -> None:
        try:
            if self._runtime is None:
                raise AgentBusyError("the worker is not up yet")
            result = PromptResult(await self._runtime.prompt())
        except Exception as error:
            result = PromptResult(error=error_info(error))
        self._channel.send("prompted", result, id)

    def _on_export(self, id: str, body: ExportValue) -> None:
        self._run_in_background(self._export(id, body))

    async def _export(self, id: str, body: ExportValue) -> None:
        try:
            if self._runtime is None:
                raise AgentBusyError("the worker is not up yet")
            from ..tools.python.export import export  # This module is rarely needed.

            result = ExportResult(await export(self._runtime.context, body.name))
        except Exception as error:
            result = ExportResult(error=error_info(error))
        self._channel.send("exported", result, id)

    def _on_agent_event(self, body: AgentEvent) -> None:
        if self._runtime is not None:
            self._runtime.notify_event(body)

    def _on_add_labels(self, body: AddLabels) -> None:
        if self._runtime is not None:
            self._runtime.add_labels(body.marks)

    def _on_withdraw_tools(self, body: WithdrawTools) -> None:
        if self._runtime is not None:
            self._runtime.toolbox.withdraw(body.withdrawn)

    def _on_cancel_turn(self, body: CancelCurrentTurn) -> None:
        if self._runtime is not None:
            self._runtime.cancel(body.exceeded_budget)

    def _on_root_reply(self, id: str, body: RootReply) -> None:
        answer = self._calls.get(id)
        if answer is not None and not answer.done():
            answer.set_result(body)

    # Turns

    def _send_progress(self) -> None:
        self._progress_due = None
        if self._progress is not None and self._in_turn:
            self._channel.send("progress", self._progress, reliable=False)

    @property
    def _in_turn(self) -> bool:
        return _is_under_way(self._turn)

    async def _run(self, runtime: Runtime, cancel_token: CancelToken, query_id: str, query: Query) -> None:
        try:
            if self._compaction is not None:
                await asyncio.wait([self._compaction])
            finished = await runtime.query(query_id, query, cancel_token)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if self._stopped.done() or (task is not None and task.cancelling()):
                raise
            own = OrchError("the turn was cancelled from within: a model or a hook awaited what had been cancelled")
            finished = TurnFinished(error=error_info(own), usage=getattr(error, "usage", None) or Usage())
        except Exception as error:
            finished = TurnFinished(error=error_info(error))
        self._text.end()
        self._finish(query_id, finished)
        if query_id == self._query:
            self._query, self._event_buffer = "", None  # The events of a finished turn are not needed.

    def _finish(self, query_id: str, finished: TurnFinished) -> None:
        if finished.error is not None:
            message = mask_secrets(finished.error.message, secrets_of(self._birth.keys))
            finished = replace(finished, error=replace(finished.error, message=message))
        try:
            self._channel.send("finished", finished, query_id)
        except Exception as error:
            self._channel.send("finished", TurnFinished(error=ErrorInfo("ProtocolError", str(error))), query_id)

    async def _shut_down(self) -> None:
        if self._progress_due is not None:
            self._progress_due.cancel()
        if running_tasks := [task for task in (self._turn, self._compaction) if task is not None and not task.done()]:
            for task in running_tasks:
                task.cancel()
            await asyncio.wait(running_tasks, timeout=SHUTDOWN_SECONDS)
        try:
            if self._runtime is not None:
                await self._runtime.run_end_hooks(SHUTDOWN_SECONDS)
                self._runtime.close()
                async with asyncio.timeout(SHUTDOWN_SECONDS):
                    await self._runtime.backend.close()
        except (OrchError, TimeoutError) as error:
            # The next process of this agent continues from the files.
            print(f"worker ends although an error occurred: {str(error) or 'the backend did not close'}", flush=True)
        finally:
            self._channel.flush()
            self._channel.close()
            self._connection.close()


def _is_under_way(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done()
