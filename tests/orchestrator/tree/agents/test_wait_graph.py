"""The check that agents do not wait for each other in a cycle."""

from __future__ import annotations

import pytest

from orch.tree.agents.wait_graph import agents_waited_for, check_no_cycle
from orch_protocol.core.errors import QueryCycleError
from orchestrator.tree_double import Forest


def test_waiting_is_transitive() -> None:
    """If A waits for B and B waits for C, then A waits for both, and C cannot query A."""
    forest = Forest()
    a, b, c = forest.spawn(), forest.spawn(), forest.spawn()
    forest.ask(b, asker=a, waits=True)
    forest.ask(c, asker=b, waits=True)
    pending = forest.tree.agents.pending
    assert agents_waited_for(pending.values(), a) == {b, c}
    assert agents_waited_for(pending.values(), c) == set()
    with pytest.raises(QueryCycleError, match="answer your own query first"):
        check_no_cycle(pending.values(), c, forest.tree.agents[a])


def test_submitted_queries_are_no_wait() -> None:
    """An agent that submitted a query continues to work."""
    forest = Forest()
    a, b = forest.spawn(), forest.spawn()
    forest.ask(b, asker=a, waits=False)
    pending = forest.tree.agents.pending
    assert agents_waited_for(pending.values(), a) == set()
    check_no_cycle(pending.values(), b, forest.tree.agents[a])


def test_agent_cannot_wait_for_itself() -> None:
    """A query of an agent to itself raises QueryCycleError."""
    forest = Forest()
    a = forest.spawn()
    with pytest.raises(QueryCycleError):
        check_no_cycle([], a, forest.tree.agents[a])
