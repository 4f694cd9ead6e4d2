"""Agents that are added without a process. The first query to such an agent starts a process. Pure functions."""

from __future__ import annotations

import msgspec

from ..agents.state import TreeState
from ..interface.events import AddAgent, AddHolder, RecordArchives
from ..interface.instructions import Decision
from ..journal import entries
from ..journal.entries import AgentSpawned, SourceMoved
from . import admission

__all__ = ["add_agent", "add_holder", "record_archives"]


def add_agent(agents: TreeState, event: AddAgent, now: float) -> Decision:
    """Add an agent whose transcript already exists. Raises SpawnError if the name is in use."""
    seq = len(agents) + 1
    spec = msgspec.structs.replace(event.spec, seq=seq, name=admission.name_for(agents, event.spec.name, seq))
    spawned = AgentSpawned(
        at=now, id=spec.id, spec=spec, cold=True, repaired=event.repaired, credentials=event.credentials
    )
    return Decision([spawned], [], spec.id)


def add_holder(agents: TreeState, event: AddHolder, now: float) -> Decision:
    """Add a holder. If the holder exists, update the location of its archive."""
    id, source = event.spec.id, event.spec.source
    existing = agents.get(id)
    if existing is None:
        spec = msgspec.structs.replace(event.spec, seq=len(agents) + 1)
        return Decision([AgentSpawned(at=now, id=id, spec=spec)], [], id)
    return Decision([SourceMoved(at=now, id=id, source=source)] if source != existing.spec.source else [], [], id)


def record_archives(agents: TreeState, event: RecordArchives, now: float) -> Decision:
    """Record which parts of the agent's conversation were archived.

    Record nothing if all archives are already recorded.
    """
    agent = agents[event.id]
    new = tuple(each for each in event.holders if each[0] not in agent.archives)
    tokens, problem = event.context_tokens, event.problem
    searched = event.is_complete and event.id in agents.unsearched
    if not (new or searched or problem) and tokens in (0, agent.context_tokens):
        return Decision()
    turns = {holder: event.turns[holder] for holder, _ in new if holder in event.turns}
    entry = entries.TurnsArchived(
        at=now, id=event.id, holders=new, context_tokens=tokens, problem=problem, looked=searched, turns=turns
    )
    return Decision([entry])
