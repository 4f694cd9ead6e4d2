"""Recovery of queries from transcripts. A transcript shows whether a query began, the reply, and the usage."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import Reply, Usage
from orch_worker.session.session_reader import read_last_turn, read_usage

from ...tree.agents.state import AgentRecord
from ...tree.interface.events import Recover

__all__ = ["RecoveredQuery", "recover_query", "recovery", "usage_of_pending"]


class RecoveredQuery(NamedTuple):
    """The facts about a query that a transcript shows."""

    begun: bool = True
    reply: Reply | None = None
    usage: Usage = Usage()


def recover_query(agent: AgentRecord) -> RecoveredQuery:
    """Return what the agent's transcript shows about the agent's pending query.

    If the transcript cannot be read, assume that the query began.
    """
    folder = Path(agent.spec.folder)
    try:
        last = read_last_turn(folder)
        if agent.pending is None or last is None or last.query_id != agent.pending.query_id or not last.prompted:
            return RecoveredQuery(begun=False)
        return RecoveredQuery(True, last.reply, last.reply.usage if last.reply else read_usage(folder, last.query_id))
    except OrchError:
        return RecoveredQuery()  # the next process of the agent will report the error


def recovery(agents: Iterable[AgentRecord]) -> Recover:
    """Return the Recover event for a root that starts or shuts down.

    The event covers the pending queries of `agents`.
    """
    recovered = {agent.pending.query_id: recover_query(agent) for agent in agents if agent.pending is not None}
    replies = {id: query.reply for id, query in recovered.items() if query.reply is not None}
    begun = frozenset(id for id, query in recovered.items() if query.begun)
    return Recover(os.getpid(), replies, {id: query.usage for id, query in recovered.items()}, begun)


def usage_of_pending(agents: Iterable[AgentRecord]) -> dict[str, Usage]:
    """Return the usage so far of the pending queries of `agents`, by query id."""
    return {agent.pending.query_id: recover_query(agent).usage for agent in agents if agent.pending is not None}
