"""Services that list agents, and show their state, spec and messages."""

from __future__ import annotations

import asyncio
import os
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import OrchError, StoreError
from orch_protocol.core.messages import Usage
from orch_protocol.core.taint import inherited_labels
from orch_protocol.policy.budget import BudgetAmounts, budget_in
from orch_protocol.services.agents.status import (
    LIST_AGENTS,
    LIST_LIVE_SUBAGENTS,
    SHOW_AGENT,
    SHOW_SPEC,
    SHOW_STATE,
    AgentRow,
    AgentShown,
    ListAgents,
    LiveAgent,
    ShowAgent,
)
from orch_protocol.services.service import AgentRef, Empty
from orch_worker.conversation.history import without_lost
from orch_worker.session.session_reader import read_session
from orch_worker.system.threads import DAEMON_THREADS

from ...config import paths
from ...policy import sandbox as sandboxing
from ...policy.caller import Caller, is_below
from ...policy.permissions import ReadContent, may
from ...tree.agents.state import AgentRecord, TreeState, iso_time
from ...tree.journal.journal import JOURNAL, read_entries
from ..archives.recall import archive_row, find_agent_or_holder
from ..checks.taint import label_caller
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["list_agents", "list_live_subagents", "row", "show", "spec", "state"]

DENIED_PATHS: Final = {None: "", True: "unreadable", False: "by name only"}
COMMANDS_REFUSED: Final = "commands refused: {}"
NO_NAMESPACES: Final = "policy.require_denied_paths is set, and there are no mount namespaces here"
LOCAL_ONLY_TASK = "(only for local models)"
MAY_NEED_CREDENTIALS = ("cold", "died", "starting")
"""Statuses of agents that may need credentials before they can continue."""


@handles(LIST_AGENTS)
async def list_agents(root: Supervisor, caller: Caller, params: ListAgents) -> list[AgentRow]:
    """Return the agents in the order of spawning. Killed agents and holders are included only if `all` is set.

    An agent gets its descendants and its peers. Holders that were never queried come after the agents, and agents of
    other runs come last, ordered by run.
    """
    nodes = list(root.tree.agents) if params.all else _living_agents(root.tree.agents)
    agent = caller.find_agent(root.tree.agents)
    if agent is not None:
        caller_id, peers = agent.spec.id, agent.spec.peers
        nodes = [each for each in nodes if each.spec.id in peers or is_below(root.tree.agents, caller_id, each.spec.id)]
    rows = [await row(root, node) for node in nodes]
    if params.all:
        # An agent asks its own holders; users see those of all agents.
        for owner in [agent] if agent is not None else list(nodes):
            unasked = await _unasked_holders(root, owner)
            rows += unasked
            nodes += [owner] * len(unasked)
    rows = [
        msgspec.structs.replace(each, task=LOCAL_ONLY_TASK, title="", pending=None, activity="", error=None)
        if not may(root.tree.agents, caller, ReadContent(node))
        else each
        for each, node in zip(rows, nodes, strict=True)
    ]
    if agent is not None:  # the rows contain tasks and prompts that other agents wrote
        foreign = (each for each in nodes if each.spec.parent_id != agent.spec.id)
        label_caller(
            root, caller, (mark for each in foreign for mark in inherited_labels(each.spec.marks, each.spec.id))
        )
    if params.runs:
        rows += await root.disk.do(agents_of_other_runs, root.run_events.path.parent, params.all)
    return rows


async def _unasked_holders(root: Supervisor, owner: AgentRecord) -> list[AgentRow]:
    """Return rows of the holders of the agent's archives that were never queried. They have no process."""
    if not owner.archives or owner.deleted:
        return []
    try:
        records = await root.archives.list_shown(owner.spec)
    except StoreError:
        return []  # the list of agents does not depend on a readable session file
    return [
        AgentRow(
            id=record.id,
            seq=0,
            name=record.id,
            parent_id=owner.spec.id,
            depth=owner.spec.depth,
            kind="holder",
            status="cold",
            task=record.task,
            model=owner.model,
            preset="holder",
            pid=None,
            created_at=record.timestamp,
            last_activity=record.timestamp,
            pending=None,
            context_tokens=record.tokens,
            context_limit=0,
            queries=0,
            usage=Usage(),
        )
        for record in records
        if record.id not in root.tree.agents.by_id
    ]


def _living_agents(nodes: TreeState) -> list[AgentRecord]:
    living = (node for node in nodes.by_id.unpacked() if node.status != "killed" and not node.is_holder)
    return sorted(living, key=lambda node: node.spec.seq)


@handles(SHOW_STATE)
async def state(root: Supervisor, caller: Caller, params: AgentRef) -> AgentRow:
    """Return the row of one agent."""
    return await row(root, await find_agent_or_holder(root, caller, params.ref, "look at", "ask"))


@handles(SHOW_SPEC)
async def spec(root: Supervisor, caller: Caller, params: AgentRef) -> AgentSpec:
    """Return the spec of an agent. The fields for environment variables and backend options are empty.

    The removed values may contain secrets.
    """
    found_spec = (await find_agent_or_holder(root, caller, params.ref, "look at", "read")).spec
    public_backend = BackendSpec(found_spec.backend.provider, found_spec.backend.model)
    return msgspec.structs.replace(found_spec, env={}, backend=public_backend)


