"""Deleting for good all that was said to agents which were killed, or last asked, long enough ago.

Each deletion is on record first: from then on the agent answers nobody, and a root that finds its folder there when it
starts takes that away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_protocol.core.errors import AgentBusyError, ConfigError, LockedError
from orch_protocol.services.sessions import PRUNE_SESSIONS
from orch_protocol.session.tree import PrunedSession, PrunedSessions, PruneSessions

from ...archival.store.deletion import bytes_in
from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord, TreeState, iso_time
from ...tree.journal import events
from ..archives.prune import seconds_of
from ..checks.idle import AgentBusy, holders_of, stop_processes
from ..dispatch.handlers import handles
from .deletion import finish_deletions

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["over_since", "prune_sessions"]

OVER: Final = ("killed", "failed")
ASLEEP: Final = ("cold", "died")


@handles(PRUNE_SESSIONS)
async def prune_sessions(root: Supervisor, _: Caller, params: PruneSessions) -> PrunedSessions:
    """Delete the sessions of agents that were killed, or never came up, and that nobody has touched since; with `idle`
    also of those that nobody has asked, which are killed first.

    Whoever gives up waiting does not end it. Raises ConfigError, StoreError.
    """
    if params.keep < 0:
        raise ConfigError(f"{params.keep} sessions cannot be kept: give 0 or more")
    before = root.clock() - seconds_of(params.older)
    chosen = over_since(root.tree.agents, before, keep=params.keep, idle=params.idle)
    if params.dry_run:
        sizes = await root.disk.do(_sizes, [node.spec.folder for node in chosen])
        return PrunedSessions(tuple(map(_row, chosen, sizes)), sum(sizes))
    pruning = asyncio.ensure_future(_pruned(root, chosen))
    pruning.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(pruning)


def over_since(nodes: TreeState, before: float, *, keep: int = 0, idle: bool = False) -> list[AgentRecord]:
    """Return the agents that were over at `before`, with `idle` or asleep, with all below them, and whose sessions are
    kept so far; but for the `keep` of them that were active last. Those that were active first come first.

    A copy of a session has what it needs in its own folder: that there are copies keeps none.
    """
    ends = (*OVER, *ASLEEP) if idle else OVER
    over: dict[str, AgentRecord] = {}
    busy: set[str] = set()
    """Above whom something is not over."""
    for node in reversed(list(nodes)):  # who was spawned comes after who spawned it
        id, above = node.spec.id, node.spec.parent_id
        quiet = not node.running and node.pending is None and node.last_activity <= before
        if node.is_holder:
            is_over = quiet or (node.status == "idle" and node.last_activity <= before)
        else:
            is_over = node.status in ends and quiet and id not in busy
            if is_over and node.spec.persist and not node.deleted:
                over[id] = node
        if not is_over and above is not None:
            busy.add(above)
    latest = sorted(over.values(), key=lambda node: node.last_activity, reverse=True)
    # Whoever is ended takes along all below: not those that are to be kept.
    kept = {id for node in latest[:keep] for id in _above(nodes, node)}
    return [node for node in latest[keep:][::-1] if node.status in OVER or node.spec.id not in kept]


def _above(nodes: TreeState, node: AgentRecord) -> Iterator[str]:
    while (id := node.spec.parent_id) is not None:
        yield id
        node = nodes[id]


async def _pruned(root: Supervisor, chosen: Iterable[AgentRecord]) -> PrunedSessions:
    rows: list[PrunedSession] = []
    busy: dict[str, str] = {}
    async with root.holds.turn:
        try:
            for node in chosen:
                row = _row(node, *await root.disk.do(_sizes, [node.spec.folder]))
                try:
                    await _discard(root, node)
                except (AgentBusy, AgentBusyError, LockedError) as error:
                    busy[node.spec.id] = str(error)
                else:
                    rows.append(row)
        finally:
            await finish_deletions(root)
    return PrunedSessions(tuple(rows), sum(row.bytes for row in rows), busy)


async def _discard(root: Supervisor, node: AgentRecord) -> None:
    with root.holds.hold(node.spec.id):
        if node.status not in OVER:
            _end(root, node)
        holders = holders_of(root, node)
        await stop_processes(root, holders, holders)
        root.handle(events.DiscardSession(node.spec.id))
    await root.archives.forget(node.spec)
    root.tools.pop(node.spec.id, None)


def _end(root: Supervisor, node: AgentRecord) -> None:
    """Kill an agent that is asleep, with all below it. Raises AgentBusy when somebody has woken one of them."""
    for each in root.tree.agents.subtree(node.spec.id):
        if not each.is_holder and (each.running or each.pending is not None or each.status not in (*OVER, *ASLEEP)):
            raise AgentBusy(
                f"session of agent {each.spec.name!r} ({each.spec.id}) was not deleted: the agent received a query"
            )
    root.handle(events.KillRequested((node.spec.id,), "the user"))


def _row(node: AgentRecord, size: int) -> PrunedSession:
    spec = node.spec
    return PrunedSession(spec.id, spec.seq, spec.name, node.title or spec.task, iso_time(node.last_activity), size)


# In threads.


def _sizes(folders: Iterable[str]) -> list[int]:
    return [bytes_in(Path(folder)) for folder in folders]
