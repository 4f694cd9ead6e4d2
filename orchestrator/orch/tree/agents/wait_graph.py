"""Which agents wait for which, and the check that no two agents wait for each other."""

from __future__ import annotations

from collections.abc import Iterable

from orch_protocol.core.errors import QueryCycleError

from .agent_record import AgentRecord

__all__ = ["agents_waited_for", "check_no_cycle"]


def agents_waited_for(pending: Iterable[AgentRecord], id: str) -> set[str]:
    """Return the ids of the agents that agent `id` waits for, directly or not.

    `pending` are the agents with a query under way. Only queries whose asker blocks on the reply count.
    """
    records, found, frontier = list(pending), set[str](), [id]
    while frontier:
        asker = frontier.pop()
        for record in records:
            query, answering = record.pending, record.spec.id
            if query and query.waits and query.asker == asker and answering not in found:
                found.add(answering)
                frontier.append(answering)
    return found


def check_no_cycle(pending: Iterable[AgentRecord], asker: str, asked: AgentRecord) -> None:
    """Raise QueryCycleError if agent `asker` cannot wait for `asked`, because `asked` waits for it."""
    if asker == asked.spec.id or asker in agents_waited_for(pending, asked.spec.id):
        raise QueryCycleError(
            f"agent {asked.spec.name!r} waits, directly or not, for the agent that asks it; "
            "answer your own query first, or report what you need in your reply"
        )