@handles(SHOW_AGENT)
async def show(root: Supervisor, caller: Caller, params: ShowAgent) -> AgentShown:
    """Return an agent with the last messages of its transcript. The transcript is read from the file without a process.

    The messages of a holder are the queries that the holder received. The messages of its archive are returned too.
    """
    node = await find_agent_or_holder(root, caller, params.ref, "look at", "read")
    if node.deleted:
        raise node.refusal()
    folder = Path(node.spec.folder)
    session = await root.disk.do(read_session, folder)
    kept_messages = without_lost(session.messages) if node.pending is not None and node.running else session.messages
    messages = tuple(kept_messages[-params.messages :]) if params.messages > 0 else ()
    shown = AgentShown(
        await row(root, node),
        messages,
        node.last.reply if node.last else None,
        tasks=session.tasks,
        compactions=session.compactions,
        marks=session.taint_labels,
    )
    if not node.is_holder:
        return shown
    owner = root.tree.agents[node.spec.parent_id or ""]
    record = await root.archives.record(owner.spec, node.spec.id)
    archived_messages = await root.archives.read_stored(owner.spec, record.id, max(0, params.messages))
    return msgspec.structs.replace(shown, archive=archive_row(owner, record), held=tuple(archived_messages))


async def row(root: Supervisor, node: AgentRecord) -> AgentRow:
    """Return the row of an agent of this root."""
    activity = root.activity.get(node.spec.id)
    activity_text = f"{activity.phase}: {activity.detail}" if activity else ""
    base_row = _row(node, root.tree.agents, activity=activity_text, spent=root.budgets.spent(node))
    needs_credentials = node.status in MAY_NEED_CREDENTIALS and root.credentials.missing(node)
    status = "needs credentials" if needs_credentials else base_row.status
    found = msgspec.structs.replace(base_row, status=status, credentials=root.credentials.source(node))
    if node.status == "killed" or node.is_holder or not (why := await _refusal_reason(root, node.spec)):
        return found
    return msgspec.structs.replace(found, denied_paths=COMMANDS_REFUSED.format(why))


async def _refusal_reason(root: Supervisor, spec: AgentSpec) -> str:
    """Return why the commands of the agent are refused because of its denied paths, or ""."""
    rules = spec.policy.rules
    if not rules.denied_paths or spec.sandbox.covers_paths is None:
        return ""
    if not spec.sandbox.covers_paths:
        return NO_NAMESPACES if rules.require_denied_paths else ""
    search = partial(sandboxing.denied_paths_problem, spec, root.orch_folders)
    return await asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, search)


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
        preset=spec.agent_type or spec.preset,
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
        error=_deletion_error(node) if node.deleted else node.error,
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


def _deletion_error(node: AgentRecord) -> str:
    return f"its {'archive' if node.is_holder else 'session'} was deleted on {node.deleted[:10]}"


# --- Agents of other runs in the same home, read from their journals ---

MAX_RUNS: Final = 64


def agents_of_other_runs(own_run: Path, include_ended: bool = False) -> list[AgentRow]:
    """Return the agents of all runs whose folders are beside the folder `own_run`, ordered by run and agent number.

    With `include_ended`, killed agents and holders are included. Temporary runs that have ended are left out. Runs
    whose journal cannot be read are left out too; `orch fsck` reports these runs. If there are more than 64 runs, only
    the 64 most recently changed runs are read.
    """
    journals: list[tuple[float, Path, os.stat_result]] = []
    for journal in own_run.parent.glob(f"*/{JOURNAL}"):
        try:
            stat = journal.stat()
        except OSError:
            continue  # the run was removed after it was listed
        if journal.parent.name != own_run.name:
            journals.append((stat.st_mtime, journal, stat))
    rows: list[AgentRow] = []
    newest = sorted(journals, key=lambda each: each[0], reverse=True)[:MAX_RUNS]
    for _, journal, stat in sorted(newest, key=lambda each: each[1]):
        running = paths.is_in_use(journal.parent)
        if not running and journal.parent.name.startswith(paths.UNNAMED_RUN_PREFIX):
            continue
        try:
            agents = _agents_in(journal, stat.st_ino, stat.st_mtime_ns, stat.st_size)
        except (OrchError, OSError):
            continue
        selected = [each for each in agents if include_ended or (each.status != "killed" and each.kind != "holder")]
        rows += selected if running else map(_not_running, selected)
    return rows


@lru_cache(maxsize=MAX_RUNS)
def _agents_in(journal: Path, _inode: int, _modified: int, _size: int) -> tuple[AgentRow, ...]:
    """Return all agents of the run of `journal`.

    The arguments after `journal` are part of the cache key, so a changed file is read again. Raises StoreError,
    OSError.
    """
    nodes = TreeState(read_entries(journal))
    return tuple(msgspec.structs.replace(_row(node, nodes), run=journal.parent.name) for node in nodes)


def _not_running(row: AgentRow) -> AgentRow:
    """Return `row` as the row of an agent without a process, for a run whose program has ended.

    The journal of such a run still lists the processes that ended together with the program.
    """
    status = "cold" if row.status in ("starting", "idle", "busy") else row.status
    return msgspec.structs.replace(row, status=status, pid=None, pending=None)


@handles(LIST_LIVE_SUBAGENTS)
async def list_live_subagents(root: Supervisor, caller: Caller, _: Empty) -> list[LiveAgent]:
    """Return the subagents that the caller spawned and that it can query now."""
    node = caller.require_agent(root.tree.agents)
    children = (root.tree.agents[id] for id in node.children)
    return [
        LiveAgent(child.spec.id, child.spec.task)
        for child in children
        if not child.is_holder and child.status not in ("killed", "failed")
    ]
