"""Calls hooks from the agent's loop. Each stage has one method, which returns the resulting values.

The methods never raise the exceptions of hooks. If a hook decides to end the turn, the methods raise `TurnAborted`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from orch_protocol.core.errors import OrchError, StoreError
from orch_protocol.core.messages import Message, Reply, StopReason, Text, ToolUse, assistant, text_of, tool_uses, user
from orch_protocol.core.prompts import PromptPart
from orch_protocol.core.text import scrub
from orch_protocol.hooks import events as stages
from orch_protocol.hooks.patches import Abort
from orch_protocol.hooks.stages import ACTED, STAGES
from orch_protocol.wire.worker_messages import AgentEvent, Query

from ..backends.base import AssistantTurn, Backend, BackendInfo, OnText, RequestOverride
from ..conversation.history import valid_conversation
from ..hooks.dispatch import StageResult
from ..hooks.runner import EmitEvent, HookCalls
from ..hooks.session_events import ArchivalHooks, copy_messages
from ..tools.api.base import ToolError
from ..tools.dispatch.result_limits import MAX_CAPTURED, text_in, with_text
from ..tools.dispatch.toolbox import CallOutcome
from .features.turn_extension import Dispatch, ShorteningReason, TurnAborted, TurnExtension, TurnState
from .model_selection import ModelSelection

__all__ = ["AgentHooks"]

WITHHELD_TEXT: Final = "[Withheld: {why}]"
TURN_ENDED: Final = "a hook ended the turn"
RESPONSE_WITHHELD: Final = "(The response was withheld, because the turn ended while hooks were checking it.)"

RecordData = Callable[[str, Any], None]


class AgentHooks(TurnExtension):
    """The hooks of one agent for its loop.

    `calls` runs the hooks. `model_selection` switches models for a turn. `record` records the actions of hooks.
    """

    def __init__(
        self,
        calls: HookCalls,
        model_selection: ModelSelection | None = None,
        record: RecordData = lambda *_: None,
        *,
        emitter_for: Callable[[str], EmitEvent | None] = lambda _: None,
        stop_worker: Callable[[], None] = lambda: None,
    ) -> None:
        self.calls = calls
        self._record = record
        self._emitter_for = emitter_for
        self._stop_worker = stop_worker
        self._in_turn = False
        self.archival = ArchivalHooks(calls)
        """Calls the hooks for archiving and compaction."""
        self._model_selection = model_selection
        self._start_lock = asyncio.Lock()
        self._abort: TurnAborted | None = None
        self._session_started = False
        self._attempt = 1
        """Number of the current attempt of the model request."""
        self._started_attempt = 0
        """Number of the attempt whose response has started to arrive."""
        self._on_approved_text: OnText | None = None
        """Receives the text of the response after hooks have approved the text."""
        self._model_fields: dict[str, str] = {}

    # Stages of a turn.

    async def turn_began(self, query_id: str, query: Query) -> None:
        """Prepare the hooks for the turn of `query`. Raise ConfigError if a hook of `query` is invalid."""
        self.prepare_turn(query_id, query)
        self._in_turn = True

    def prepare_turn(self, query_id: str, query: Query) -> None:
        """Prepare the hooks of this process, and the root's hooks listed in `query`.

        Raise ConfigError for an invalid hook.
        """
        self.calls.turn_began(query_id, query.hooks, self._emitter_for(query_id))

    async def before_turn(self, turn: TurnState) -> None:
        """Let hooks change the prompt, add texts after the prompt, and disable tools of the turn.

        Raise TurnAborted if a hook ends the turn.
        """
        self._abort = None
        if not self._session_started:
            self._session_started = True
            self.calls.notify("session_start", messages=len(turn.backend.transcript()))
        own_model = self._model_selection.own_name if self._model_selection is not None else ""
        stage_result = await self.calls.run_stage(
            "before_turn", prompt=turn.prompt, tools=turn.toolbox.active, model=own_model
        )
        prompt = turn.prompt
        if stage_result is not None:
            _raise_on_abort(stage_result)
            assert isinstance(stage_result.event, stages.BeforeTurn)
            prompt = stage_result.event.prompt
            if any("tools" in effect.actions for effect in stage_result.effects):
                turn.toolbox.restrict_to(stage_result.event.tools)
        await self._select_model(stage_result)
        self.calls.notify("turn_start", prompt=prompt)
        turn.prompt = scrub(prompt)
        if stage_result is not None:
            turn.notes += scrub(stage_result.inject)

    async def _select_model(self, stage_result: StageResult | None) -> None:
        """Switch to the model named by the hooks.

        Without a named model, or if the named model is not available, switch to the agent's own model.
        """
        if self._model_selection is None:
            return
        model: str | None = None
        if stage_result is not None:
            assert isinstance(stage_result.event, stages.BeforeTurn)
            model = stage_result.event.model
        try:
            await self._model_selection.use_model(model)
        except (OrchError, ToolError) as error:
            assert stage_result is not None
            hook_name = next(effect.hook for effect in reversed(stage_result.effects) if "model" in effect.actions)
            self.calls.record_failure(hook_name, "before_turn", f"named a model that cannot answer: {error}")
            await self._model_selection.use_model()

    def handles(self, stage: str) -> bool:
        """Return whether any hook is registered for `stage`."""
        return stage in self.calls.active_stages

    async def prompt(
        self, parts: tuple[PromptPart, ...], *, recorded: bool
    ) -> tuple[tuple[PromptPart, ...], tuple[str, ...]]:
        """Return the prompt parts of the turn after the changes by hooks, and the names of dropped parts.

        Raise TurnAborted if a hook ends the turn.
        """
        stage_result = await self.calls.run_stage("before_system_prompt", parts=parts, recorded=recorded)
        if stage_result is None:
            return parts, ()
        _raise_on_abort(stage_result)
        assert isinstance(stage_result.event, stages.BeforeSystemPrompt)
        changed = zip(stage_result.event.parts, scrub([part.text for part in stage_result.event.parts]), strict=True)
        return tuple(replace(part, text=text) for part, text in changed), stage_result.event.dropped

    async def system_prompt(self, text: str) -> str:
        """Return the system text of the turn. Raise TurnAborted if a hook ends the turn."""
        stage_result = await self.calls.run_stage("after_system_prompt", text=text)
        if stage_result is None:
            return text
        _raise_on_abort(stage_result)
        assert isinstance(stage_result.event, stages.AfterSystemPrompt)
        return str(scrub(stage_result.event.text))

    async def output(self, text: str, stop: StopReason) -> tuple[str, StopReason]:
        """Return the text of the reply and the stop reason. Record the actions of hooks."""
        stage_result = await self.calls.run_stage("before_output", text=text, stop_reason=stop)
        self._record_actions()
        if stage_result is None:
            return text, stop
        if isinstance(stage_result.decision, Abort):
            return scrub(stage_result.decision.message), "aborted"
        assert isinstance(stage_result.event, stages.Output)
        return scrub(stage_result.event.text), stop

    async def turn_end(self, reply: Reply) -> None:
        """Notify hooks that the reply is recorded."""
        fields = {"text": reply.text, "stop_reason": reply.stop_reason, "usage": reply.usage}
        self.calls.notify("turn_end", **fields, tool_calls=reply.tool_calls)
        if reply.stop_reason != "cancelled":  # Do not delay a cancellation.
            await self.calls.wait_until_delivered()

    async def turn_failed(self, error: Exception) -> None:
        """Notify hooks that the turn ended without a reply."""
        if not self._in_turn:
            return
        self.calls.notify("error", kind=type(error).__name__, message=str(error))
        await self.calls.wait_until_delivered()

    async def after_turn(self, stop: StopReason | None = None) -> None:  # noqa: ARG002
        """Record the actions performed by hooks after the reply. End the process if a hook did not return."""
        self._in_turn = False
        self.calls.turn_ended()
        with contextlib.suppress(StoreError):  # The reply is already recorded.
            self._record_actions()
        if self.calls.stuck_hooks:
            await self.calls.report()
            print(f"worker ends: {', '.join(self.calls.stuck_hooks)} did not return", flush=True)
            self._stop_worker()

    async def close(self) -> None:
        """Run the last hooks before the process ends, and record their actions."""
        try:
            await self.calls.close()
        finally:
            with contextlib.suppress(StoreError):
                self._record_actions()

    def _record_actions(self) -> None:
        for turn_actions in self.calls.take_actions():
            self._record(ACTED, msgspec.to_builtins(turn_actions))

    # Stages of a step.

    async def before_request(self, turn: TurnState) -> None:
        """Notify hooks that a step starts. A hook may request that orch first shortens the conversation."""
        self.calls.step = turn.steps
        turn.shorten = await self._step_start(turn.backend) or turn.shorten

    async def _step_start(self, backend: Backend) -> ShorteningReason | None:
        if "step_start" not in self.calls.active_stages:
            return None
        size = {"tokens": backend.context_tokens(), "limit": backend.info().context_limit}
        stage_result = await self.calls.run_stage("step_start", messages=len(backend.transcript()), **size)
        assert stage_result is not None
        assert isinstance(stage_result.event, stages.StepStart)
        if stage_result.event.shorten == "archive" and not self.calls.archival_enabled:
            hook_name = next(effect.hook for effect in reversed(stage_result.effects) if "shorten" in effect.actions)
            self.calls.record_failure(hook_name, "step_start", "requests archiving, but archival.enabled is not set")
            return None
        return "archive" if stage_result.event.shorten == "archive" else "hook" if stage_result.event.shorten else None

    async def request(self, turn: TurnState, info: BackendInfo) -> None:
        """Let hooks change the next request, and set the callback for its response.

        Raise TurnAborted if a hook ends the turn.
        """
        turn.backend.request_override = await self._override(turn.backend, info)
        turn.on_text = self._text_callback(turn.on_text, info)

    async def _override(self, backend: Backend, info: BackendInfo) -> RequestOverride | None:
        """Return the replacements for the next request, or None for no change.

        Raise TurnAborted if a hook ends the turn.
        """
        messages: tuple[Message, ...] | None = None
        if "context" in self.calls.active_stages:
            stage_result = await self.calls.run_stage("context", messages=copy_messages(backend.transcript()))
            assert stage_result is not None
            assert isinstance(stage_result.event, stages.Context)
            _raise_on_abort(stage_result)
            if stage_result.inject or any("messages" in effect.actions for effect in stage_result.effects):
                messages = valid_conversation((*stage_result.event.messages, *map(user, stage_result.inject)))
                messages = messages or tuple(backend.transcript())
        system = tail = None
        if "before_provider_request" in self.calls.active_stages:
            request_event = stages.ProviderRequest(
                provider=info.provider,
                model=info.model,
                system=getattr(backend, "system", ""),
                tools=tuple(tool.name for tool in getattr(backend, "tools", ())),
                messages=copy_messages(messages or backend.transcript()),
                tail=backend.tail,
            )
            stage_result = await self.calls.run(request_event)
            _raise_on_abort(stage_result)
            changed_event = stage_result.event
            assert isinstance(changed_event, stages.ProviderRequest)
            system = changed_event.system if changed_event.system != request_event.system else None
            tail = changed_event.tail if changed_event.tail != request_event.tail else None
        if messages is None and system is None and tail is None:
            return None
        return RequestOverride(messages, system, tail)

    def _text_callback(self, on_text: OnText | None, info: BackendInfo) -> OnText | None:
        """Return the callback for the text of the response, or None if the text is not needed.

        If a hook may change the response, `on_text` is called only once, with the text after all hooks.
        """
        self._attempt, self._started_attempt = 1, 0
        self._on_approved_text = None
        if on_text is not None and "after_provider_response" in self.calls.deciding_stages:
            self._on_approved_text, on_text = on_text, None
        self._model_fields = {"provider": info.provider, "model": info.model}
        if self.calls.active_stages.isdisjoint(("message_start", "message_update")):
            return on_text

        def forward_text(text: str) -> None:
            if on_text is not None:
                on_text(text)
            self._notify_message_start()
            self.calls.notify("message_update", text=text)

        return forward_text

    def request_retried(self) -> None:
        """Count another attempt of the request. The response received so far is discarded."""
        self._attempt += 1

    def _notify_message_start(self) -> None:
        if self._started_attempt < self._attempt:
            self._started_attempt = self._attempt
            self.calls.notify("message_start", **self._model_fields, attempt=self._attempt)

    async def response(
        self,
        turn: TurnState,  # noqa: ARG002
        response: AssistantTurn,
        info: BackendInfo,
    ) -> tuple[AssistantTurn, BaseException | None]:
        """Return the response to record. Also return an exception to raise after the recording, or None."""
        response, end = await self._run_response_hooks(response, info)
        if self._on_approved_text is not None and (text := text_of(response.message)):
            self._on_approved_text(text)
        return response, end

    async def _run_response_hooks(
        self, turn: AssistantTurn, info: BackendInfo
    ) -> tuple[AssistantTurn, BaseException | None]:
        self.calls.step += 1
        self._notify_message_start()
        if "after_provider_response" not in self.calls.active_stages:
            return turn, None
        text = text_of(turn.message)
        try:
            stage_result = await self.calls.run_stage(
                "after_provider_response",
                provider=info.provider,
                model=info.model,
                text=text,
                message=copy_messages([turn.message])[0],
                stop_reason=turn.stop_reason,
                usage=turn.usage,
            )
        # Record the cost, but not the text, because hooks have not approved the text.
        except asyncio.CancelledError as cancelled:
            return replace(turn, message=assistant(RESPONSE_WITHHELD)), cancelled
        assert stage_result is not None
        assert isinstance(stage_result.event, stages.ProviderResponse)
        if isinstance(stage_result.decision, Abort):
            message = assistant(scrub(stage_result.decision.message) or RESPONSE_WITHHELD)
            return replace(turn, message=message), TurnAborted(scrub(stage_result.decision.message))
        if stage_result.event.text == text:
            return turn, None
        return replace(turn, message=_with_text(turn.message, scrub(stage_result.event.text))), None

    def response_recorded(self, turn: TurnState, response: AssistantTurn, message: Message) -> None:  # noqa: ARG002
        """Notify hooks that the response is recorded as `message`."""
        if "message_end" not in self.calls.active_stages:
            return
        calls = tuple(call.name for call in tool_uses(message))
        fields = {"text": text_of(message), "stop_reason": response.stop_reason, "usage": response.usage}
        self.calls.notify("message_end", **fields, calls=calls)

    def wrap_dispatch(self, dispatch: Dispatch) -> Dispatch:
        """Return a function that runs calls with `dispatch`, and that asks hooks about each call and each result."""
        return partial(self.call, dispatch)

    async def call(self, dispatch: Dispatch, call: ToolUse) -> CallOutcome:
        """Run `call` with `dispatch` and return its outcome. Hooks may change or block the call and its outcome.

        Tool calls start in the order in which this method is called.
        """
        async with self._start_lock:
            running = await self._start_call(
                call, partial(dispatch, filter_outcome=partial(self._run_result_hooks, call))
            )
        return await running

    async def _start_call(self, call: ToolUse, dispatch: Dispatch) -> Awaitable[CallOutcome]:
        if self._abort is not None:
            return asyncio.ensure_future(dispatch(call, blocked=TURN_ENDED))
        stage_result = await self.calls.run_stage("tool_call", id=call.id, name=call.name, input=call.input)
        if stage_result is None:
            return asyncio.ensure_future(dispatch(call))
        assert isinstance(stage_result.event, stages.ToolCall)
        blocked = ""
        if isinstance(stage_result.decision, Abort):
            self._abort = TurnAborted(scrub(stage_result.decision.message))
            blocked = TURN_ENDED
        elif stage_result.decision is not None:
            blocked = scrub(stage_result.decision.reason) or TURN_ENDED
        try:
            changed = replace(call, input=msgspec.json.decode(msgspec.json.encode(scrub(stage_result.event.input))))
        except (TypeError, ValueError, RecursionError) as error:
            changed, blocked = (
                call,
                blocked or f"hooks changed the arguments to a value that is not valid JSON: {error}",
            )
        return asyncio.ensure_future(dispatch(changed, approved=bool(stage_result.approved_by), blocked=blocked))

    async def _run_result_hooks(self, call: ToolUse, outcome: CallOutcome) -> CallOutcome:
        if "tool_result" not in self.calls.active_stages:
            return outcome
        stage_result = await self.calls.run(_result_event(call, outcome))
        if isinstance(stage_result.decision, Abort):
            self._abort = self._abort or TurnAborted(scrub(stage_result.decision.message))
        return _apply_result(outcome, stage_result)

    async def filter_result(self, call: ToolUse, outcome: CallOutcome) -> CallOutcome:
        """Return the part of `outcome` that the model may see according to hooks. The user started `call`.

        At this point, hooks cannot end a turn.
        """
        if "tool_result" not in self.calls.deciding_stages:
            return outcome
        return _apply_result(outcome, await self.calls.run_filters(_result_event(call, outcome)))

    async def step_end(self, calls: Sequence[ToolUse]) -> None:
        """Notify hooks that the response and the results are recorded. Raise TurnAborted if a hook ends the turn."""
        self.calls.notify("step_end", calls=tuple(call.name for call in calls))
        if self._abort is not None:
            raise self._abort

    def notify_event(self, body: AgentEvent) -> None:
        """Notify hooks of an event from the root."""
        if body.stage in self.calls.active_stages:
            self.calls.notify_event(msgspec.msgpack.decode(body.event, type=STAGES[body.stage].event))

    async def before_steering(self) -> None:
        """Wait until the observers have received all events so far, because observers may send steering messages."""
        await self.calls.wait_until_delivered()

    async def steering(self, text: str) -> list[str]:
        """Return the steering message `text` as changed by hooks, and the additional messages of hooks.

        The list is empty if a hook blocks the message.
        """
        stage_result = await self.calls.run_stage("steering_received", text=text)
        if stage_result is None:
            return [text]
        if stage_result.decision is not None:
            return []
        assert isinstance(stage_result.event, stages.SteeringReceived)
        return [stage_result.event.text, *stage_result.inject]

    # Stages of the assess and reflect phases.

    async def after_assess(self, **fields: Any) -> tuple[str, tuple[str, ...], str]:
        """Return the note, the tools and the model for the turn. `fields` contains the fields of the event AfterAssess.

        Raise TurnAborted if a hook ends the turn.
        """
        stage_result = await self.calls.run_stage("after_assess", **fields)
        if stage_result is None:
            return fields["note"], fields["tools"], fields["model"]
        _raise_on_abort(stage_result)
        assert isinstance(stage_result.event, stages.AfterAssess)
        return scrub(stage_result.event.note), stage_result.event.tools, stage_result.event.model

    async def before_reflect(self, **fields: Any) -> str | None:
        """Return additional instructions for the reflection, or None if a hook prevents the reflection.

        `fields` contains the fields of the event BeforeReflect.
        """
        stage_result = await self.calls.run_stage("before_reflect", **fields)
        if stage_result is None:
            return ""
        assert isinstance(stage_result.event, stages.BeforeReflect)
        return None if stage_result.decision is not None else scrub(stage_result.event.instructions)

    async def after_reflect(self, *, by: str, note: str, again: bool) -> tuple[str, bool]:
        """Return the note of a reflection, and whether the turn continues.

        Return ("", False) if a hook blocks the reflection.
        """
        stage_result = await self.calls.run_stage("after_reflect", by=by, note=note, again=again)
        if stage_result is None:
            return note, again
        if stage_result.decision is not None:
            return "", False
        assert isinstance(stage_result.event, stages.AfterReflect)
        return scrub(stage_result.event.note), stage_result.event.again


def _result_event(call: ToolUse, outcome: CallOutcome) -> stages.ToolReturn:
    return stages.ToolReturn(
        id=call.id,
        name=call.name,
        input=call.input,
        text=text_in(outcome.result),
        is_error=outcome.result.is_error,
        ran=outcome.ran,
        files_changed=outcome.files_changed,
    )


def _apply_result(outcome: CallOutcome, stage_result: StageResult) -> CallOutcome:
    """Return `outcome` with the changes by the hooks."""
    assert isinstance(stage_result.event, stages.ToolReturn)
    result = outcome.result
    text, is_error = stage_result.event.text, stage_result.event.is_error
    if stage_result.decision is not None:
        reason = getattr(stage_result.decision, "reason", "a hook ended the turn")
        result, text, is_error = replace(result, content=()), WITHHELD_TEXT.format(why=reason), True
    if text != text_in(outcome.result) or not result.content:
        result = with_text(result, scrub(text)[:MAX_CAPTURED] or "(no output)")
    return replace(outcome, result=replace(result, is_error=is_error), max_chars=stage_result.event.max_chars)


def _raise_on_abort(stage_result: StageResult) -> None:
    if isinstance(stage_result.decision, Abort):
        raise TurnAborted(scrub(stage_result.decision.message))


def _with_text(message: Message, text: str) -> Message:
    """Return `message` with all its text replaced by `text`. `text` stands at the position of the first text block."""
    index = next(
        (index for index, block in enumerate(message.content) if isinstance(block, Text)), len(message.content)
    )
    other_blocks = [block for block in message.content if not isinstance(block, Text)]
    if not any(isinstance(block, Text) for block in message.content):
        index = next((at for at, block in enumerate(other_blocks) if isinstance(block, ToolUse)), len(other_blocks))
    return Message(message.role, (*other_blocks[:index], *([Text(text)] if text else []), *other_blocks[index:]))
