"""Uncollected answers: which answers are kept, and which caller gets them."""

from __future__ import annotations

import pytest

from orch.tree.agents.state import TreeState
from orch.tree.interface.events import CollectReply
from orch.tree.rules.query_results import uncollected
from orch_protocol.core.errors import AgentBusyError, NoResultError
from orchestrator.tree_double import Forest


def asked_in_a_row(*stays: bool) -> tuple[Forest, str]:
    """Return an agent that has answered the queries q0, q1 and so on. No answer was collected."""
    forest = Forest()
    id = forest.spawn()
    for number, each in enumerate(stays):
        forest.ask(id, f"q{number}", stays=each)
        forest.finish(id, f"q{number}")
    return forest, id


def test_submitted_answers_are_collected_in_order() -> None:
    """Each answer is collected once. The last collected answer can be read again until the next one is collected."""
    forest, id = asked_in_a_row(True, True)

    def taken(*, again: bool = False) -> str:
        return str(forest.handle(CollectReply(id, "the user", again)).query_id)

    assert [taken(), taken(again=True), taken(), taken(again=True)] == ["q0", "q0", "q1", "q1"]
    with pytest.raises(NoResultError, match="collected by the user"):
        taken()
    assert forest.tree.agents[id].earlier == []


def test_waiting_answer_is_collected_while_the_agent_works() -> None:
    """After the stored answers are collected, collecting fails until the next answer."""
    forest, id = asked_in_a_row(True, True)
    forest.ask(id, "q2", stays=True)
    for again, expected in ((False, "q0"), (False, "q1")):
        assert forest.handle(CollectReply(id, "the user", again)).query_id == expected
    with pytest.raises(AgentBusyError, match="still working on"):
        forest.handle(CollectReply(id, "the user"))


def test_only_answers_of_submitted_queries_are_kept() -> None:
    """The next answer replaces an answer that was not submitted."""
    forest, id = asked_in_a_row(False, True, False)
    assert forest.handle(CollectReply(id, "the user")).query_id == "q1"
    assert forest.handle(CollectReply(id, "the user")).query_id == "q2"


def test_collect_prefers_the_callers_own_queries() -> None:
    """An agent does not take the answer to a query that the user submitted, and the user does not take the agent's."""
    forest = Forest(allow_nested=True)
    asker, id = forest.spawn(), forest.spawn()
    for query_id, who in (("q0", None), ("q1", asker)):
        forest.ask(id, query_id, asker=who, stays=True)
        forest.finish(id, query_id)
    assert forest.handle(CollectReply(id, "it", asker=asker)).query_id == "q1"
    assert forest.handle(CollectReply(id, "the user")).query_id == "q0"


def test_answer_is_collected_by_query_id() -> None:
    """Answers can be collected in any order. A collected answer is returned only with `again`."""
    forest, id = asked_in_a_row(True, True, True)

    def taken(query: str, *, again: bool = False) -> str:
        return str(forest.handle(CollectReply(id, "the user", again, query=query)).query_id)

    assert [taken("q2"), taken("q0")] == ["q2", "q0"]
    with pytest.raises(NoResultError, match=r"for query q0 was already collected; `orch collect 1 --query q0 --again`"):
        taken("q0")
    assert [taken("q0", again=True), taken("q2", again=True), taken("q1", again=True)] == ["q0", "q2", "q1"]
    assert [result.query_id for result in uncollected(forest.tree.agents[id], None)] == []


def test_unknown_query_error_lists_kept_answers() -> None:
    """A query in progress is busy and not unknown."""
    forest, id = asked_in_a_row(*[True] * 3)
    forest.handle(CollectReply(id, "the user", query="q2"))
    with pytest.raises(NoResultError, match=r"for query nope is stored; stored results: q0, q1, q2 \(collected\)$"):
        forest.handle(CollectReply(id, "the user", True, query="nope"))
    forest.ask(id, "q3", stays=True)
    with pytest.raises(AgentBusyError):
        forest.handle(CollectReply(id, "the user", query="q3"))
    with pytest.raises(NoResultError, match="for query nope is stored"):
        forest.handle(CollectReply(id, "the user", query="nope"))
    assert forest.handle(CollectReply(id, "the user", query="q1")).query_id == "q1"


def test_kept_answers_are_bounded() -> None:
    """The oldest answers are dropped. The limit also applies to a snapshot."""
    forest, id = asked_in_a_row(*[True] * 20)
    waiting = [result.query_id for result in uncollected(forest.tree.agents[id], None)]
    assert waiting == [f"q{number}" for number in range(3, 20)]
    anew = TreeState(forest.tree.agents.snapshot_entries(1.0))
    assert [result.query_id for result in uncollected(anew[id], None)] == waiting
