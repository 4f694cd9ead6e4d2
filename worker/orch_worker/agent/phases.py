"""The phases of a turn: an assessment before the first request, and a reflection at the end.

If a phase fails, the error is recorded and the turn continues without the phase.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec.structs import replace

from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import COMPLETE_STOPS, StopReason, ToolUse, Usage, text_of, user
from orch_protocol.core.phases import Assess, By, Phase, Reflect
from orch_protocol.core.text import scrub
from orch_protocol.hooks.options import HookOptions
from orch_protocol.wire.worker_messages import Query

from ..session.session import SessionState
from ..session.transcript import Transcript
from ..tools.api.base import ToolError
from ..tools.dispatch.toolbox import CallOutcome, Dispatcher
from . import assess as assessing
from . import reflect as reflecting
from .assess import Assessment
from .features.turn_extension import TurnExtension, TurnState
from .reflect import Reflection
from .side_requests import RequestLimits, SideReply, SideRequests

if TYPE_CHECKING:
    from ..hooks.runner import EmitEvent
    from .hooks import AgentHooks

__all__ = ["ASSESSMENT_HEADER", "REFLECTION_HEADER", "Phases"]

ASSESSMENT_HEADER: Final = "[Assessment]"
REFLECTION_HEADER: Final = "[Reflection]"
CUT_OFF: Final = "interrupted: the turn reached its deadline or was cancelled"
REFLECT_STOPS: Final = COMPLETE_STOPS | {"max_turns", "max_tokens", "refusal"}
"""Stop reasons after which an agent can reflect: the turn was not ended from outside, and budget is left."""


class AddUsage(Protocol):
    """A function that adds to the usage of the turn."""

    def __call__(self, usage: Usage, /) -> None:
        """Add `usage`."""


class Phases(TurnExtension):
    """The phases of one agent. The beginning of a turn determines which phases the turn has."""

    def __init__(
        self,
        options: HookOptions,
        side_requests: SideRequests,
        transcript: Transcript,
        *,
        hooks: Callable[[], AgentHooks | None] = lambda: None,
        emitter_for: Callable[[str], EmitEvent | None] = lambda _: None,
    ) -> None:
        self._assess: Assess = options.assess
        self._reflect: Reflect = options.reflect
        self._side_requests = side_requests
        self._transcript = transcript
        self._model_selection = side_requests.model_selection
        self._current_hooks, self._emitter_for = hooks, emitter_for
        self._hooks: AgentHooks | None = None
        self._emit: EmitEvent | None = None
        self._query_id = ""
        self._prompt = ""
        self._turn_number = 0
        self._last_turn_failed = False
        self._continuations = 0
        self._calls: list[reflecting.CallSummary] = []
        self._closing_note = ""
        self._answer: SideReply | None = None
        """The model's answer to a reflection. Set until the answer is recorded."""
        self._pending_record: Callable[[], None] | None = None
        """Records the assessment as soon as the prompt is recorded."""

    async def turn_began(self, query_id: str, query: Query) -> None:  # noqa: ARG002
        """Reset the state of the phases for the turn of `query`."""
        session: SessionState = self._transcript.session
        self._query_id, self._hooks, self._emit = query_id, self._current_hooks(), self._emitter_for(query_id)
        self._prompt, self._closing_note, self._continuations, self._calls = "", "", 0, []
        self._pending_record = None
        self._turn_number = session.turns + 1
        last_reply = session.last_reply
        self._last_turn_failed = session.interrupted is not None or (
            last_reply is not None and last_reply.stop_reason != "end_turn"
        )

    # The assessment.

    async def before_turn(self, turn: TurnState) -> None:
        """Assess the prompt, and add the note of the assessment. Raise TurnAborted if a hook ends the turn."""
        turn.notes += await self._assess_prompt(turn.prompt, turn.toolbox, turn.add_usage)

    async def _assess_prompt(self, prompt: str, toolbox: Dispatcher, add_usage: AddUsage) -> tuple[str, ...]:
        self._prompt = prompt
        settings, answer, assessment = self._assess, None, None
        due = settings.kind != "off" and self._is_due(settings, failed=self._last_turn_failed)
        if due and settings.kind == "rule":
            assessment = assessing.apply_rules(settings.rules, prompt)
        elif due:
            request = assessing.system_text(settings), assessing.request_text(prompt, toolbox.active)
            answer = await self._side_requests.ask(settings.model, *request, _request_limits(settings))
            if answer is not None:
                add_usage(answer.usage)
                assessment, answer = _parse_reply(answer, lambda text: assessing.parse_result(settings, text))
        by = settings.kind if assessment is not None else ""
        assessment = replace(assessment or Assessment(), note=scrub(assessment.note) if assessment is not None else "")
        if by or answer is not None:
            self._pending_record = lambda: self._record(
                "assess", settings.kind, answer, assessment.note, assessment.actions
            )
        return await self._apply_assessment(assessment, by, toolbox)

    async def _apply_assessment(self, assessment: Assessment, source: str, toolbox: Dispatcher) -> tuple[str, ...]:
        active = toolbox.active
        tools, model, note = assessing.allowed_tools(assessment, active), assessment.model, assessment.text_for_agent
        if self._hooks is not None:
            fields = {"prompt": self._prompt, "by": source, "note": note, "tools": tools, "model": model}
            note, tools, model = await self._hooks.after_assess(**fields)
        if tools != active:
            toolbox.restrict_to(tools)
        if model:
            try:
                await self._model_selection.use_model(model)
            except (OrchError, ToolError) as error:
                self._report_phase("assess", f"{model} cannot answer: {error}", source, is_error=True)
        return (f"{ASSESSMENT_HEADER}\n{note}",) if note else ()

    def prompt_recorded(self) -> None:
        """Record the assessment after the prompt.

        An assessment has a cost. It is therefore recorded even if the turn ended before the prompt was recorded.
        """
        if self._pending_record is not None:
            record, self._pending_record = self._pending_record, None
            record()

    # The reflection.

    def call_ended(self, call: ToolUse, outcome: CallOutcome) -> None:
        """Add a finished call to the data for the reflection."""
        line = reflecting.line_of(text_of(replace(user(""), content=outcome.result.content)))
        self._calls.append(reflecting.CallSummary(call.name, line, outcome.result.is_error))

    async def reflect(self, turn: TurnState, stop: StopReason) -> str | None:
        """Return the user message with which the turn continues, or None if the turn may end."""
        settings = self._reflect
        if settings.kind == "off" or stop not in REFLECT_STOPS:
            return None
        files = tuple(turn.files_changed)
        outcome = reflecting.TurnOutcome(self._prompt, turn.text, stop, tuple(self._calls), files)
        if not self._is_due(settings, failed=outcome.failed):
            return None
        self._answer = None
        try:
            return await self._run_reflection(settings, outcome, turn.add_usage)
        except asyncio.CancelledError:  # Record the usage so far.
            cut = replace(self._answer or SideReply(settings.model or ""), error=CUT_OFF)
            self._record("reflect", settings.kind, cut, "", ())
            raise

    async def _run_reflection(
        self, settings: Reflect, outcome: reflecting.TurnOutcome, add_usage: AddUsage
    ) -> str | None:
        instructions, stop, reflection = "", outcome.stop, None
        if self._hooks is not None:
            hook_instructions = await self._hooks.before_reflect(
                text=outcome.reply,
                stop_reason=stop,
                tool_calls=len(outcome.calls),
                failed=sum(call.is_error for call in outcome.calls),
                files_changed=outcome.files,
            )
            if hook_instructions is None:
                return None
            instructions = hook_instructions
        if settings.kind == "rule":
            reflection = reflecting.apply_rules(settings.rules, outcome)
        else:
            system_text = f"{reflecting.SYSTEM}\n{instructions}".rstrip()
            prompt = reflecting.request_text(outcome, settings.max_tokens // 2)
            self._answer = answer = await self._side_requests.ask(
                settings.model, system_text, prompt, _request_limits(settings)
            )
            if answer is not None:
                add_usage(answer.usage)
                reflection, self._answer = _parse_reply(answer, reflecting.parse_result)
        answer = self._answer
        can_continue = self._continuations < settings.max_continuations and stop in COMPLETE_STOPS
        if reflection is None:
            if answer is not None:
                self._record("reflect", settings.kind, answer, "", ())
            return None
        if answer is None and reflection.again and not can_continue:
            return None  # The note of this rule is for the agent and not for the reply, but the agent cannot continue.
        reflection = Reflection(scrub(reflection.note), again=reflection.again and can_continue)
        if self._hooks is not None:
            note, again = await self._hooks.after_reflect(
                by=settings.kind, note=reflection.note, again=reflection.again
            )
            reflection = Reflection(note, again and can_continue and bool(note))
        self._record("reflect", settings.kind, answer, reflection.note, reflection.actions)
        if reflection.again:
            self._continuations += 1
            return f"{REFLECTION_HEADER}\n{reflection.note}"
        self._closing_note = reflection.note
        return None

    async def output(self, text: str, stop: StopReason) -> tuple[str, StopReason]:
        """Return the text of the reply, with the note of the reflection at the end. Return `stop` unchanged."""
        return (f"{text}\n\n{REFLECTION_HEADER} {self._closing_note}".lstrip() if self._closing_note else text), stop

    # Common to both phases.

    def _is_due(self, settings: Assess | Reflect, *, failed: bool) -> bool:
        return (settings.when == "always" or failed) and self._turn_number % settings.every_turns == 0

    def _record(self, phase: Phase, by: Any, answer: SideReply | None, note: str, actions: tuple[str, ...]) -> None:
        source: By = by
        model, error = (answer.model, scrub(answer.error)) if answer is not None else ("", "")
        usage = answer.usage if answer is not None and answer.usage != Usage() else None
        details = {"note": note, "actions": () if error else actions, "error": error, "usage": usage}
        try:
            self._transcript.phase(turn=self._query_id, phase=phase, by=source, model=model, **details)
        finally:
            if answer is not None:
                answer.reservation.settle(answer.usage)
        self._report_phase(
            phase, error or ", ".join(actions) + (f": {note}" if note else ""), model or source, is_error=bool(error)
        )

    def _report_phase(self, phase: str, text: str, by: str, *, is_error: bool) -> None:
        if is_error:
            print(f"{phase}: {text}", flush=True)
        if self._emit is not None:
            self._emit(phase, text, by, is_error)


def _request_limits(settings: Assess | Reflect) -> RequestLimits:
    return RequestLimits(settings.max_tokens, settings.max_cost_usd, settings.seconds)


def _parse_reply(answer: SideReply, parse: Callable[[str], Any]) -> tuple[Any, SideReply]:
    """Return the parsed answer and `answer`. For an invalid answer, return None and `answer` with an error."""
    if answer.error:
        return None, answer
    try:
        return parse(answer.text), answer
    except ValueError as error:
        return None, replace(answer, error=str(error))
