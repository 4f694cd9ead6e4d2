"""Builds the prompt of one agent: its parts, the changes by hooks, and the place of each part in the request."""

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
    """Hooks that change the prompt of an agent. See `orch_worker.agent.hooks.AgentHooks`."""

    def handles(self, stage: str) -> bool: ...

    async def prompt(
        self, parts: tuple[PromptPart, ...], *, recorded: bool
    ) -> tuple[tuple[PromptPart, ...], tuple[str, ...]]: ...

    async def system_prompt(self, text: str) -> str: ...


class PromptOverlay(Struct, frozen=True):
    """The changes by hooks to the volatile parts in this turn: replaced, dropped and added parts."""

    replaced: dict[str, PromptPart] = {}
    dropped: tuple[str, ...] = ()
    added: tuple[PromptPart, ...] = ()

    @classmethod
    def of(cls, before: Sequence[PromptPart], after: Sequence[PromptPart], dropped: tuple[str, ...]) -> PromptOverlay:
        """Return the changes that turned `before` into `after`."""
        known = {part.name: part for part in before}
        replaced = {part.name: part for part in after if part.name in known and part != known[part.name]}
        return cls(replaced, dropped, tuple(part for part in after if part.name not in known))

    def over(self, parts: Sequence[PromptPart]) -> tuple[PromptPart, ...]:
        """Return `parts` with the changes applied."""
        if self is NONE:
            return tuple(parts)
        taken = frozenset(self.dropped) | {part.name for part in self.added}
        return insert_parts(
            [self.replaced.get(part.name, part) for part in parts if part.name not in taken], self.added
        )


NONE: Final = PromptOverlay()


