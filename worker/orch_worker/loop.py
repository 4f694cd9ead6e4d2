"""A turn: a prompt, model responses and the tools they call, and the reply. Leaves a valid conversation, always.

Valid means: each call is answered by exactly one result, in call order, in the very next message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Literal

from orch_protocol.errors import BackendError, ConfigError, OrchError
from orch_protocol.messages import (
    Message,
    Reply,
    StopReason,
    Text,
    ToolResult,
    ToolUse,
    Usage,
    text_of,
    tool_uses,
    user,
)
from orch_protocol.spec import Limits
from orch_protocol.text import scrub

from .backends.base import AssistantTurn, Backend, OnText
from .tokens import CHARS_PER_TOKEN, clip
from .tools.base import Outcome, Toolbox, refuse

__all__ = ["run_turn"]

GRACE_SECONDS: Final = 1.0

Record = Callable[[Message], None]
Report = Callable[[str, str, int], None]
Cut = Literal["cancelled", "timeout"]

WHY: Final[dict[str, str]] = {
    "cancelled": "The turn was cancelled.",
    "timeout": "The turn ran out of time.",
    "max_turns": "The turn was stopped after {steps} steps, the most it may take; ask again to let it go on.",
    "max_tokens": "The response was cut off: it reached the most tokens the model may give.",
}
NOT_COMPLETE: Final = frozenset({"max_tokens", "refusal", "error"})
CUT_OFF: Final = (
    "Not run: the response ended with {why!r}, so the call may be incomplete. Make it again, in smaller parts."
)


async def run_turn(
    *,
    query_id: str,
    agent_id: str,
    prompt: str,
    backend: Backend,
    toolbox: Toolbox,
    record: Record,
    limits: Limits,
    report: Report,
    cancel: asyncio.Event,
    on_text: OnText | None = None,
) -> Reply:
    """Run one turn and return its reply.

    Every message goes through `record` before it becomes part of the conversation. `cancel` ends the turn at once with
    stop reason `cancelled`, the deadline with `timeout`, too many steps with `max_turns`. Raises BackendError, with
    the turn's `usage` so far as an attribute, and ConfigError for an empty prompt.
    """
    if not prompt.strip():
        raise ConfigError("the prompt is empty: say what the agent is to do")
    turn = _Turn(backend, toolbox, record, limits, report, cancel, on_text)
    return await turn.run(query_id, agent_id, scrub(prompt))


class _Turn:
    def __init__(
        self,
        backend: Backend,
        toolbox: Toolbox,
        record: Record,
        limits: Limits,
        report: Report,
        cancel: asyncio.Event,
        on_text: OnText | None,
    ) -> None:
        self._backend = backend
        self._toolbox = toolbox
        self._record = record
        self._limits = limits
        self._cancel = cancel
        self._report = report
        self._on_text = on_text
        self._deadline = asyncio.get_running_loop().time() + limits.turn_seconds
        self._usage = Usage()
        self._steps = 0
        self._calls = 0
        self._files: dict[str, None] = {}
        self._text = ""

    async def run(self, query_id: str, agent_id: str, prompt: str) -> Reply:
        self._answer_what_was_left()
        message = user(prompt)
        self._record(message)
        self._backend.append_user(message.content)
        cancelled = asyncio.create_task(self._cancel.wait())
        try:
            stop = await self._steps_until_done(cancelled)
        except BackendError as error:
            vars(error)["usage"] = self._usage
            raise
        finally:
            cancelled.cancel()
            self._report("idle", "", self._steps)
        return Reply(
            id=agent_id,
            query_id=query_id,
            text=self._reply_text(stop),
            stop_reason=stop,
            usage=self._usage,
            tool_calls=self._calls,
            files_changed=tuple(self._files),
            steps=self._steps,
        )

    def _answer_what_was_left(self) -> None:
        """Close the calls that a death left open, so that the conversation can go on."""
        messages = self._backend.transcript()
        left = tool_uses(messages[-1]) if messages and messages[-1].role == "assistant" else []
        if left:
            why = "No result: the process ended before the call was done. It may have had effects."
            self._append_results([refuse(call, why).result for call in left])

    async def _steps_until_done(self, cancelled: asyncio.Task[bool]) -> StopReason:
        while self._steps < self._limits.max_turns:
            if cut := self._cut():
                return cut
            turn = await self._response(cancelled)
            if not isinstance(turn, AssistantTurn):
                return turn
            calls = tool_uses(turn.message)
            if not calls:
                return turn.stop_reason
            cut = await self._run_calls(calls, turn.stop_reason, cancelled)
            if cut:
                return cut
        return "max_turns"

    async def _response(self, cancelled: asyncio.Task[bool]) -> AssistantTurn | Cut:
        """Return the next model response, recorded, or what cut it short."""
        info = self._backend.info()
        self._report("model", f"{info.provider}:{info.model}" if info.model else info.provider, self._steps + 1)
        task = asyncio.create_task(self._backend.assistant_turn(self._on_text))
        cut = await self._wait([task], cancelled)
        if cut:
            return cut
        try:
            turn = task.result()
        except OrchError:
            raise
        except Exception as error:
            raise BackendError(f"{info.provider}: {type(error).__name__}: {error}") from error
        self._steps += 1
        self._usage += turn.usage
        message = turn.message if turn.message.content else Message("assistant", (Text("(an empty response)"),))
        self._text = text_of(turn.message) or self._text
        self._record(message)
        self._backend.append_assistant(message)
        return turn

    async def _run_calls(
        self, calls: Sequence[ToolUse], stop_reason: StopReason, cancelled: asyncio.Task[bool]
    ) -> Cut | None:
        """Run `calls` at once and append their results in call order; return what cut them short, if anything."""
        if stop_reason in NOT_COMPLETE:
            self._append_results([refuse(call, CUT_OFF.format(why=stop_reason)).result for call in calls])
            return None
        if cut := self._cut():
            self._append_results([refuse(call, f"Not run: {WHY[cut]}").result for call in calls])
            return cut
        self._report("tool", ", ".join(dict.fromkeys(call.name for call in calls)), self._steps)
        tasks = [asyncio.create_task(self._toolbox.dispatch(call)) for call in calls]
        cut = await self._wait(tasks, cancelled)
        outcomes = [_outcome(call, task, cut) for call, task in zip(calls, tasks, strict=True)]
        for outcome in outcomes:
            self._calls += outcome.ran
            self._files |= dict.fromkeys(outcome.files_changed)
        self._append_results([outcome.result for outcome in outcomes])
        return cut

    def _append_results(self, results: Sequence[ToolResult]) -> None:
        self._record(Message("user", tuple(results)))
        self._backend.append_tool_result(results)

    def _cut(self) -> Cut | None:
        if self._cancel.is_set():
            return "cancelled"
        return "timeout" if asyncio.get_running_loop().time() >= self._deadline else None

    async def _wait(
        self,
        tasks: Sequence[asyncio.Task[AssistantTurn]] | Sequence[asyncio.Task[Outcome]],
        cancelled: asyncio.Task[bool],
    ) -> Cut | None:
        """Wait until all `tasks` are done, or end them for the reason that is returned."""
        pending: set[asyncio.Task[AssistantTurn] | asyncio.Task[Outcome]] = set(tasks)
        clock = asyncio.get_running_loop().time
        try:
            while pending:
                left = max(0.0, self._deadline - clock())
                done, _ = await asyncio.wait({*pending, cancelled}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                pending -= done
                if pending and (cancelled in done or not done):
                    return "cancelled" if done else "timeout"
            return None
        finally:
            await _end(pending)

    def _reply_text(self, stop: StopReason) -> str:
        why = WHY.get(stop, "").format(steps=self._steps)
        text = clip(self._text, self._limits.reply_tokens * CHARS_PER_TOKEN, "the transcript has it all")
        return f"{text}\n\n[{why}]".lstrip() if why else text


def _outcome(call: ToolUse, task: asyncio.Task[Outcome], cut: Cut | None) -> Outcome:
    if task.done() and not task.cancelled():
        return task.result()
    why = f"Not finished: {WHY[cut] if cut else 'the call was cancelled.'} It may have had effects."
    return Outcome(refuse(call, why).result)


async def _end(tasks: set[asyncio.Task[AssistantTurn] | asyncio.Task[Outcome]]) -> None:
    """Cancel `tasks`, and wait a moment for them; one that will not end is left behind."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(_retrieve)
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE_SECONDS)


def _retrieve(task: asyncio.Task[AssistantTurn] | asyncio.Task[Outcome]) -> None:
    if not task.cancelled():
        task.exception()
