"""Models that refuse requests for being too many: who waits, how long, and how many go at once afterwards."""

from __future__ import annotations

import pytest

from orch.policy.rate_limits import MAX_PAUSE_SECONDS, QUIET_SECONDS, RateLimiter
from orchestrator.tree_double import Forest

LANE = "anthropic:claude-sonnet-5-5"


@pytest.fixture
def forest() -> Forest:
    """Two agents that have processes."""
    forest = Forest()
    for id in ("a", "b"):
        forest.spawn(id=id)
    return forest


@pytest.fixture
def lanes(forest: Forest) -> RateLimiter:
    """No lane is crowded."""
    return RateLimiter(forest.tree.agents)


def refuse(lanes: RateLimiter, wait: float | None = None, now: float = 0.0) -> bool:
    """Refuse a request, without any spread."""
    return lanes.refuse(LANE, wait, now, 0.0)


def admitted(lanes: RateLimiter, now: float) -> list[str]:
    """Return the permits of all requests that may be made now."""
    permits = []
    while permit := lanes.admit(LANE, "a", now):
        permits.append(permit)
    return permits


def test_a_lane_that_refused_nobody_is_open(lanes: RateLimiter) -> None:
    """Nobody counts, and nobody need ask again."""
    assert lanes.admit(LANE, "a", 0.0) == ""
    assert lanes.names() == ()


def test_the_first_refusal_is_news(lanes: RateLimiter) -> None:
    """All others are told once, however many are refused."""
    assert [refuse(lanes) for _ in range(3)] == [True, False, False]
    assert lanes.names() == (LANE,)


def test_nobody_goes_before_the_time_that_was_asked_for(lanes: RateLimiter) -> None:
    """Then one does, and the next one when that is answered."""
    refuse(lanes, 5.0)
    assert lanes.admit(LANE, "a", 4.9) is None
    assert lanes.pause(LANE, 4.0) == 1.0
    first = lanes.admit(LANE, "a", 5.0)
    assert first
    assert lanes.admit(LANE, "b", 5.0) is None
    assert lanes.pause(LANE, 5.0) is None


def test_with_each_answer_one_more_goes(lanes: RateLimiter) -> None:
    """So the number doubles with every round."""
    refuse(lanes, 1.0)
    assert answered(lanes, 2.0) == [1, 2, 4]


def test_a_failure_of_another_kind_widens_nothing(lanes: RateLimiter) -> None:
    """It tells nothing of how many requests are too many."""
    refuse(lanes, 1.0)
    lanes.leave(LANE, admitted(lanes, 1.0)[0], ok=False)
    assert len(admitted(lanes, 1.0)) == 1


def test_another_refusal_halves_the_number(lanes: RateLimiter) -> None:
    """Those that were under way together are refused together, so it is halved once; then each round adds one."""
    refuse(lanes, 1.0)
    answered(lanes, 1.0)
    under_way = admitted(lanes, 1.0)
    assert len(under_way) == 8
    for permit in under_way:
        refuse(lanes, 1.0, now=1.5)
        lanes.leave(LANE, permit, ok=False)
    assert admitted(lanes, 2.4) == []
    assert answered(lanes, 2.5) == [4, 5, 6]


def answered(lanes: RateLimiter, now: float) -> list[int]:
    """Return how many go at once in each of three rounds, all of which are answered."""
    rounds = []
    for _ in range(3):
        permits = admitted(lanes, now)
        rounds.append(len(permits))
        for permit in permits:
            lanes.leave(LANE, permit, ok=True)
    return rounds


def test_without_a_word_from_the_model_waits_double(lanes: RateLimiter) -> None:
    """One second, two, four, and at most thirty."""
    waits, now = [], 0.0
    for _ in range(8):
        refuse(lanes, None, now)
        pause = lanes.pause(LANE, now)
        assert pause is not None
        waits.append(pause)
        now += pause
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_the_longest_wait_counts(lanes: RateLimiter) -> None:
    """A later refusal that asks for less shortens nothing."""
    refuse(lanes, 10.0)
    refuse(lanes, 1.0, now=0.5)
    assert lanes.pause(LANE, 0.5) == 9.5


def test_a_wait_is_spread(lanes: RateLimiter) -> None:
    """By a tenth at most."""
    lanes.refuse(LANE, 10.0, 0.0, 1.0)
    assert lanes.pause(LANE, 0.0) == 11.0


def test_nobody_is_let_wait_for_ever(lanes: RateLimiter) -> None:
    """A model that wants to be left alone for an hour tells so everybody who asks, one after the other."""
    refuse(lanes, MAX_PAUSE_SECONDS + 1)
    assert len(admitted(lanes, 0.0)) == 1
    refuse(lanes, MAX_PAUSE_SECONDS, now=1.0)
    assert lanes.pause(LANE, 1.0) == MAX_PAUSE_SECONDS


def test_it_is_over_when_nobody_was_refused_for_long(lanes: RateLimiter) -> None:
    """Then nobody counts any more."""
    refuse(lanes, 1.0)
    assert lanes.admit(LANE, "a", QUIET_SECONDS - 0.1) != ""
    assert lanes.admit(LANE, "b", QUIET_SECONDS) == ""
    assert lanes.names() == ()


def test_the_dead_hold_nobody_up(lanes: RateLimiter, forest: Forest) -> None:
    """A request is over when the process that made it is."""
    refuse(lanes, 1.0)
    assert lanes.admit(LANE, "a", 1.0)
    assert lanes.holders(LANE) == ["gone:a:1"]
    assert lanes.admit(LANE, "b", 1.0) is None
    forest.gone("a")
    assert lanes.holders(LANE) == []
    assert lanes.admit(LANE, "b", 1.0)


def test_lanes_are_apart(lanes: RateLimiter) -> None:
    """What one model refuses says nothing of another."""
    refuse(lanes, 30.0)
    assert lanes.admit("openai:gpt-5.5", "a", 0.0) == ""


def test_what_nobody_admitted_is_left_alone(lanes: RateLimiter) -> None:
    """A permit of an earlier root, or of a lane that is open again, is no error."""
    lanes.leave(LANE, "x", ok=True)
    refuse(lanes, 1.0)
    lanes.leave(LANE, "x", ok=True)
    assert len(admitted(lanes, 1.0)) == 1
