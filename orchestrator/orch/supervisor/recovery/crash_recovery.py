"""What transcripts tell of queries whose processes told nothing: whether they were begun, answered, what they used."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import Reply, Usage
from orch_worker.session.transcript import read_last_turn, read_usage

from ...tree.agents.state import Node
from ...tree.journal.events import Recover

__all__ = ["Remains", "recovery", "remains_of", "used_by"]


class Remains(NamedTuple):
    """What is left of a query."""

    begun: bool = True
    reply: Reply | None = None
    usage: Usage = Usage()


def remains_of(node: Node) -> Remains:
    """Return what the agent's transcript holds of its pending query. One that cannot be read may hold anything."""
    folder = Path(node.spec.folder)
    try:
        last = read_last_turn(folder)
        if node.pending is None or last is None or last.query_id != node.pending.query_id or not last.prompted:
            return Remains(begun=False)
        return Remains(True, last.reply, last.reply.usage if last.reply else read_usage(folder, last.query_id))
    except OrchError:
        return Remains()  # the next process of this agent will say what is wrong with it


def recovery(nodes: Iterable[Node]) -> Recover:
    """Return what a root that takes over, or gives up, is to know of the pending queries of the agents."""
    found = {node.pending.query_id: remains_of(node) for node in nodes if node.pending is not None}
    replies = {id: remains.reply for id, remains in found.items() if remains.reply is not None}
    begun = frozenset(id for id, remains in found.items() if remains.begun)
    return Recover(os.getpid(), replies, {id: remains.usage for id, remains in found.items()}, begun)


def used_by(nodes: Iterable[Node]) -> dict[str, Usage]:
    """Return what the pending queries of the agents have used so far, by query id."""
    return {node.pending.query_id: remains_of(node).usage for node in nodes if node.pending is not None}
