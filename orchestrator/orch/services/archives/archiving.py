"""Services for archival in running agents: plan, commit and summarize archives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError, StoreError
from orch_protocol.services.archives.archiving import (
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
from orch_protocol.services.service import Empty
from orch_worker.backends.prices import prices_for
from orch_worker.tools.api.archive_texts import TEXT_READERS

from ...config.notices import notice
from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord
from ...tree.interface import events
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["commit_archives", "plan_archiving", "summarize_archive", "write_texts"]


@handles(PLAN_ARCHIVING)
async def plan_archiving(root: Supervisor, caller: Caller, params: PlanArchiving) -> ArchivePlan:
    """Return the parts of the caller's conversation to archive now. While archival is off, there are no such parts."""
    node = caller.require_agent(root.tree.agents)
    if not root.config.archival.enabled:
        return ArchivePlan()
    return await root.archives.plan(node.spec, params, prices_for(node.spec.backend, params.context_tokens))


@handles(COMMIT_ARCHIVES)
async def commit_archives(root: Supervisor, caller: Caller, params: CommitArchives) -> Empty:
    """Register the archives that the caller has recorded. After this call the archives can be queried."""
    node = caller.require_agent(root.tree.agents)
    await register_archives(root, node, params.context_tokens, params.problem, params.turns)
    await write_texts(root, node)
    return Empty()


@handles(SUMMARIZE_ARCHIVE)
async def summarize_archive(root: Supervisor, caller: Caller, params: SummarizeArchive) -> SummaryStep:
    """Return the next model request for the summary of an archive, or the finished summary."""
    node = caller.require_agent(root.tree.agents)
    backend: BackendSpec | None = None
    if (model := root.config.archival.summary.model) is not None:
        backend = await root.catalog_for(node.spec.id).complete(parse_model(model))
    if note := root.archives.paragraph_note(backend or node.spec.backend):  # the agent's model was changed
        notice(f"orch: {note}")
    step = await root.archives.summarize(node.spec, params, backend or node.spec.backend)
    if not isinstance(step, SummaryRequest):
        return SummaryStep(stub=step)
    return SummaryStep(step, backend)


async def write_texts(root: Supervisor, node: AgentRecord, *, missing_only: bool = False) -> None:
    """Write the agent's archives as text files if a tool of the agent can read them. A failure is only printed.

    If `missing_only` is True, do nothing if the files exist.
    """
    if TEXT_READERS.isdisjoint(node.spec.active):
        return
    if not missing_only or root.archives.texts_missing(node.spec):
        try:
            await root.archives.write_texts(node.spec)
        except (ConfigError, StoreError) as error:  # the archives themselves can still be searched and read
            print(f"archiving: no text files: {error}", flush=True)


async def register_archives(
    root: Supervisor, node: AgentRecord, context_tokens: int = 0, problem: str = "", turns: dict[str, str] | None = None
) -> None:
    """Register every archive that the agent has recorded.

    `turns` maps the holders of newly archived turns to the query ids of these turns.
    """
    recorded_size = root.archives.size(node.spec)
    records = await root.archives.list_records(node.spec)
    holders = tuple((record.id, record.task) for record in records if record.id not in node.archives)
    # A worker that has just ended may have written further archives during the search.
    complete = root.archives.size(node.spec) == recorded_size
    root.handle(
        events.RecordArchives(node.spec.id, holders, context_tokens, problem, is_complete=complete, turns=turns or {})
    )
    root.archives.note_reported(node.spec, recorded_size)
