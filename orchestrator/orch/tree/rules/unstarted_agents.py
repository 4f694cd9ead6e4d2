"""Agents that come to be without a process: the next query gives them one. Pure, like the tree."""

from __future__ import annotations

import msgspec

from ..agents.state import TreeState
from ..journal import entries
from ..journal.entries import AgentSpawned, SourceMoved
from ..journal.events import AddAgent, AddHolder, Decision, RecordArchives
from . import admission

__all__ = ["add_agent", "add_holder", "record_archives"]


def add_agent(nodes: TreeState, event: AddAgent, now: float) -> Decision:
    """Let there be the agent whose transcript somebody has made. Raises SpawnError when its name is taken."""
    seq = len(nodes) + 1
    spec = msgspec.structs.replace(event.spec, seq=seq, name=admission.name_for(nodes, event.spec.name, seq))
    made = AgentSpawned(
        at=now, id=spec.id, spec=spec, cold=True, repaired=event.repaired, credentials=event.credentials
    )
    return Decision([made], [], spec.id)


def add_holder(nodes: TreeState, event: AddHolder, now: float) -> Decision:
    """Let there be the holder, or let it know where what it holds stands now."""
    id, source = event.spec.id, event.spec.source
    known = nodes.get(id)
    if known is None:
        spec = msgspec.structs.replace(event.spec, seq=len(nodes) + 1)
        return Decision([AgentSpawned(at=now, id=id, spec=spec)], [], id)
    return Decision([SourceMoved(at=now, id=id, source=source)] if source != known.spec.source else [], [], id)


def record_archives(nodes: TreeState, event: RecordArchives, now: float) -> Decision:
    """Take down which parts of the agent's conversation are holders' now, if that is new."""
    node = nodes[event.id]
    new = tuple(each for each in event.holders if each[0] not in node.archives)
    tokens, problem = event.context_tokens, event.problem
    looked = event.looked and event.id in nodes.unlooked
    if not (new or looked or problem) and tokens in (0, node.context_tokens):
        return Decision()
    turns = {holder: event.turns[holder] for holder, _ in new if holder in event.turns}
    said = entries.TurnsArchived(
        at=now, id=event.id, holders=new, context_tokens=tokens, problem=problem, looked=looked, turns=turns
    )
    return Decision([said])
