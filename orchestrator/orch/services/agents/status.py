"""What agents are and do just now."""

from __future__ import annotations

import asyncio
import os
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from orch_protocol.agent.project import ProjectSurvey
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import OrchError
from orch_protocol.policy.budget import BudgetAmounts, budget_in
from orch_protocol.services.requests import (
    LIST_AGENTS,
    SHOW_AGENT,
    SHOW_SPEC,
    SHOW_STATE,
    AgentRef,
    AgentRow,
    AgentShown,
    ListAgents,
    ShowAgent,
)
from orch_protocol.services.resources import SURVEY_PROJECT
from orch_protocol.services.run_events import LIST_EVENTS, EventsSince, RunEvent
from orch_protocol.services.service import Empty
from orch_worker.conversation.history import without_lost
from orch_worker.session.transcript import read_session

from ...config import paths
from ...policy.caller import Caller, is_below
from ...supervisor.run_events import RECORDED, read_events
from ...tree.agents.state import AgentRecord, TreeState, iso_time
from ...tree.journal.journal import JOURNAL, read_entries
from ..archives.recall import archive_row, find_agent_or_holder
from ..checks.local_only import is_hidden_from
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["events", "list_agents", "row", "show", "spec", "state", "survey_project"]

DENIED_PATHS: Final[dict[bool | None, Literal["", "unreadable", "by name only"]]] = {
    None: "",
    True: "unreadable",
    False: "by name only",
}


KEPT = "(for local models alone)"
WAITS = ("cold", "died", "starting")
"""What agents are that may need credentials before they go on."""


@handles(LIST_AGENTS)
async def list_agents(root: Supervisor, caller: Caller, params: ListAgents) -> list[AgentRow]:
    """Return the agents in the order they were spawned; killed ones and holders only if `all` is set.

    An agent gets those below itself and its peers. Agents of other runs come last, by run.
    """
    nodes = list(root.tree.agents) if params.all else _listed(root.tree.agents)
    agent = caller.find_agent(root.tree.agents)
    if agent is not None:
        own, peers = agent.spec.id, agent.spec.peers
        nodes = [each for each in nodes if each.spec.id in peers or is_below(root.tree.agents, own, each.spec.id)]
    rows = [row(root, node) for node in nodes]
    rows = [
        msgspec.structs.replace(each, task=KEPT, title="", pending=None, activity="", error=None)
        if is_hidden_from(root, caller, node)
        else each
        for each, node in zip(rows, nodes, strict=True)
    ]
    if params.runs and caller.is_user:
        rows += await root.disk.do(agents_of_other_runs, root.happenings.path.parent, params.all)
    return rows


def _listed(nodes: TreeState) -> list[AgentRecord]:
    awake = (node for node in nodes.by_id.unpacked() if node.status != "killed" and not node.is_holder)
    return sorted(awake, key=lambda node: node.spec.seq)


@handles(SHOW_STATE)
async def state(root: Supervisor, caller: Caller, params: AgentRef) -> AgentRow:
    """Return one agent."""
    return row(root, await find_agent_or_holder(root, caller, params.ref, "look at", "ask"))


@handles(SHOW_SPEC)
async def spec(root: Supervisor, caller: Caller, params: AgentRef) -> AgentSpec:
    """Return what an agent was made as, without what may be secret: its tools' environment, its model's options."""
    made = (await find_agent_or_holder(root, caller, params.ref, "look at", "read")).spec
    bare = BackendSpec(made.backend.provider, made.backend.model)
    return msgspec.structs.replace(made, env={}, backend=bare)


@handles(LIST_EVENTS)
async def events(root: Supervisor, caller: Caller, params: EventsSince) -> list[RunEvent]:
    """Return what happened in the run after an event, as its journal has it; wait for more when there is none.

    Without a `ref` an agent gets what happened to itself.
    """
    ref = params.ref if params.ref is not None else caller.agent_id
    agent = (await find_agent_or_holder(root, caller, ref, "look at", "read")).spec.id if ref is not None else None
    deadline = asyncio.get_running_loop().time() + params.seconds
    read = partial(
        read_events, root.happenings.path, root.happenings.path.parent.name, params.since, params.most, agent
    )
    while True:
        news = root.waiters.watch(RECORDED)
        try:
            rows = await root.disk.do(read)
            left = deadline - asyncio.get_running_loop().time()
            if rows or left <= 0:
                return rows
            await asyncio.wait([news], timeout=left)
        finally:
            news.cancel()


@handles(SHOW_AGENT)
async def show(root: Supervisor, caller: Caller, params: ShowAgent) -> AgentShown:
    """Return one agent with the tail of its transcript, read from the file: no process is started for it.

    A holder's file has what it was asked; what it holds comes with that.
    """
    node = await find_agent_or_holder(root, caller, params.ref, "look at", "read")
    if node.deleted:
        raise node.refusal()
    folder = Path(node.spec.folder)
    session = await root.disk.do(read_session, folder)
    said = without_lost(session.messages) if node.pending is not None and node.running else session.messages
    messages = tuple(said[-params.messages :]) if params.messages > 0 else ()
    shown = AgentShown(
        row(root, node),
        messages,
        node.last.reply if node.last else None,
        tasks=session.tasks,
        compactions=session.compactions,
        marks=session.marks,
    )
    if not node.is_holder:
        return shown
    owner = root.tree.agents[node.spec.parent_id or ""]
    record = await root.archives.record(owner.spec, node.spec.id)
    held = await root.archives.read(owner.spec, record.id, 1, max(0, params.messages))
    return msgspec.structs.replace(shown, archive=archive_row(owner, record), held=tuple(held))