class PromptBuilder:
    """Builds the prompt of the agent `spec`, and passes the prompt to `backend`."""

    def __init__(
        self,
        spec: AgentSpec,
        backend: Backend,
        toolbox: Toolbox,
        *,
        task_list: TaskList,
        transcript: Transcript,
        project_scan: ProjectScan,
        estimator: TokenEstimator,
    ) -> None:
        self._spec, self._rules = spec, spec.prompt.rules
        self._backend, self._toolbox = backend, toolbox
        self._task_list, self._transcript, self._project_scan = task_list, transcript, project_scan
        self._estimator = estimator
        self._tools = toolbox.specs()
        self._built = stable_parts(spec, [tool.name for tool in self._tools])
        self._own = fit_parts(self._built, "stable", self._rules, estimator)
        self._stable, self._notes = self._own
        self._context = ""
        self._sent: tuple[tuple[PromptPart, ...], str, tuple[PromptPart, ...]] | None = None
        """The stable parts, the context text and the volatile parts of the last request."""
        self._overlay = NONE
        self._folder_text = self._budget_warning = ""
        self.changed: tuple[str, ...] = ()
        """Names of skills that have changed since the agent read them."""
        self.memory = ""
        """The remembered notes that the requests of this turn contain."""
        self.workspace_block = ""
        """The workspace block that the next request contains."""
        self._system = self._own_text = render_parts(self._stable)
        backend.append_system(self._system, self._tools)

    def loaded(self) -> None:
        """Read the context text from the transcript again. Called after the conversation was replaced."""
        project = next((message for message in self._transcript.session.view if is_project(message)), None)
        self._context = text_of(project) if project is not None else ""
        self._set_prefix()

    async def begin(self, hooks: PromptHooks | None, live: Callable[[], Awaitable[str]] | None, *, fresh: bool) -> None:
        """Prepare the prompt of a turn: run hooks, and record the project description once if the agent is `fresh`.

        `live` returns the live-subagents block. Raise StoreError if the description cannot be recorded.
        """
        if self._rules.workspace:
            self._folder_text = await self._read_folder_text()
        recorded = bool(self._context) or not fresh
        context = () if recorded else await self._project_scan.look()
        stable = self._built
        self._overlay = NONE
        if hooks is not None and hooks.handles("before_system_prompt"):
            shown = self._recorded() if recorded else context
            volatile = self._volatile(await live() if live is not None else "")
            parts, dropped = await hooks.prompt((*stable, *shown, *volatile), recorded=recorded)
            stable, context = of_tier(parts, "stable"), of_tier(parts, "context")
            self._overlay = PromptOverlay.of(volatile, of_tier(parts, "volatile"), dropped)
        if stable is self._built:
            (self._stable, self._notes), text = self._own, self._own_text
        else:
            self._stable, self._notes = fit_parts(stable, "stable", self._rules, self._estimator)
            text = render_parts(self._stable)
        if hooks is not None:
            text = await hooks.system_prompt(text)
        self._set_system_text(text)
        if not recorded:
            self._record(context)

    async def shown(self, live: str, *, fresh: bool) -> PromptShown:
        """Return the prompt of the next request, with the changes by hooks in the last turn."""
        from .current_prompt import prompt_rows

        context_shown, notes = self._context, list(self._notes)
        context = self._recorded() if context_shown else await self._project_scan.look() if fresh else ()
        context, cut = (context, ()) if context_shown else fit_parts(context, "context", self._rules, self._estimator)
        if self._rules.workspace:
            self._folder_text = await self._read_folder_text()
        volatile = self._overlay.over(self._volatile(live, self._budget_warning))
        volatile, more = fit_parts(volatile, "volatile", self._rules, self._estimator)
        if self._system != render_parts(self._stable):
            notes.append("hooks have changed the text of the stable parts")
        texts: dict[Tier, str] = {
            "stable": self._system,
            "context": context_shown or context_text(context),
            "volatile": render_parts(volatile),
        }
        before = None
        if self._sent is not None:
            stable, text, last = self._sent
            before = (*stable, *context_parts(text, self._spec.context.rules.files), *last)
        parts = (*self._stable, *context, *volatile)
        return prompt_rows(self._spec.id, parts, texts, self._estimator, before=before, notes=(*notes, *cut, *more))

    def before_request(
        self, live: str = "", archiving: TurnArchiver | None = None, *, budget_warning: str = ""
    ) -> None:
        """Put the volatile parts at the end of the next request.

        `live` is the live-subagents block. `budget_warning` is the notice about budgets that are nearly used up. If
        archiving keeps the block in the system text, the block is put there, and `archiving` receives the system text.
        Otherwise `archiving` supplies the list of archived turns, which follows their records in the conversation.
        """
        self._budget_warning = budget_warning
        parts = self._overlay.over(self._volatile(live, budget_warning))
        if parts:
            parts, _ = fit_parts(parts, "volatile", self._rules, self._estimator)
        self._sent = (self._stable, self._context, parts)
        system = self._system
        if archiving is not None:
            if not archiving.in_tail:
                system = SPACE.join(filter(None, (system, *(part.text for part in parts if part.name == LIVE))))
                parts = tuple(part for part in parts if part.name != LIVE)
                self._backend.append_system(system, self._tools)
            self._set_prefix(archiving.archives)
            archiving.prompt_sent(system, self._backend.prefix)
        self._backend.tail = render_parts(parts)

    async def _read_folder_text(self) -> str:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                replies = tuple(self._transcript.session.replies.values())
                return await asyncio.to_thread(workspace_text, self._spec.cwd, replies)
        except TimeoutError:
            return ""

    def _volatile(self, live: str, budget_warning: str = "") -> tuple[PromptPart, ...]:
        return volatile_parts(
            date=current_day() if self._rules.time else "",
            workspace=self._folder_text,
            memory=self.memory,
            changed=self.changed,
            workspace_block=self.workspace_block,
            withdrawn=self._toolbox.withdrawn,
            disabled_this_turn=self._toolbox.disabled_this_turn,
            planning=self._task_list.planning,
            tasks=self._task_list.tasks,
            budget_warning=budget_warning,
            live=live,
        )

    def _recorded(self) -> tuple[PromptPart, ...]:
        return context_parts(self._context, self._spec.context.rules.files)

    def _set_system_text(self, text: str) -> None:
        if text != self._system:
            self._system = text
            self._backend.append_system(text, self._tools)
            self._set_prefix()

    def _set_prefix(self, archives: str = "") -> None:
        self._backend.prefix = PromptPrefix(self._system, self._context, archives)

    def _record(self, parts: Sequence[PromptPart]) -> None:
        parts, notes = fit_parts(parts, "context", self._rules, self._estimator)
        self._notes += notes
        if text := context_text(parts):
            message = user(text)
            self._transcript.message(message)
            self._backend.append_user(message.content)
            self.loaded()
