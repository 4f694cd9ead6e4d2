"""The phases of an agent's turns, as its loop sees them: an assessment before the first request, reflection at the end.

Whatever goes wrong in one is on record, and the turn goes on as if there were none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec.structs import replace

from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import StopReason, ToolUse, Usage, text_of, user
from orch_protocol.core.phases import Assess, By, Phase, Reflect
from orch_protocol.core.text import scrub
from orch_protocol.hooks.options import HookOptions

from ..session.session import SessionState
from ..session.transcript import Transcript
from ..tools.api.base import ToolError
from ..tools.dispatch.toolbox import CallOutcome, Executor
from . import assess as assessing
from . import reflect as reflecting
from .assess import Assessment
from .reflect import Reflection
from .side_requests import RequestLimits, SideReply, SideRequests

if TYPE_CHECKING:
    from .hooks import AgentHooks

__all__ = ["ASSESSED", "REFLECTED", "Phases"]

ASSESSED: Final = "[Assessment]"
REFLECTED: Final = "[Reflection]"
CUT: Final = "cut off: the turn had no more time, or was ended"
REFLECTED_UPON: Final = frozenset({"end_turn", "stop_sequence", "max_turns", "max_tokens", "refusal"})
"""How turns end of which there is something to be said: nobody ended them, and something is left to spend."""

Tell = Callable[[str, str, str, bool], None]
"""Told what a phase came to: which one, what, by whom, whether that was an error."""


class AddUsage(Protocol):
    """Adds to what the turn used."""

    def __call__(self, usage: Usage, /) -> None:
        """Add `usage`."""


class Phases:
    """The phases of one agent. Whether there is anything to do in a turn is settled when it begins."""

    def __init__(self, options: HookOptions, side: SideRequests, transcript: Transcript) -> None:
        self._assess: Assess = options.assess
        self._reflect: Reflect = options.reflect
        self._side = side
        self._transcript = transcript
        self._answering = side.answering
        self._hooks: AgentHooks | None = None
        self._tell: Tell | None = None
        self._turn = ""
        self._prompt = ""
        self._number = 0
        self._went_wrong = False
        self._tries = 0
        self._calls: list[reflecting.CallSummary] = []
        self._behind = ""
        self._said: SideReply | None = None
        """What a model said of the outcome, while that is not on record."""
        self._waiting: Callable[[], None] | None = None
        """What is to be recorded once the turn's prompt is."""

    def turn_began(self, turn: str, hooks: AgentHooks | None, tell: Tell | None) -> None:
        """A turn begins, with these hooks; `tell` is told of what phases come to."""
        session: SessionState = self._transcript.session
        self._turn, self._hooks, self._tell = turn, hooks, tell
        self._prompt, self._behind, self._tries, self._calls = "", "", 0, []
        self._waiting = None
        self._number = session.turns + 1
        last = session.last_said
        self._went_wrong = session.interrupted is not None or (last is not None and last.stop_reason != "end_turn")

    # Before the turn.

    async def assess(self, prompt: str, toolbox: Executor, spend: AddUsage) -> tuple[str, ...]:
        """Let the turn of `prompt` have what an assessment says; return what the agent is told. Raises Aborted."""
        self._prompt = prompt
        settings, said, found = self._assess, None, None
        due = settings.kind != "off" and self._is_due(settings, wrong=self._went_wrong)
        if due and settings.kind == "rule":
            found = assessing.by_rules(settings.rules, prompt)
        elif due:
            asked = assessing.system(settings), assessing.question(prompt, toolbox.active)
            said = await self._side.ask(settings.model, *asked, _bounds(settings))
            if said is not None:
                spend(said.usage)
                found, said = _read(said, lambda text: assessing.of_words(settings, text))
        by = settings.kind if found is not None else ""
        found = replace(found or Assessment(), note=scrub(found.note) if found is not None else "")
        if by or said is not None:
            self._waiting = lambda: self._record("assess", settings.kind, said, found.note, found.did)
        return await self._apply(found, by, toolbox)

    async def _apply(self, found: Assessment, by: str, toolbox: Executor) -> tuple[str, ...]:
        active = toolbox.active
        tools, model, note = assessing.kept_tools(found, active), found.model, found.told
        if self._hooks is not None:
            told = {"prompt": self._prompt, "by": by, "note": note, "tools": tools, "model": model}
            note, tools, model = await self._hooks.assessed(**told)
        if tools != active:
            toolbox.rest(tools)
        if model:
            try:
                await self._answering.turn(model)
            except (OrchError, ToolError) as error:
                self._say("assess", f"{model} cannot answer: {error}", by, is_error=True)
        return (f"{ASSESSED}\n{note}",) if note else ()

    def begun(self) -> None:
        """The turn's prompt is on record, or never will be: so is what was said of it, from now on."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting()

    # At its end.

    def called(self, call: ToolUse, outcome: CallOutcome) -> None:
        """A call of the turn came to `outcome`."""
        line = reflecting.line_of(text_of(replace(user(""), content=outcome.result.content)))
        self._calls.append(reflecting.CallSummary(call.name, line, outcome.result.is_error))

    async def reflect(self, reply: str, stop: StopReason, files: tuple[str, ...], spend: AddUsage) -> str | None:
        """Return what the agent is to be told so that it goes on, None when the turn may end."""
        settings = self._reflect
        if settings.kind == "off" or stop not in REFLECTED_UPON:
            return None
        outcome = reflecting.TurnOutcome(self._prompt, reply, stop, tuple(self._calls), files)
        if not self._is_due(settings, wrong=outcome.failed):
            return None
        self._said = None
        try:
            return await self._reflected(settings, outcome, spend)
        except asyncio.CancelledError:  # what it took by then counts
            cut = replace(self._said or SideReply(settings.model or ""), error=CUT)
            self._record("reflect", settings.kind, cut, "", ())
            raise

    async def _reflected(self, settings: Reflect, outcome: reflecting.TurnOutcome, spend: AddUsage) -> str | None:
        more, stop, found = "", outcome.stop, None
        if self._hooks is not None:
            asked = await self._hooks.before_reflect(
                text=outcome.reply,
                stop_reason=stop,
                tool_calls=len(outcome.calls),
                failed=sum(call.is_error for call in outcome.calls),
                files_changed=outcome.files,
            )
            if asked is None:
                return None
            more = asked
        if settings.kind == "rule":
            found = reflecting.by_rules(settings.rules, outcome)
        else:
            system = f"{reflecting.SYSTEM}\n{more}".rstrip()
            prompt = reflecting.question(outcome, settings.max_tokens // 2)
            self._said = said = await self._side.ask(settings.model, system, prompt, _bounds(settings))
            if said is not None:
                spend(said.usage)
                found, self._said = _read(said, reflecting.of_words)
        said = self._said
        can_go_on = self._tries < settings.max_continuations and stop in ("end_turn", "stop_sequence")
        if found is None:
            if said is not None:
                self._record("reflect", settings.kind, said, "", ())
            return None
        if said is None and found.again and not can_go_on:
            return None  # a rule's words are for the agent, which has heard them
        found = Reflection(scrub(found.note), again=found.again and can_go_on)
        if self._hooks is not None:
            note, again = await self._hooks.reflected(by=settings.kind, note=found.note, again=found.again)
            found = Reflection(note, again and can_go_on and bool(note))
        self._record("reflect", settings.kind, said, found.note, found.did)
        if found.again:
            self._tries += 1
            return f"{REFLECTED}\n{found.note}"
        self._behind = found.note
        return None

    def behind(self, text: str) -> str:
        """Return the reply `text` with what was said of it."""
        return f"{text}\n\n{REFLECTED} {self._behind}".lstrip() if self._behind else text

    # Both.

    def _is_due(self, settings: Assess | Reflect, *, wrong: bool) -> bool:
        return (settings.when == "always" or wrong) and self._number % settings.every_turns == 0

    def _record(self, phase: Phase, by: Any, said: SideReply | None, note: str, did: tuple[str, ...]) -> None:
        who: By = by
        model, error = (said.model, scrub(said.error)) if said is not None else ("", "")
        usage = said.usage if said is not None and said.usage != Usage() else None
        told = {"note": note, "did": () if error else did, "error": error, "usage": usage}
        try:
            self._transcript.phase(turn=self._turn, phase=phase, by=who, model=model, **told)
        finally:
            if said is not None:
                said.hold.settle(said.usage)
        self._say(phase, error or ", ".join(did) + (f": {note}" if note else ""), model or who, is_error=bool(error))

    def _say(self, phase: str, text: str, by: str, *, is_error: bool) -> None:
        if is_error:
            print(f"{phase}: {text}", flush=True)
        if self._tell is not None:
            self._tell(phase, text, by, is_error)


def _bounds(settings: Assess | Reflect) -> RequestLimits:
    return RequestLimits(settings.max_tokens, settings.max_cost_usd, settings.seconds)


def _read(said: SideReply, read: Callable[[str], Any]) -> tuple[Any, SideReply]:
    """Return what `said` comes to, and it itself with the error of an answer that comes to nothing."""
    if said.error:
        return None, said
    try:
        return read(said.text), said
    except ValueError as error:
        return None, replace(said, error=str(error))
