"""What an agent's loop says to hooks: one method a stage, each of which returns what is to be done now.

Nothing here raises what a hook raised. `TurnAborted` is a hook's decision, and ends the turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
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
from orch_protocol.wire.worker_messages import AgentEvent

from ..backends.base import AssistantTurn, Backend, BackendInfo, OnText, RequestOverride
from ..conversation.history import valid_conversation
from ..hooks.dispatch import StageResult
from ..hooks.runner import HookCalls
from ..hooks.session_events import ArchivalHooks, copy_messages
from ..tools.api.base import ToolError
from ..tools.dispatch.result_limits import MAX_CAPTURED, text_in, with_text
from ..tools.dispatch.toolbox import CallOutcome, Executor
from .model_selection import ModelSelection
from .turn import Shorter, TurnAborted

__all__ = ["AgentHooks"]

WITHHELD: Final = "[Withheld: {why}]"
ENDED: Final = "a hook ended the turn"
CUT: Final = "(The response was withheld: the turn was ended while hooks looked at it.)"

Dispatch = Callable[..., Awaitable[CallOutcome]]
Keep = Callable[[str, Any], None]


class AgentHooks:
    """The hooks of one agent, as its loop sees them. `calls` knows which there are and calls them, `answering` which
    models can answer a turn; what hooks did goes to `keep`, which puts it on record."""

    def __init__(self, calls: HookCalls, answering: ModelSelection | None = None, keep: Keep = lambda *_: None) -> None:
        self.calls = calls
        self._keep = keep
        self.past = ArchivalHooks(calls)
        """What is said of what becomes of the conversation."""
        self._answering = answering
        self._gate = asyncio.Lock()
        self._ended: TurnAborted | None = None
        self._begun = False
        self._attempt = 1
        """How often the request under way was made."""
        self._arriving = 0
        """The attempt whose response has begun to arrive."""
        self._shown: OnText | None = None
        """Who is to be shown the text of the response once hooks have let it pass."""
        self._who: dict[str, str] = {}

    # Around a turn.

    async def before_turn(self, prompt: str, messages: int, toolbox: Executor) -> tuple[str, tuple[str, ...]]:
        """Return the prompt to take down, and what is to be said after it; `toolbox` rests what it is to. Raises
        Aborted."""
        self._ended = None
        if not self._begun:
            self._begun = True
            self.calls.tell("session_start", messages=messages)
        own = self._answering.own if self._answering is not None else ""
        followed = await self.calls.ask("before_turn", prompt=prompt, tools=toolbox.active, model=own)
        if followed is not None:
            _check(followed)
            assert isinstance(followed.event, stages.BeforeTurn)
            prompt, more = followed.event.prompt, followed.inject
            if any("tools" in done.actions for done in followed.done):
                toolbox.rest(followed.event.tools)
        else:
            more = ()
        await self._let_answer(followed)
        self.calls.tell("turn_start", prompt=prompt)
        return scrub(prompt), scrub(more)

    async def _let_answer(self, followed: StageResult | None) -> None:
        """Let the model answer that hooks have named, the agent's own when there is none or it cannot be asked."""
        if self._answering is None:
            return
        model: str | None = None
        if followed is not None:
            assert isinstance(followed.event, stages.BeforeTurn)
            model = followed.event.model
        try:
            await self._answering.turn(model)
        except (OrchError, ToolError) as error:
            assert followed is not None
            by = next(done.hook for done in reversed(followed.done) if "model" in done.actions)
            self.calls.failed(by, "before_turn", f"named a model that cannot answer: {error}")
            await self._answering.turn()

    def handles(self, stage: str) -> bool:
        """Return whether any hook is registered for `stage`."""
        return stage in self.calls.on

    async def prompt(
        self, parts: tuple[PromptPart, ...], *, recorded: bool
    ) -> tuple[tuple[PromptPart, ...], tuple[str, ...]]:
        """Return the parts that the turn's prompt is put together of, in place of `parts`, and names of dropped ones.

        Raises Aborted.
        """
        followed = await self.calls.ask("before_system_prompt", parts=parts, recorded=recorded)
        if followed is None:
            return parts, ()
        _check(followed)
        assert isinstance(followed.event, stages.BeforeSystemPrompt)
        changed = zip(followed.event.parts, scrub([part.text for part in followed.event.parts]), strict=True)
        return tuple(replace(part, text=text) for part, text in changed), followed.event.dropped

    async def system_prompt(self, text: str) -> str:
        """Return the system text of the turn. Raises Aborted."""
        followed = await self.calls.ask("after_system_prompt", text=text)
        if followed is None:
            return text
        _check(followed)
        assert isinstance(followed.event, stages.AfterSystemPrompt)
        return str(scrub(followed.event.text))

    async def output(self, text: str, stop: StopReason) -> tuple[str, StopReason]:
        """Return the text of the reply, and why the turn ended. What hooks did in it is on record then."""
        followed = await self.calls.ask("before_output", text=text, stop_reason=stop)
        self._keep_acts()
        if followed is None:
            return text, stop
        if isinstance(followed.decision, Abort):
            return scrub(followed.decision.message), "aborted"
        assert isinstance(followed.event, stages.Output)
        return scrub(followed.event.text), stop

    async def turn_end(self, reply: Reply) -> None:
        """The reply is on record."""
        told = {"text": reply.text, "stop_reason": reply.stop_reason, "usage": reply.usage}
        self.calls.tell("turn_end", **told, tool_calls=reply.tool_calls)
        if reply.stop_reason != "cancelled":  # who cancels a turn waits for nobody
            await self.calls.told()

    async def error(self, error: Exception) -> None:
        """The turn ended without a reply."""
        self.calls.tell("error", kind=type(error).__name__, message=str(error))
        await self.calls.told()

    def turn_ended(self) -> None:
        """The turn is over, whatever came of it. What hooks did since its reply is on record then."""
        self.calls.turn_ended()
        with contextlib.suppress(StoreError):  # the reply stands
            self._keep_acts()

    async def close(self) -> None:
        """The process ends. What hooks did since the last turn is on record then."""
        try:
            await self.calls.close()
        finally:
            with contextlib.suppress(StoreError):
                self._keep_acts()

    def _keep_acts(self) -> None:
        for acted in self.calls.acted():
            self._keep(ACTED, msgspec.to_builtins(acted))

    # A step.

    async def step_start(self, step: int, backend: Backend) -> Shorter | None:
        """The model is to be asked, after `step` responses; return how the conversation is to become shorter first."""
        self.calls.step = step
        if "step_start" not in self.calls.on:
            return None
        size = {"tokens": backend.context_tokens(), "limit": backend.info().context_limit}
        followed = await self.calls.ask("step_start", messages=len(backend.transcript()), **size)
        assert followed is not None
        assert isinstance(followed.event, stages.StepStart)
        if followed.event.shorten == "archive" and not self.calls.archives:
            by = next(done.hook for done in reversed(followed.done) if "shorten" in done.actions)
            self.calls.failed(by, "step_start", "wants archives made, and archival.enabled is not set")
            return None
        return "archive" if followed.event.shorten == "archive" else "hook" if followed.event.shorten else None

    async def request(self, backend: Backend, info: BackendInfo) -> RequestOverride | None:
        """Return what the next request is to hold in place of the conversation, None: that. Raises Aborted."""
        messages: tuple[Message, ...] | None = None
        if "context" in self.calls.on:
            followed = await self.calls.ask("context", messages=copy_messages(backend.transcript()))
            assert followed is not None
            assert isinstance(followed.event, stages.Context)
            _check(followed)
            if followed.inject or any("messages" in done.actions for done in followed.done):
                messages = valid_conversation((*followed.event.messages, *map(user, followed.inject)))
                messages = messages or tuple(backend.transcript())
        system = tail = None
        if "before_provider_request" in self.calls.on:
            asked = stages.ProviderRequest(
                provider=info.provider,
                model=info.model,
                system=getattr(backend, "system", ""),
                tools=tuple(tool.name for tool in getattr(backend, "tools", ())),
                messages=copy_messages(messages or backend.transcript()),
                tail=backend.tail,
            )
            followed = await self.calls.run(asked)
            _check(followed)
            sent = followed.event
            assert isinstance(sent, stages.ProviderRequest)
            system = sent.system if sent.system != asked.system else None
            tail = sent.tail if sent.tail != asked.tail else None
        if messages is None and system is None and tail is None:
            return None
        return RequestOverride(messages, system, tail)

    def listening(self, on_text: OnText | None, info: BackendInfo) -> OnText | None:
        """Return what is to be called with the text of the response as it arrives, if anything is. `on_text` is, or
        once with all of it where a hook may change the response: nothing is shown that it has not let pass."""
        self._attempt, self._arriving = 1, 0
        self._shown = None
        if on_text is not None and "after_provider_response" in self.calls.deciding:
            self._shown, on_text = on_text, None
        self._who = {"provider": info.provider, "model": info.model}
        if self.calls.on.isdisjoint(("message_start", "message_update")):
            return on_text

        def both(text: str) -> None:
            if on_text is not None:
                on_text(text)
            self._begins()
            self.calls.tell("message_update", text=text)

        return both

    def again(self) -> None:
        """The request is made again: what came of the response is void."""
        self._attempt += 1

    def _begins(self) -> None:
        if self._arriving < self._attempt:
            self._arriving = self._attempt
            self.calls.tell("message_start", **self._who, attempt=self._attempt)

    async def response(self, turn: AssistantTurn, info: BackendInfo) -> tuple[AssistantTurn, BaseException | None]:
        """Return the response to take down, and what is to be raised once it is on record."""
        turn, end = await self._passed(turn, info)
        if self._shown is not None and (text := text_of(turn.message)):
            self._shown(text)
        return turn, end

    async def _passed(self, turn: AssistantTurn, info: BackendInfo) -> tuple[AssistantTurn, BaseException | None]:
        self.calls.step += 1
        self._begins()
        if "after_provider_response" not in self.calls.on:
            return turn, None
        text = text_of(turn.message)
        try:
            followed = await self.calls.ask(
                "after_provider_response",
                provider=info.provider,
                model=info.model,
                text=text,
                message=copy_messages([turn.message])[0],
                stop_reason=turn.stop_reason,
                usage=turn.usage,
            )
        except asyncio.CancelledError as cancelled:  # it is paid for, and nobody has said that it may be seen
            return replace(turn, message=assistant(CUT)), cancelled
        assert followed is not None
        assert isinstance(followed.event, stages.ProviderResponse)
        if isinstance(followed.decision, Abort):
            message = assistant(scrub(followed.decision.message) or CUT)
            return replace(turn, message=message), TurnAborted(scrub(followed.decision.message))
        if followed.event.text == text:
            return turn, None
        return replace(turn, message=_said(turn.message, scrub(followed.event.text))), None

    def message_end(self, turn: AssistantTurn, message: Message) -> None:
        """The response is on record, as `message`."""
        if "message_end" not in self.calls.on:
            return
        calls = tuple(call.name for call in tool_uses(message))
        told = {"text": text_of(message), "stop_reason": turn.stop_reason, "usage": turn.usage}
        self.calls.tell("message_end", **told, calls=calls)

    async def call(self, dispatch: Dispatch, call: ToolUse) -> CallOutcome:
        """Return what `call` comes to: changed, refused, or run by `dispatch`, and its result as it may be seen.

        Calls are dispatched in the order in which this was called.
        """
        async with self._gate:
            running = await self._begin(call, partial(dispatch, seen=partial(self._returned, call)))
        return await running

    async def _begin(self, call: ToolUse, dispatch: Dispatch) -> Awaitable[CallOutcome]:
        if self._ended is not None:
            return asyncio.ensure_future(dispatch(call, blocked=ENDED))
        followed = await self.calls.ask("tool_call", id=call.id, name=call.name, input=call.input)
        if followed is None:
            return asyncio.ensure_future(dispatch(call))
        assert isinstance(followed.event, stages.ToolCall)
        blocked = ""
        if isinstance(followed.decision, Abort):
            self._ended = TurnAborted(scrub(followed.decision.message))
            blocked = ENDED
        elif followed.decision is not None:
            blocked = scrub(followed.decision.reason) or ENDED
        try:
            changed = replace(call, input=msgspec.json.decode(msgspec.json.encode(scrub(followed.event.input))))
        except (TypeError, ValueError, RecursionError) as error:
            changed, blocked = call, blocked or f"hooks made no JSON of its arguments: {error}"
        return asyncio.ensure_future(dispatch(changed, approved=bool(followed.approved), blocked=blocked))

    async def _returned(self, call: ToolUse, outcome: CallOutcome) -> CallOutcome:
        if "tool_result" not in self.calls.on:
            return outcome
        followed = await self.calls.run(_return(call, outcome))
        if isinstance(followed.decision, Abort):
            self._ended = self._ended or TurnAborted(scrub(followed.decision.message))
        return _seen(outcome, followed)

    async def sifted(self, call: ToolUse, outcome: CallOutcome) -> CallOutcome:
        """Return `outcome`, of a `call` that a person made, as a model may see it. No turn ends by that."""
        if "tool_result" not in self.calls.deciding:
            return outcome
        return _seen(outcome, await self.calls.sift(_return(call, outcome)))

    async def step_end(self, calls: Iterable[ToolUse]) -> None:
        """Response and results are on record. Raises Aborted when a hook has decided so meanwhile."""
        self.calls.tell("step_end", calls=tuple(call.name for call in calls))
        if self._ended is not None:
            raise self._ended

    def happened(self, body: AgentEvent) -> None:
        """The root tells of something at a stage of its own."""
        if body.stage in self.calls.on:
            self.calls.note(msgspec.msgpack.decode(body.event, type=STAGES[body.stage].event))

    async def settled(self) -> None:
        """Return when whoever observes knows of everything so far, and has said what it wants to say about it."""
        await self.calls.told()

    async def heard(self, text: str) -> list[str]:
        """Return what of `text`, which was said to the agent, it is to hear; nothing when it was blocked."""
        followed = await self.calls.ask("steering_received", text=text)
        if followed is None:
            return [text]
        if followed.decision is not None:
            return []
        assert isinstance(followed.event, stages.SteeringReceived)
        return [followed.event.text, *followed.inject]

    # Beside the turn.

    async def assessed(self, **told: Any) -> tuple[str, tuple[str, ...], str]:
        """Return what the agent is told of its prompt, the tools it may use, and the model that answers; `told` is as
        in AfterAssess. Raises Aborted."""
        followed = await self.calls.ask("after_assess", **told)
        if followed is None:
            return told["note"], told["tools"], told["model"]
        _check(followed)
        assert isinstance(followed.event, stages.AfterAssess)
        return scrub(followed.event.note), followed.event.tools, followed.event.model

    async def before_reflect(self, **told: Any) -> str | None:
        """Return what whoever reflects upon the turn is told besides, None when nobody is to; `told` is as in
        BeforeReflect."""
        followed = await self.calls.ask("before_reflect", **told)
        if followed is None:
            return ""
        assert isinstance(followed.event, stages.BeforeReflect)
        return None if followed.decision is not None else scrub(followed.event.instructions)

    async def reflected(self, *, by: str, note: str, again: bool) -> tuple[str, bool]:
        """Return the note of a reflection, and whether the agent is told it and goes on; nothing of a blocked one."""
        followed = await self.calls.ask("after_reflect", by=by, note=note, again=again)
        if followed is None:
            return note, again
        if followed.decision is not None:
            return "", False
        assert isinstance(followed.event, stages.AfterReflect)
        return scrub(followed.event.note), followed.event.again