def row(root: Supervisor, node: AgentRecord) -> AgentRow:
    """Return the row of an agent of this root."""
    activity = root.activity.get(node.spec.id)
    doing = f"{activity.phase}: {activity.detail}" if activity else ""
    made = _row(node, root.tree.agents, activity=doing, spent=root.budgets.spent(node))
    waits = node.status in WAITS and root.credentials.missing(node)
    status = "needs credentials" if waits else made.status
    return msgspec.structs.replace(made, status=status, credentials=root.credentials.source(node))


def _row(node: AgentRecord, nodes: TreeState, *, activity: str = "", spent: BudgetAmounts | None = None) -> AgentRow:
    spec = node.spec
    return AgentRow(
        id=spec.id,
        seq=spec.seq,
        name=spec.name,
        parent_id=spec.parent_id,
        depth=spec.depth,
        kind=spec.kind,
        status=node.status,
        task=spec.task,
        model=node.model,
        preset=spec.preset,
        pid=node.pid,
        created_at=iso_time(node.created_at),
        last_activity=iso_time(node.last_activity),
        pending=node.pending.head if node.pending else None,
        context_tokens=node.context_tokens,
        context_limit=node.context_limit,
        queries=node.queries,
        usage=node.usage,
        tree_usage=nodes.tree_usage(spec.id),
        cwd=spec.cwd,
        folder=spec.folder,
        tools=spec.active,
        activity=activity,
        error=_gone(node) if node.deleted else node.error,
        repaired=node.repaired,
        budget=budget_in(spec.limits),
        planning=spec.plan,
        title=node.title,
        spent=spent if spent is not None else BudgetAmounts(),
        outcome=node.last.outcome if node.last is not None and node.pending is None else "",
        sandbox=spec.sandbox.level,
        denied_paths=DENIED_PATHS[spec.sandbox.covers_paths],
        deleted=node.deleted,
    )


def _gone(node: AgentRecord) -> str:
    return f"its {'archive' if node.is_holder else 'session'} was deleted on {node.deleted[:10]}"


# --- Agents of other runs in the same home, read from their journals ---

MOST_RUNS: Final = 64


def agents_of_other_runs(own: Path, everything: bool = False) -> list[AgentRow]:
    """Return the agents of the runs beside the run folder `own`, ordered by run and agent number.

    Includes killed agents and holders if `everything` is set. Temporary runs that have ended are left out, and so are
    runs whose journal cannot be read: `orch fsck` reports these. Of more than 64 runs, the last changed are read.
    """
    found: list[tuple[float, Path, os.stat_result]] = []
    for journal in own.parent.glob(f"*/{JOURNAL}"):
        try:
            stat = journal.stat()
        except OSError:
            continue  # removed since it was listed
        if journal.parent.name != own.name:
            found.append((stat.st_mtime, journal, stat))
    rows: list[AgentRow] = []
    newest = sorted(found, key=lambda each: each[0], reverse=True)[:MOST_RUNS]
    for _, journal, stat in sorted(newest, key=lambda each: each[1]):
        running = paths.is_in_use(journal.parent)
        if not running and journal.parent.name.startswith(paths.UNNAMED_RUN_PREFIX):
            continue
        try:
            agents = _agents_in(journal, stat.st_ino, stat.st_mtime_ns, stat.st_size)
        except (OrchError, OSError):
            continue
        shown = [each for each in agents if everything or (each.status != "killed" and each.kind != "holder")]
        rows += shown if running else map(_not_running, shown)
    return rows


@lru_cache(maxsize=MOST_RUNS)
def _agents_in(journal: Path, _inode: int, _modified: int, _size: int) -> tuple[AgentRow, ...]:
    """Return all agents of the run of `journal`. The file's state is part of the key, so a changed file is read again.

    Raises StoreError, OSError.
    """
    nodes = TreeState(read_entries(journal))
    return tuple(msgspec.structs.replace(_row(node, nodes), run=journal.parent.name) for node in nodes)


def _not_running(row: AgentRow) -> AgentRow:
    """Return `row` of a run whose program has ended: its journal still names the processes that ended with it."""
    status = "cold" if row.status in ("starting", "idle", "busy") else row.status
    return msgspec.structs.replace(row, status=status, pid=None, pending=None)


# --- What is in the folder that an agent works in ---


@handles(SURVEY_PROJECT)
async def survey_project(root: Supervisor, caller: Caller, _: Empty) -> ProjectSurvey:
    """Return what is in the calling agent's folder; it leaves out itself what its policy does not let it be told."""
    spec = caller.require_agent(root.tree.agents).spec
    return await root.projects.of(Path(spec.cwd), spec.context.rules)
