"""The check that no two agents wait for each other."""

from __future__ import annotations

import pytest

from orch.tree.agents.wait_graph import agents_waited_for, check_no_cycle
from orch_protocol.core.errors import QueryCycleError
from orchestrator.tree_double import Forest


def test_waiting_is_transitive() -> None:
    """A waits for B and B for C: A waits for both, and C cannot wait for A."""
    forest = Forest()
    a, b, c = forest.spawn(), forest.spawn(), forest.spawn()
    forest.ask(b, asker=a, waits=True)
    forest.ask(c, asker=b, waits=True)
    pending = forest.tree.agents.pending
    assert agents_waited_for(pending.values(), a) == {b, c}
    assert agents_waited_for(pending.values(), c) == set()
    with pytest.raises(QueryCycleError, match="answer your own query first"):
        check_no_cycle(pending.values(), c, forest.tree.agents[a])


def test_submitted_queries_do_not_count() -> None:
    """An agent that submitted a query goes on working, so nobody waits for the answering agent."""
    forest = Forest()
    a, b = forest.spawn(), forest.spawn()
    forest.ask(b, asker=a, waits=False)
    pending = forest.tree.agents.pending
    assert agents_waited_for(pending.values(), a) == set()
    check_no_cycle(pending.values(), b, forest.tree.agents[a])


def test_an_agent_cannot_wait_for_itself() -> None:
    """The agent that asks and the agent that is asked must differ."""
    forest = Forest()
    a = forest.spawn()
    with pytest.raises(QueryCycleError):
        check_no_cycle([], a, forest.tree.agents[a])
