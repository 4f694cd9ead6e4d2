"""What agents are and do just now."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from orch_protocol.agent.project import Surveyed
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.budget import budget_in
from orch_protocol.core.errors import ConfigError
from orch_protocol.services.requests import AgentRow, Empty, List, Ref, Show, Shown
from orch_protocol.services.run_events import EventsSince, RunEvent
from orch_worker.conversation.history import without_lost
from orch_worker.session.transcript import read_session

from ...supervisor.run_events import RECORDED, read_events
from ...tree.agents.state import Node, iso
from ..archives.recall import archive_row, found
from ..checks.local_only import kept_from

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["events", "list_agents", "row", "show", "spec", "state", "survey"]


KEPT = "(for local models alone)"


async def list_agents(root: Supervisor, caller: str | None, params: List) -> list[AgentRow]:
    """Return the agents in the order they were spawned; killed ones and holders only when all are asked for."""
    nodes = list(root.tree.nodes) if params.all else _listed(root)
    rows = [row(root, node) for node in nodes]
    return [
        msgspec.structs.replace(each, task=KEPT, title="", pending=None, activity="", error=None)
        if kept_from(root, caller, node)
        else each
        for each, node in zip(rows, nodes, strict=True)
    ]


def _listed(root: Supervisor) -> list[Node]:
    awake = (node for node in root.tree.nodes.by_id.awake() if node.status != "killed" and not node.is_holder)
    return sorted(awake, key=lambda node: node.spec.seq)


async def state(root: Supervisor, _: str | None, params: Ref) -> AgentRow:
    """Return one agent."""
    return row(root, await found(root, params.ref))


async def spec(root: Supervisor, _: str | None, params: Ref) -> AgentSpec:
    """Return what an agent was made as, without what may be secret: its tools' environment, its model's options."""
    made = (await found(root, params.ref)).spec
    bare = BackendSpec(made.backend.provider, made.backend.model)
    return msgspec.structs.replace(made, env={}, backend=bare)


async def events(root: Supervisor, _: str | None, params: EventsSince) -> list[RunEvent]:
    """Return what happened in the run after an event, as its journal has it; wait for more when there is none."""
    agent = (await found(root, params.ref)).spec.id if params.ref is not None else None
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


async def show(root: Supervisor, _: str | None, params: Show) -> Shown:
    """Return one agent with the tail of its transcript, read from the file: no process is started for it.

    A holder's file has what it was asked; what it holds comes with that.
    """
    node = await found(root, params.ref)
    if node.deleted:
        raise node.refusal()
    folder = Path(node.spec.folder)
    session = await root.disk.do(read_session, folder)
    said = without_lost(session.messages) if node.pending is not None and node.running else session.messages
    messages = tuple(said[-params.messages :]) if params.messages > 0 else ()
    shown = Shown(
        row(root, node),
        messages,
        node.last.reply if node.last else None,
        tasks=session.tasks,
        compactions=session.compactions,
        marks=session.marks,
    )
    if not node.is_holder:
        return shown
    owner = root.tree.nodes[node.spec.parent_id or ""]
    record = await root.archives.record(owner.spec, node.spec.id)
    held = await root.archives.read(owner.spec, record.id, 1, max(0, params.messages))
    return msgspec.structs.replace(shown, archive=archive_row(owner, record), held=tuple(held))


def row(root: Supervisor, node: Node) -> AgentRow:
    """Return `node` as its row."""
    spec = node.spec
    activity = root.activity.get(spec.id)
    tree_usage = root.tree.nodes.tree_usage(spec.id)
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
        created_at=iso(node.created_at),
        last_activity=iso(node.last_activity),
        pending=node.pending.head if node.pending else None,
        context_tokens=node.context_tokens,
        context_limit=node.context_limit,
        queries=node.queries,
        usage=node.usage,
        tree_usage=tree_usage,
        cwd=spec.cwd,
        folder=spec.folder,
        tools=spec.active,
        activity=f"{activity.phase}: {activity.detail}" if activity else "",
        error=_gone(node) if node.deleted else node.error,
        repaired=node.repaired,
        budget=budget_in(spec.limits),
        planning=spec.plan,
        title=node.title,
        spent=root.budgets.spent(node),
        outcome=node.last.outcome if node.last is not None and node.pending is None else "",
        sandbox=spec.sandbox.level,
        deleted=node.deleted,
    )


def _gone(node: Node) -> str:
    return f"its {'archive' if node.is_holder else 'session'} was deleted on {node.deleted[:10]}"


# --- What is in the folder that an agent works in ---


async def survey(root: Supervisor, caller: str | None, _: Empty) -> Surveyed:
    """Return what is in the calling agent's folder; it leaves out itself what its policy does not let it be told."""
    if caller is None:
        raise ConfigError("only an agent can ask what is in its folder")
    spec = root.tree.nodes[caller].spec
    return await root.projects.of(Path(spec.cwd), spec.context.rules)
