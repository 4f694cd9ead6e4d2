"""The graph of agents that wait for other agents, and the check that prevents wait cycles."""

from __future__ import annotations

from collections.abc import Iterable

from orch_protocol.core.errors import QueryCycleError

from .agent_record import AgentRecord

__all__ = ["agents_blocked_by", "agents_waited_for", "check_no_cycle"]


def agents_waited_for(pending: Iterable[AgentRecord], id: str) -> set[str]:
    """Return the ids of the agents that agent `id` waits for, directly or indirectly.

    `pending` are the agents with a query in progress. Only queries whose asker blocks on the reply count.
    """
    records, found, pending_ids = list(pending), set[str](), [id]
    while pending_ids:
        asker = pending_ids.pop()
        for record in records:
            query, answering_id = record.pending, record.spec.id
            if query and query.waits and query.asker == asker and answering_id not in found:
                found.add(answering_id)
                pending_ids.append(answering_id)
    return found


def agents_blocked_by(pending: Iterable[AgentRecord], ids: Iterable[str]) -> set[str]:
    """Return `ids` and the agents that wait, directly or indirectly, for one of the agents `ids`.

    `pending` are the agents with a query in progress. Only queries whose asker blocks on the reply count.
    """
    askers = {
        record.spec.id: record.pending.asker
        for record in pending
        if record.pending is not None and record.pending.waits and record.pending.asker is not None
    }
    found, unfollowed = set(ids), list(ids)
    while unfollowed:
        asker = askers.get(unfollowed.pop())
        if asker is not None and asker not in found:
            found.add(asker)
            unfollowed.append(asker)
    return found


def check_no_cycle(pending: Iterable[AgentRecord], asker: str, target: AgentRecord) -> None:
    """Raise QueryCycleError if agent `asker` cannot wait for `target` because `target` waits for `asker`."""
    if asker == target.spec.id or asker in agents_waited_for(pending, target.spec.id):
        raise QueryCycleError(
            f"agent {target.spec.name!r} is waiting, directly or indirectly, for the agent that queries it; answer "
            "your own query first, or state in your reply what you need"
        )
