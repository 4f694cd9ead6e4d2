"""Deletes old sessions. A session is old if its agent ended, or was last used, before a given time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from orch_protocol.core.errors import AgentBusyError, ConfigError, LockedError
from orch_protocol.services.sessions.deletion import PrunedSession
from orch_protocol.services.sessions.retention import PRUNE_SESSIONS, PrunedSessions, PruneSessions

from ...policy.caller import Caller
from ...sessions.deletion import deletion_row
from ...tree.agents.state import AgentRecord, TreeState
from ...tree.interface import events
from ..archives.prune import parse_age
from ..checks.idle import AgentBusy
from ..dispatch.handlers import handles
from .deletion import discard, finish_deletions

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["deletable_since", "prune_sessions"]

ENDED: Final = ("killed", "failed")
WITHOUT_PROCESS: Final = ("cold", "died")


@handles(PRUNE_SESSIONS)
async def prune_sessions(root: Supervisor, _: Caller, params: PruneSessions) -> PrunedSessions:
    """Delete the sessions of agents that were killed or failed and were not active within the given time.

    With `idle`, kill idle agents and delete their sessions too. If the caller stops waiting, the deletion continues.
    Raises ConfigError, StoreError.
    """
    if params.keep < 0:
        raise ConfigError(f"keep must be 0 or more; got {params.keep}")
    cutoff = root.clock() - parse_age(params.older)
    chosen = deletable_since(root.tree.agents, cutoff, keep=params.keep, idle=params.idle)
    if params.dry_run:
        rows = await root.disk.do(_preview_rows, chosen)
        return PrunedSessions(rows, sum(row.bytes for row in rows))
    return await root.steps.run(_prune(root, chosen))


def deletable_since(nodes: TreeState, cutoff: float, *, keep: int = 0, idle: bool = False) -> list[AgentRecord]:
    """Return the agents whose sessions can be deleted, least recently active first.

    An agent is returned if the agent and all its descendants had ended before the time `cutoff`. With `idle`, agents
    without a process count as ended. The `keep` most recently active agents are left out. A fork of a session does not
    protect the session, because each fork is a complete copy.
    """
    statuses = (*ENDED, *WITHOUT_PROCESS) if idle else ENDED
    deletable: dict[str, AgentRecord] = {}
    busy: set[str] = set()
    """Agents that have a descendant that has not ended."""
    for node in reversed(list(nodes)):  # subagents come after their parents
        id, parent_id = node.spec.id, node.spec.parent_id
        inactive = not node.running and node.pending is None and node.last_activity <= cutoff
        if node.is_holder:
            has_ended = inactive or (node.status == "idle" and node.last_activity <= cutoff)
        else:
            has_ended = node.status in statuses and inactive and id not in busy
            if has_ended and node.spec.persist and not node.deleted:
                deletable[id] = node
        if not has_ended and parent_id is not None:
            busy.add(parent_id)
    latest = sorted(deletable.values(), key=lambda node: node.last_activity, reverse=True)
    # Killing an agent kills its descendants, so the ancestors of kept agents are kept too.
    kept_ids = {id for node in latest[:keep] for id in _with_ancestors(nodes, node)}
    return [node for node in latest[keep:][::-1] if node.status in ENDED or node.spec.id not in kept_ids]


def _with_ancestors(nodes: TreeState, node: AgentRecord) -> Iterator[str]:
    while (id := node.spec.parent_id) is not None:
        yield id
        node = nodes[id]


async def _prune(root: Supervisor, chosen: Iterable[AgentRecord]) -> PrunedSessions:
    rows: list[PrunedSession] = []
    busy: dict[str, str] = {}
    async with root.holds.lock:
        try:
            for node in chosen:
                row = await root.disk.do(deletion_row, node)
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
        if node.status not in ENDED:
            _kill_idle(root, node)
        await discard(root, [node])


def _preview_rows(nodes: Sequence[AgentRecord]) -> tuple[PrunedSession, ...]:
    return tuple(map(deletion_row, nodes))


def _kill_idle(root: Supervisor, node: AgentRecord) -> None:
    """Kill an idle agent and all its descendants. Raises AgentBusy if one of them has received a query."""
    for each in root.tree.agents.subtree(node.spec.id):
        if not each.is_holder and (
            each.running or each.pending is not None or each.status not in (*ENDED, *WITHOUT_PROCESS)
        ):
            raise AgentBusy(
                f"session of agent {each.spec.name!r} ({each.spec.id}) was not deleted: the agent received a query"
            )
    root.handle(events.KillRequested((node.spec.id,), "the user"))
