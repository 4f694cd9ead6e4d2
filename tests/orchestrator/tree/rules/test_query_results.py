"""Answers that nobody has taken yet: which of them waits, and who takes it."""

from __future__ import annotations

import pytest

from orch.tree.agents.state import TreeState
from orch.tree.journal.events import CollectReply
from orch.tree.rules.query_results import uncollected
from orch_protocol.core.errors import AgentBusyError, NoResultError
from orchestrator.tree_double import Forest


def asked_in_a_row(*stays: bool) -> tuple[Forest, str]:
    """Return an agent that was asked q0, q1 and so on, and has answered all of them; nobody has taken anything."""
    forest = Forest()
    id = forest.spawn()
    for number, each in enumerate(stays):
        forest.ask(id, f"q{number}", stays=each)
        forest.finish(id, f"q{number}")
    return forest, id


def test_answers_to_queries_put_without_waiting_are_collected_in_order() -> None:
    """The second query does not take the first one's answer away; each is taken once, and read again as long as it is
    the one that was taken last."""
    forest, id = asked_in_a_row(True, True)

    def taken(*, again: bool = False) -> str:
        return str(forest.handle(CollectReply(id, "the user", again)).query_id)

    assert [taken(), taken(again=True), taken(), taken(again=True)] == ["q0", "q0", "q1", "q1"]
    with pytest.raises(NoResultError, match="taken by the user"):
        taken()
    assert forest.tree.agents[id].earlier == []


def test_an_answer_that_waits_is_collected_while_the_agent_works_on_the_next() -> None:
    """Also anew; then there is nothing until that is answered."""
    forest, id = asked_in_a_row(True, True)
    forest.ask(id, "q2", stays=True)
    for again, expected in ((False, "q0"), (False, "q1")):
        assert forest.handle(CollectReply(id, "the user", again)).query_id == expected
    with pytest.raises(AgentBusyError, match="still at work on"):
        forest.handle(CollectReply(id, "the user"))


def test_an_answer_that_somebody_has_a_future_of_gives_way_to_the_next() -> None:
    """As does one that nobody waits for any more: only what was put without waiting stays."""
    forest, id = asked_in_a_row(False, True, False)
    assert forest.handle(CollectReply(id, "the user")).query_id == "q1"
    assert forest.handle(CollectReply(id, "the user")).query_id == "q2"


def test_who_collects_gets_first_what_it_asked_itself() -> None:
    """An agent that asks another one does not take what the user submitted before, and the other way round."""
    forest = Forest(allow_nested=True)
    asker, id = forest.spawn(), forest.spawn()
    for query_id, who in (("q0", None), ("q1", asker)):
        forest.ask(id, query_id, asker=who, stays=True)
        forest.finish(id, query_id)
    assert forest.handle(CollectReply(id, "it", asker=asker)).query_id == "q1"
    assert forest.handle(CollectReply(id, "the user")).query_id == "q0"


def test_answer_is_collected_by_the_id_of_its_query() -> None:
    """In any order; one that was taken is returned again only when asked for, as long as it is kept."""
    forest, id = asked_in_a_row(True, True, True)

    def taken(query: str, *, again: bool = False) -> str:
        return str(forest.handle(CollectReply(id, "the user", again, query=query)).query_id)

    assert [taken("q2"), taken("q0")] == ["q2", "q0"]
    with pytest.raises(NoResultError, match=r"to query q0 was taken already; `--again`"):
        taken("q0")
    assert [taken("q0", again=True), taken("q2", again=True), taken("q1", again=True)] == ["q0", "q2", "q1"]
    assert [result.query_id for result in uncollected(forest.tree.agents[id], None)] == []


def test_error_names_the_answers_that_are_kept() -> None:
    """When the query is unknown, or its answer gave way to others; not while it is the one under way."""
    forest, id = asked_in_a_row(*[True] * 3)
    forest.handle(CollectReply(id, "the user", query="q2"))
    with pytest.raises(NoResultError, match=r"to query nope is kept; the answers that are kept: q0, q1, q2 \(taken\)$"):
        forest.handle(CollectReply(id, "the user", True, query="nope"))
    forest.ask(id, "q3", stays=True)
    with pytest.raises(AgentBusyError):
        forest.handle(CollectReply(id, "the user", query="q3"))
    with pytest.raises(NoResultError, match="to query nope is kept"):
        forest.handle(CollectReply(id, "the user", query="nope"))
    assert forest.handle(CollectReply(id, "the user", query="q1")).query_id == "q1"


def test_no_more_answers_wait_than_may_be_kept() -> None:
    """The oldest go; a run that is opened anew knows the same."""
    forest, id = asked_in_a_row(*[True] * 20)
    waiting = [result.query_id for result in uncollected(forest.tree.agents[id], None)]
    assert waiting == [f"q{number}" for number in range(3, 20)]
    anew = TreeState(forest.tree.agents.kept(1.0))
    assert [result.query_id for result in uncollected(anew[id], None)] == waiting
