"""Rate limits of models: which request waits, how long it waits, and how many requests follow at once."""

from __future__ import annotations

import pytest

from orch.policy.rate_limits import MAX_PAUSE_SECONDS, QUIET_SECONDS, RateLimiter
from orch.tree.interface.topics import ExitTopic
from orchestrator.tree_double import Forest

LANE = "anthropic:claude-sonnet-5-5"


@pytest.fixture
def forest() -> Forest:
    """Two agents with processes."""
    forest = Forest()
    for id in ("a", "b"):
        forest.spawn(id=id)
    return forest


@pytest.fixture
def lanes(forest: Forest) -> RateLimiter:
    """A limiter without any refusals."""
    return RateLimiter(forest.tree.agents)


def refuse(lanes: RateLimiter, wait: float | None = None, now: float = 0.0) -> bool:
    """Report a refusal without jitter."""
    return lanes.record_rejection(LANE, wait, now, 0.0)


def admitted(lanes: RateLimiter, now: float) -> list[str]:
    """Return the permits of all requests that are admitted now."""
    permits = []
    while permit := lanes.admit(LANE, "a", now):
        permits.append(permit)
    return permits


def test_model_without_refusals_is_unlimited(lanes: RateLimiter) -> None:
    """The permit is empty, because no admission is needed."""
    assert lanes.admit(LANE, "a", 0.0) == ""
    assert lanes.names() == ()


def test_first_refusal_is_broadcast_once(lanes: RateLimiter) -> None:
    """Only the first of several refusals returns True."""
    assert [refuse(lanes) for _ in range(3)] == [True, False, False]
    assert lanes.names() == (LANE,)


def test_one_request_goes_first_after_the_requested_wait(lanes: RateLimiter) -> None:
    """Other requests wait until the first one is answered."""
    refuse(lanes, 5.0)
    assert lanes.admit(LANE, "a", 4.9) is None
    assert lanes.pause(LANE, 4.0) == 1.0
    first = lanes.admit(LANE, "a", 5.0)
    assert first
    assert lanes.admit(LANE, "b", 5.0) is None
    assert lanes.pause(LANE, 5.0) is None


def test_each_answer_admits_one_more(lanes: RateLimiter) -> None:
    """The number of admitted requests doubles each round."""
    refuse(lanes, 1.0)
    assert answered(lanes, 2.0) == [1, 2, 4]


def test_other_failures_admit_no_more(lanes: RateLimiter) -> None:
    """A failure for another reason says nothing about the rate limit."""
    refuse(lanes, 1.0)
    lanes.release(LANE, admitted(lanes, 1.0)[0], "a", ok=False)
    assert len(admitted(lanes, 1.0)) == 1


def test_further_refusal_halves_the_admissions(lanes: RateLimiter) -> None:
    """Several refusals in one round count once. After that, each round admits one more."""
    refuse(lanes, 1.0)
    answered(lanes, 1.0)
    under_way = admitted(lanes, 1.0)
    assert len(under_way) == 8
    for permit in under_way:
        refuse(lanes, 1.0, now=1.5)
        lanes.release(LANE, permit, "a", ok=False)
    assert admitted(lanes, 2.4) == []
    assert answered(lanes, 2.5) == [4, 5, 6]


def answered(lanes: RateLimiter, now: float) -> list[int]:
    """Return the number of admitted requests in each of three rounds. All requests are answered."""
    rounds = []
    for _ in range(3):
        permits = admitted(lanes, now)
        rounds.append(len(permits))
        for permit in permits:
            lanes.release(LANE, permit, "a", ok=True)
    return rounds


def test_wait_doubles_without_retry_after(lanes: RateLimiter) -> None:
    """The waits are 1, 2, 4, and so on, up to 30 seconds."""
    waits, now = [], 0.0
    for _ in range(8):
        refuse(lanes, None, now)
        pause = lanes.pause(LANE, now)
        assert pause is not None
        waits.append(pause)
        now += pause
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_longest_requested_wait_counts(lanes: RateLimiter) -> None:
    """A later refusal with a shorter wait does not reduce the wait."""
    refuse(lanes, 10.0)
    refuse(lanes, 1.0, now=0.5)
    assert lanes.pause(LANE, 0.5) == 9.5


def test_wait_has_up_to_ten_percent_jitter(lanes: RateLimiter) -> None:
    """The maximum jitter makes a wait of 10 seconds 11 seconds long."""
    lanes.record_rejection(LANE, 10.0, 0.0, 1.0)
    assert lanes.pause(LANE, 0.0) == 11.0


def test_wait_above_the_maximum_is_not_enforced(lanes: RateLimiter) -> None:
    """A request is admitted at once, and the model itself refuses it."""
    refuse(lanes, MAX_PAUSE_SECONDS + 1)
    assert len(admitted(lanes, 0.0)) == 1
    refuse(lanes, MAX_PAUSE_SECONDS, now=1.0)
    assert lanes.pause(LANE, 1.0) == MAX_PAUSE_SECONDS


def test_rate_limit_ends_after_a_time_without_refusals(lanes: RateLimiter) -> None:
    """After this time, requests need no admission."""
    refuse(lanes, 1.0)
    assert lanes.admit(LANE, "a", QUIET_SECONDS - 0.1) != ""
    assert lanes.admit(LANE, "b", QUIET_SECONDS) == ""
    assert lanes.names() == ()


def test_slots_of_dead_processes_are_released(lanes: RateLimiter, forest: Forest) -> None:
    """The request of a process ends with its process, so another agent is admitted."""
    refuse(lanes, 1.0)
    assert lanes.admit(LANE, "a", 1.0)
    assert lanes.release_topics(LANE) == [ExitTopic("a", 1)]
    assert lanes.admit(LANE, "b", 1.0) is None
    forest.gone("a")
    assert lanes.release_topics(LANE) == []
    assert lanes.admit(LANE, "b", 1.0)


def test_models_are_limited_independently(lanes: RateLimiter) -> None:
    """A refusal of one model does not delay requests to another model."""
    refuse(lanes, 30.0)
    assert lanes.admit("openai:gpt-5.5", "a", 0.0) == ""


def test_permit_of_another_agent_is_not_released(lanes: RateLimiter) -> None:
    """The model gets no more requests than before."""
    lanes.record_rejection(LANE, None, 0.0, 0.0)
    [permit] = admitted(lanes, 10.0)
    lanes.release(LANE, permit, "b", ok=True)
    assert admitted(lanes, 10.0) == []
    lanes.release(LANE, permit, "a", ok=True)
    assert admitted(lanes, 10.0) != []


def test_unknown_permits_are_ignored(lanes: RateLimiter) -> None:
    """The permit can come from an earlier root or an earlier rate limit."""
    lanes.release(LANE, "x", "a", ok=True)
    refuse(lanes, 1.0)
    lanes.release(LANE, "x", "a", ok=True)
    assert len(admitted(lanes, 1.0)) == 1
