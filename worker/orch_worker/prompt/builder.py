"""The prompt of one agent: its parts as they stand, what hooks made of them, and where a request says them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.messages import text_of, user
from orch_protocol.core.prompts import PromptPart, PromptShown, Tier

from ..backends.base import Backend, PromptPrefix
from ..conversation.framing import is_project
from ..conversation.prompt_parts import LIVE, fit_parts, insert_parts, of_tier, render_parts
from ..conversation.tokens import TokenEstimator
from ..session.plan import TaskList
from ..session.transcript import Transcript
from ..tools.dispatch.toolbox import Toolbox
from .instructions import stable_parts, volatile_parts
from .project import context_parts, context_text
from .project_scan import ProjectScan
from .working_folder import current_day, workspace_text

if TYPE_CHECKING:
    from ..context.archiving import TurnArchiver

__all__ = ["PromptBuilder", "PromptHooks"]

SPACE: Final = "\n\n"
LOOK_SECONDS: Final = 1.0


class PromptHooks(Protocol):
    """Hooks that change an agent's prompt; see `orch_worker.agent.hooks.AgentHooks`."""

    def handles(self, stage: str) -> bool: ...

    async def prompt(
        self, parts: tuple[PromptPart, ...], *, recorded: bool
    ) -> tuple[tuple[PromptPart, ...], tuple[str, ...]]: ...

    async def system_prompt(self, text: str) -> str: ...


class PromptOverlay(Struct, frozen=True):
    """What hooks made of the volatile parts, for the turn: some replaced, some dropped, some added."""

    replaced: dict[str, PromptPart] = {}
    dropped: tuple[str, ...] = ()
    added: tuple[PromptPart, ...] = ()

    @classmethod
    def of(cls, before: Sequence[PromptPart], after: Sequence[PromptPart], dropped: tuple[str, ...]) -> PromptOverlay:
        """Return what was done to `before` so that it became `after`."""
        known = {part.name: part for part in before}
        replaced = {part.name: part for part in after if part.name in known and part != known[part.name]}
        return cls(replaced, dropped, tuple(part for part in after if part.name not in known))

    def over(self, parts: Sequence[PromptPart]) -> tuple[PromptPart, ...]:
        """Return `parts` with it."""
        if self is NONE:
            return tuple(parts)
        taken = frozenset(self.dropped) | {part.name for part in self.added}
        return insert_parts(
            [self.replaced.get(part.name, part) for part in parts if part.name not in taken], self.added
        )


NONE: Final = PromptOverlay()


