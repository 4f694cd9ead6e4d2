"""What an agent's loop says to hooks: one method a stage, each of which returns what is to be done now.

Nothing here raises what a hook raised. `Aborted` is a hook's decision, and ends the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from orch_protocol import hooks as stages
from orch_protocol.hooks import Abort
from orch_protocol.messages import Block, Message, Opaque, Reply, StopReason, Text, ToolUse, assistant, text_of, user
from orch_protocol.text import scrub

from .backends.base import AssistantTurn, Backend, BackendInfo, Instead
from .chain import Followed
from .hook_calls import HookCalls
from .loop import Aborted
from .session import acceptable
from .tools.toolbox import MAX_CAPTURED, Outcome, text_in, with_text

__all__ = ["AgentHooks"]

WITHHELD: Final = "[Withheld: {why}]"
ENDED: Final = "a hook ended the turn"
CUT: Final = "(The response was withheld: the turn was ended while hooks looked at it.)"

Dispatch = Callable[..., Awaitable[Outcome]]


class AgentHooks:
    """The hooks of one agent, as its loop sees them. `calls` knows which there are and calls them."""

    def __init__(self, calls: HookCalls) -> None:
        self.calls = calls
        self._gate = asyncio.Lock()
        self._ended: Aborted | None = None
        self._begun = False

    # Around a turn.

    async def before_turn(self, prompt: str, messages: int) -> tuple[str, tuple[str, ...]]:
        """Return the prompt to take down, and what is to be said after it. Raises Aborted."""
        self._ended = None
        if not self._begun:
            self._begun = True
            await self._note("session_start", messages=messages)
        followed = await self._run("before_turn", prompt=prompt)
        if followed is not None:
            _check(followed)
            assert isinstance(followed.event, stages.BeforeTurn)
            prompt, more = followed.event.prompt, followed.inject
        else:
            more = ()
        await self._note("turn_start", prompt=prompt)
        return scrub(prompt), scrub(more)

    async def output(self, text: str, stop: StopReason) -> tuple[str, StopReason]:
        """Return the text of the reply, and why the turn ended."""
        followed = await self._run("before_output", text=text, stop_reason=stop)
        if followed is None:
            return text, stop
        if isinstance(followed.decision, Abort):
            return scrub(followed.decision.message), "aborted"
        assert isinstance(followed.event, stages.Output)
        return scrub(followed.event.text), stop

    async def turn_end(self, reply: Reply) -> None:
        """The reply is on record."""
        told = {"text": reply.text, "stop_reason": reply.stop_reason, "usage": reply.usage}
        await self._note("turn_end", **told, tool_calls=reply.tool_calls)

    async def error(self, error: Exception) -> None:
        """The turn ended without a reply."""
        await self._note("error", kind=type(error).__name__, message=str(error))

    # A step.

    async def step_start(self, step: int) -> None:
        """The model is to be asked, after `step` responses."""
        self.calls.step = step
        await self._note("step_start")

    async def request(self, backend: Backend, info: BackendInfo) -> Instead | None:
        """Return what the next request is to hold in place of the conversation, None: that. Raises Aborted."""
        messages: tuple[Message, ...] | None = None
        if "context" in self.calls.on:
            followed = await self._run("context", messages=detached(backend.transcript()))
            assert followed is not None
            assert isinstance(followed.event, stages.Context)
            _check(followed)
            if followed.inject or any("messages" in done.actions for done in followed.done):
                messages = acceptable((*followed.event.messages, *map(user, followed.inject)))
                messages = messages or tuple(backend.transcript())
        system = tail = None
        if "before_provider_request" in self.calls.on:
            asked = stages.ProviderRequest(
                provider=info.provider,
                model=info.model,
                system=getattr(backend, "system", ""),
                tools=tuple(tool.name for tool in getattr(backend, "tools", ())),
                messages=detached(messages or backend.transcript()),
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
        return Instead(messages, system, tail)

    async def response(self, turn: AssistantTurn, info: BackendInfo) -> tuple[AssistantTurn, BaseException | None]:
        """Return the response to take down, and what is to be raised once it is on record."""
        self.calls.step += 1
        if "after_provider_response" not in self.calls.on:
            return turn, None
        text = text_of(turn.message)
        try:
            followed = await self._run(
                "after_provider_response",
                provider=info.provider,
                model=info.model,
                text=text,
                message=detached([turn.message])[0],
                stop_reason=turn.stop_reason,
                usage=turn.usage,
            )
        except asyncio.CancelledError as cancelled:  # it is paid for, and nobody has said that it may be seen
            return replace(turn, message=assistant(CUT)), cancelled
        assert followed is not None
        assert isinstance(followed.event, stages.ProviderResponse)
        if isinstance(followed.decision, Abort):
            message = assistant(scrub(followed.decision.message) or CUT)
            return replace(turn, message=message), Aborted(scrub(followed.decision.message))
        if followed.event.text == text:
            return turn, None
        return replace(turn, message=_said(turn.message, scrub(followed.event.text))), None

    async def call(self, dispatch: Dispatch, call: ToolUse) -> Outcome:
        """Return what `call` comes to: changed, refused, or run by `dispatch`, and its result as it may be seen.

        Calls are dispatched in the order in which this was called.
        """
        async with self._gate:
            running = await self._begin(call, dispatch)
        return await self._returned(call, await running)

    async def _begin(self, call: ToolUse, dispatch: Dispatch) -> Awaitable[Outcome]:
        if self._ended is not None:
            return asyncio.ensure_future(dispatch(call, blocked=ENDED))
        followed = await self._run("tool_call", id=call.id, name=call.name, input=call.input)
        if followed is None:
            return asyncio.ensure_future(dispatch(call))
        assert isinstance(followed.event, stages.ToolCall)
        blocked = ""
        if isinstance(followed.decision, Abort):
            self._ended = Aborted(scrub(followed.decision.message))
            blocked = ENDED
        elif followed.decision is not None:
            blocked = scrub(followed.decision.reason) or ENDED
        try:
            changed = replace(call, input=msgspec.json.decode(msgspec.json.encode(scrub(followed.event.input))))
        except (TypeError, ValueError, RecursionError) as error:
            changed, blocked = call, blocked or f"hooks made no JSON of its arguments: {error}"
        return asyncio.ensure_future(dispatch(changed, approved=bool(followed.approved), blocked=blocked))

    async def _returned(self, call: ToolUse, outcome: Outcome) -> Outcome:
        result = outcome.result
        text = text_in(result)
        followed = await self._run(
            "tool_result",
            id=call.id,
            name=call.name,
            input=call.input,
            text=text,
            is_error=result.is_error,
            ran=outcome.ran,
            files_changed=outcome.files_changed,
        )
        if followed is None:
            return outcome
        assert isinstance(followed.event, stages.ToolReturn)
        shown, is_error = followed.event.text, followed.event.is_error
        if followed.decision is not None:
            if isinstance(followed.decision, Abort):
                self._ended = self._ended or Aborted(scrub(followed.decision.message))
            why = getattr(followed.decision, "reason", "a hook ended the turn")
            result, shown, is_error = replace(result, content=()), WITHHELD.format(why=why), True
        if shown != text or not result.content:
            result = with_text(result, scrub(shown)[:MAX_CAPTURED] or "(no output)")
        return replace(outcome, result=replace(result, is_error=is_error))

    async def step_end(self, calls: Iterable[ToolUse]) -> None:
        """Response and results are on record. Raises Aborted when a hook has decided so meanwhile."""
        await self._note("step_end", calls=tuple(call.name for call in calls))
        if self._ended is not None:
            raise self._ended

    async def heard(self, text: str) -> list[str]:
        """Return what of `text`, which was said to the agent, it is to hear; nothing when it was blocked."""
        followed = await self._run("steering_received", text=text)
        if followed is None:
            return [text]
        if followed.decision is not None:
            return []
        assert isinstance(followed.event, stages.SteeringReceived)
        return [followed.event.text, *followed.inject]

    async def _run(self, stage: str, **fields: Any) -> Followed | None:
        """Return what came of `stage`, None when there is no hook for it."""
        if stage not in self.calls.on:
            return None
        return await self.calls.run(stages.STAGES[stage].event(**fields))

    async def _note(self, stage: str, **fields: Any) -> None:
        await self._run(stage, **fields)


def _check(followed: Followed) -> None:
    if isinstance(followed.decision, Abort):
        raise Aborted(scrub(followed.decision.message))


def _said(message: Message, text: str) -> Message:
    """Return `message` with `text` for all of its text, where that began."""
    place = next(
        (place for place, block in enumerate(message.content) if isinstance(block, Text)), len(message.content)
    )
    others = [block for block in message.content if not isinstance(block, Text)]
    if not any(isinstance(block, Text) for block in message.content):
        place = next((at for at, block in enumerate(others) if isinstance(block, ToolUse)), len(others))
    return Message(message.role, (*others[:place], *([Text(text)] if text else []), *others[place:]))


def detached(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return `messages` as they can be handed to anybody: whatever is done to them, the conversation stays as it is."""
    return tuple(
        replace(message, content=tuple(map(_detached, message.content)))
        if any(isinstance(block, (ToolUse, Opaque)) for block in message.content)
        else message
        for message in messages
    )


def _detached(block: Block) -> Block:
    if isinstance(block, ToolUse):
        return replace(block, input=deepcopy(block.input))
    return replace(block, raw=deepcopy(block.raw)) if isinstance(block, Opaque) else block
