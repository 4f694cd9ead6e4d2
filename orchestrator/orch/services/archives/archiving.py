"""What agents ask about their own conversations: what is to be archived, and what is to be said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.services.archiving import (
    COMMIT_ARCHIVES,
    PLAN_ARCHIVING,
    SUMMARIZE_ARCHIVE,
    ArchivePlan,
    CommitArchives,
    PlanArchiving,
    SummarizeArchive,
    SummaryRequest,
    SummaryStep,
)
from orch_protocol.services.requests import LIST_LIVE_SUBAGENTS, LiveAgent
from orch_protocol.services.service import Empty

from ...archival.plan.economics import prices_for
from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord
from ...tree.journal import events
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["commit_archives", "list_live_subagents", "plan_archiving", "summarize_archive"]


@handles(PLAN_ARCHIVING)
async def plan_archiving(root: Supervisor, caller: Caller, params: PlanArchiving) -> ArchivePlan:
    """Return what of the caller's conversation is to go to holders now: nothing while archival is off."""
    node = caller.require_agent(root.tree.agents)
    if not root.config.archival.enabled:
        return ArchivePlan()
    return await root.archives.plan(node.spec, params, prices_for(node.spec.backend, params.context_tokens))


@handles(COMMIT_ARCHIVES)
async def commit_archives(root: Supervisor, caller: Caller, params: CommitArchives) -> Empty:
    """Take note of the archives that the caller has put on record: they can be asked from now on."""
    node = caller.require_agent(root.tree.agents)
    await note(root, node, params.context_tokens, params.problem, params.turns)
    return Empty()


@handles(SUMMARIZE_ARCHIVE)
async def summarize_archive(root: Supervisor, caller: Caller, params: SummarizeArchive) -> SummaryStep:
    """Return what a model is to be asked next about an archive of the caller, or what came of it."""
    node = caller.require_agent(root.tree.agents)
    backend: BackendSpec | None = None
    if (model := root.config.archival.summary.model) is not None:
        backend = await root.catalog_for(node.spec.id).complete(parse_model(model))
    flags = (backend or node.spec.backend).options.get("flags", {})
    step = await root.archives.summarise(node.spec, params, json=flags.get("json", True))
    if not isinstance(step, SummaryRequest):
        return SummaryStep(stub=step)
    return SummaryStep(step, backend)


@handles(LIST_LIVE_SUBAGENTS)
async def list_live_subagents(root: Supervisor, caller: Caller, _: Empty) -> list[LiveAgent]:
    """Return the agents that the caller has spawned and can ask."""
    node = caller.require_agent(root.tree.agents)
    children = (root.tree.agents[id] for id in node.children)
    return [
        LiveAgent(child.spec.id, child.spec.task)
        for child in children
        if not child.is_holder and child.status not in ("killed", "failed")
    ]


async def note(
    root: Supervisor, node: AgentRecord, context_tokens: int = 0, problem: str = "", turns: dict[str, str] | None = None
) -> None:
    """Let the root know of every archive that the agent has on record.

    `turns` has the query ids of the turns that were archived now, by holder.
    """
    size = root.archives.size(node.spec)
    records = await root.archives.known(node.spec)
    holders = tuple((record.id, record.task) for record in records if record.id not in node.archives)
    root.handle(events.RecordArchives(node.spec.id, holders, context_tokens, problem, looked=True, turns=turns or {}))
    root.archives.told(node.spec, size)