class PromptBuilder:
    """The prompt of the agent `spec`, as `backend` is told it."""

    def __init__(
        self,
        spec: AgentSpec,
        backend: Backend,
        toolbox: Toolbox,
        *,
        agenda: TaskList,
        transcript: Transcript,
        surroundings: ProjectScan,
        estimator: TokenEstimator,
    ) -> None:
        self._spec, self._rules = spec, spec.prompt.rules
        self._backend, self._toolbox = backend, toolbox
        self._agenda, self._transcript, self._surroundings = agenda, transcript, surroundings
        self._estimator = estimator
        self._tools = toolbox.specs()
        self._built = stable_parts(spec, [tool.name for tool in self._tools])
        self._own = fit_parts(self._built, "stable", self._rules, estimator)
        self._stable, self._notes = self._own
        self._context = ""
        self._sent: tuple[tuple[PromptPart, ...], str, tuple[PromptPart, ...]] | None = None
        """Stable parts, context and volatile parts of the last request."""
        self._overlay = NONE
        self._place = self._low = ""
        self.changed: tuple[str, ...] = ()
        """Skills that are not what they were when they were read."""
        self.memory = ""
        """What is remembered of earlier conversations, as the turn's requests are to say it."""
        self.objects = ""
        """What the agent has at hand, as the next request is to say it."""
        self._system = render_parts(self._stable)
        backend.append_system(self._system, self._tools)

    def loaded(self) -> None:
        """The conversation is another one: what it begins with may be so too."""
        told = next((message for message in self._transcript.session.view if is_project(message)), None)
        self._context = text_of(told) if told is not None else ""
        self._backend.prefix = PromptPrefix(self._system, self._context)

    async def begin(self, hooks: PromptHooks | None, live: Callable[[], Awaitable[str]] | None, *, fresh: bool) -> None:
        """A turn begins: let hooks change the parts, and tell a `fresh` agent, once, what it is told before its task.

        `live` returns what there is to be said of its subagents. Raises StoreError.
        """
        if self._rules.workspace:
            self._place = await self._look_around()
        recorded = bool(self._context) or not fresh
        context = () if recorded else await self._surroundings.look()
        stable = self._built
        self._overlay = NONE
        if hooks is not None and hooks.handles("before_system_prompt"):
            shown = self._recorded() if recorded else context
            volatile = self._volatile(await live() if live is not None else "")
            parts, dropped = await hooks.prompt((*stable, *shown, *volatile), recorded=recorded)
            stable, context = of_tier(parts, "stable"), of_tier(parts, "context")
            self._overlay = PromptOverlay.of(volatile, of_tier(parts, "volatile"), dropped)
        changed = stable is not self._built
        self._stable, self._notes = fit_parts(stable, "stable", self._rules, self._estimator) if changed else self._own
        text = render_parts(self._stable)
        if hooks is not None:
            text = await hooks.system_prompt(text)
        self._tell(text)
        if not recorded:
            self._record(context)

    async def shown(self, live: str, *, fresh: bool) -> PromptShown:
        """Return the prompt as the next request would say it: as hooks left it, when the last turn began."""
        from .current_prompt import prompt_rows

        told, notes = self._context, list(self._notes)
        context = self._recorded() if told else await self._surroundings.look() if fresh else ()
        context, cut = (context, ()) if told else fit_parts(context, "context", self._rules, self._estimator)
        if self._rules.workspace:
            self._place = await self._look_around()
        volatile = self._overlay.over(self._volatile(live, self._low))
        volatile, more = fit_parts(volatile, "volatile", self._rules, self._estimator)
        if self._system != render_parts(self._stable):
            notes.append("hooks have changed the text of the stable parts")
        texts: dict[Tier, str] = {
            "stable": self._system,
            "context": told or context_text(context),
            "volatile": render_parts(volatile),
        }
        before = None
        if self._sent is not None:
            stable, text, last = self._sent
            before = (*stable, *context_parts(text, self._spec.context.rules.files), *last)
        parts = (*self._stable, *context, *volatile)
        return prompt_rows(self._spec.id, parts, texts, self._estimator, before=before, notes=(*notes, *cut, *more))

    def before_request(self, live: str = "", archiving: TurnArchiver | None = None, *, low: str = "") -> None:
        """The next request is to be made: let it end with what is true now. `live` tells of the agent's subagents,
        `low` of budgets that come to an end.

        Where these stand in the system text, that is told to `archiving` too.
        """
        self._low = low
        parts = self._overlay.over(self._volatile(live, low))
        parts, _ = fit_parts(parts, "volatile", self._rules, self._estimator)
        self._sent = (self._stable, self._context, parts)
        system = self._system
        if archiving is not None:
            if not archiving.in_tail:
                system = SPACE.join(filter(None, (system, *(part.text for part in parts if part.name == LIVE))))
                parts = tuple(part for part in parts if part.name != LIVE)
                self._backend.append_system(system, self._tools)
            archiving.told(system, self._backend.prefix)
        self._backend.tail = render_parts(parts)

    async def _look_around(self) -> str:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                replies = tuple(self._transcript.session.replies.values())
                return await asyncio.to_thread(workspace_text, self._spec.cwd, replies)
        except TimeoutError:
            return ""

    def _volatile(self, live: str, low: str = "") -> tuple[PromptPart, ...]:
        return volatile_parts(
            date=current_day() if self._rules.time else "",
            workspace=self._place,
            memory=self.memory,
            changed=self.changed,
            objects=self.objects,
            taken=self._toolbox.withdrawn,
            resting=self._toolbox.resting,
            planning=self._agenda.planning,
            tasks=self._agenda.tasks,
            low=low,
            live=live,
        )

    def _recorded(self) -> tuple[PromptPart, ...]:
        return context_parts(self._context, self._spec.context.rules.files)

    def _tell(self, text: str) -> None:
        if text != self._system:
            self._system = text
            self._backend.append_system(text, self._tools)
            self._backend.prefix = PromptPrefix(text, self._context)

    def _record(self, parts: Sequence[PromptPart]) -> None:
        parts, notes = fit_parts(parts, "context", self._rules, self._estimator)
        self._notes += notes
        if text := context_text(parts):
            told = user(text)
            self._transcript.message(told)
            self._backend.append_user(told.content)
            self.loaded()