def _return(call: ToolUse, outcome: CallOutcome) -> stages.ToolReturn:
    return stages.ToolReturn(
        id=call.id,
        name=call.name,
        input=call.input,
        text=text_in(outcome.result),
        is_error=outcome.result.is_error,
        ran=outcome.ran,
        files_changed=outcome.files_changed,
    )


def _seen(outcome: CallOutcome, followed: StageResult) -> CallOutcome:
    """Return what of `outcome` may be seen."""
    assert isinstance(followed.event, stages.ToolReturn)
    result = outcome.result
    shown, is_error = followed.event.text, followed.event.is_error
    if followed.decision is not None:
        why = getattr(followed.decision, "reason", "a hook ended the turn")
        result, shown, is_error = replace(result, content=()), WITHHELD.format(why=why), True
    if shown != text_in(outcome.result) or not result.content:
        result = with_text(result, scrub(shown)[:MAX_CAPTURED] or "(no output)")
    return replace(outcome, result=replace(result, is_error=is_error), most=followed.event.most)


def _check(followed: StageResult) -> None:
    if isinstance(followed.decision, Abort):
        raise TurnAborted(scrub(followed.decision.message))


def _said(message: Message, text: str) -> Message:
    """Return `message` with `text` for all of its text, where that began."""
    place = next(
        (place for place, block in enumerate(message.content) if isinstance(block, Text)), len(message.content)
    )
    others = [block for block in message.content if not isinstance(block, Text)]
    if not any(isinstance(block, Text) for block in message.content):
        place = next((at for at, block in enumerate(others) if isinstance(block, ToolUse)), len(others))
    return Message(message.role, (*others[:place], *([Text(text)] if text else []), *others[place:]))
