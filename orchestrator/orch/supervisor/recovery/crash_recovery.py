"""What transcripts tell of queries whose processes told nothing: whether they were begun, answered, what they used."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import Reply, Usage
from orch_worker.session.transcript import read_last_turn, read_usage

from ...tree.agents.state import AgentRecord
from ...tree.journal.events import Recover

__all__ = ["RecoveredQuery", "recover_query", "recovery", "used_by"]


class RecoveredQuery(NamedTuple):
    """What is left of a query."""

    begun: bool = True
    reply: Reply | None = None
    usage: Usage = Usage()


def recover_query(node: AgentRecord) -> RecoveredQuery:
    """Return what the agent's transcript holds of its pending query. One that cannot be read may hold anything."""
    folder = Path(node.spec.folder)
    try:
        last = read_last_turn(folder)
        if node.pending is None or last is None or last.query_id != node.pending.query_id or not last.prompted:
            return RecoveredQuery(begun=False)
        return RecoveredQuery(True, last.reply, last.reply.usage if last.reply else read_usage(folder, last.query_id))
    except OrchError:
        return RecoveredQuery()  # the next process of this agent will say what is wrong with it


def recovery(nodes: Iterable[AgentRecord]) -> Recover:
    """Return what a root that takes over, or gives up, is to know of the pending queries of the agents."""
    found = {node.pending.query_id: recover_query(node) for node in nodes if node.pending is not None}
    replies = {id: remains.reply for id, remains in found.items() if remains.reply is not None}
    begun = frozenset(id for id, remains in found.items() if remains.begun)
    return Recover(os.getpid(), replies, {id: remains.usage for id, remains in found.items()}, begun)


def used_by(nodes: Iterable[AgentRecord]) -> dict[str, Usage]:
    """Return what the pending queries of the agents have used so far, by query id."""
    return {node.pending.query_id: recover_query(node).usage for node in nodes if node.pending is not None}
