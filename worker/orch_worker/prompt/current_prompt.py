"""Shows the current prompt to people and programs, part by part, with the changes since the last request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.messages import text_of
from orch_protocol.core.prompts import TIERS, PartRow, PromptPart, PromptShown, Tier

from ..backends.model_families import estimator_of
from ..conversation.framing import is_project
from ..conversation.prompt_parts import fit_parts, render_parts
from ..conversation.tokens import TokenEstimator
from ..session.session import SessionState
from ..tools.api.base import ToolContext
from ..tools.dispatch.presets import make_toolbox
from .instructions import stable_parts, volatile_parts
from .project import context_parts
from .working_folder import current_day, workspace_text

__all__ = ["prompt_of_session", "prompt_rows"]

NO_PROCESS = "the agent has no process: its last request is unknown"
HOOKED = "changes by hooks are added when a turn begins"
REMEMBERED = "notes from memory are chosen when a turn begins"
AT_HAND = "workspace entries are chosen when a turn begins"
NOT_TOLD = "the project description is read at the first query"


def prompt_rows(
    id: str,
    parts: Iterable[PromptPart],
    texts: dict[Tier, str],
    estimator: TokenEstimator,
    *,
    before: Sequence[PromptPart] | None,
    notes: Iterable[str] = (),
) -> PromptShown:
    """Return `parts` as rows. Each row is marked with its change since `before`.

    If `before` is None, the last request is unknown.
    """
    last = {part.name: part for part in before or ()}
    rows = []
    for part in parts:
        existing = last.pop(part.name, None)
        change = "" if before is None or existing == part else "new" if existing is None else "changed"
        rows.append(
            PartRow(
                part.name,
                part.tier,
                part.text,
                part.source,
                part.owner,
                part.size,
                estimator.text(part.text),
                part.hash,
                change,  # type: ignore[arg-type]
            )
        )
    rows.sort(key=lambda row: TIERS.index(row.tier))
    return PromptShown(id, tuple(rows), texts, before is not None, tuple(last), tuple(notes))


def prompt_of_session(spec: AgentSpec, session: SessionState, live: str, *, hooked: bool = False) -> PromptShown:
    """Return the prompt of an agent without a process, computed from its `session`. `live` is the live-subagents block.

    `hooked` is True if hooks may change the prompt.
    """
    rules, estimator = spec.prompt.rules, estimator_of(spec.backend)
    context = ToolContext(Path(spec.cwd), spec.env, folder=Path(spec.folder))
    toolbox = make_toolbox(spec.tools, (*spec.root_tools, *spec.executor_tools), context)
    toolbox.withdraw(spec.withdrawn)
    notes = [NO_PROCESS, *([HOOKED] if hooked else [])]
    if spec.memory is not None:
        notes.append(REMEMBERED)
    if spec.workspace is not None:
        notes.append(AT_HAND)
    stable, cut = fit_parts(stable_parts(spec, [tool.name for tool in toolbox.specs()]), "stable", rules, estimator)
    project = next((text_of(message) for message in session.view if is_project(message)), "")
    if not project and not session.was_queried and spec.context.level != "none":
        notes.append(NOT_TOLD)
    volatile, more = fit_parts(
        volatile_parts(
            date=current_day() if rules.time else "",
            workspace=workspace_text(spec.cwd, session.replies.values()) if rules.workspace else "",
            withdrawn=toolbox.withdrawn,
            planning=spec.plan and spec.plan_id not in session.plans_approved,
            tasks=session.tasks,
            live=live,
        ),
        "volatile",
        rules,
        estimator,
    )
    texts: dict[Tier, str] = {"stable": render_parts(stable), "context": project, "volatile": render_parts(volatile)}
    parts = (*stable, *context_parts(project, spec.context.rules.files), *volatile)
    return prompt_rows(spec.id, parts, texts, estimator, before=None, notes=(*notes, *cut, *more))
