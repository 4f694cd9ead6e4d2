"""What is said to an agent while it works is heard once, in order, at the right moment."""

from __future__ import annotations

import pytest

from agent_doubles import Talk, assert_valid
from orch_protocol.agent.spec import Limits
from orch_protocol.core.messages import text_of
from orch_worker.agent.steering import SteeringMessage, SteeringQueues
from orch_worker.agent.turn import Turn
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.tools.api.base import tool


def said(*texts: str, follow_up: bool = False, mode: str = "one-at-a-time") -> SteeringQueues:
    """Return queues that hold `texts`."""
    queues = SteeringQueues(mode)  # type: ignore[arg-type]
    for number, text in enumerate(texts):
        queues.add(SteeringMessage(str(number), text), follow_up=follow_up)
    return queues


def texts(taken: list[SteeringMessage]) -> list[str]:
    """Return what was said."""
    return [each.text for each in taken]


def test_steering_is_heard_one_at_a_time_or_all_at_once() -> None:
    """The mode decides; the order is that of saying."""
    queues = said("a", "b")
    assert texts(queues.take(stopping=False)) == ["a"]
    assert texts(queues.take(stopping=True)) == ["b"]
    assert queues.take(stopping=True) == []
    assert texts(said("a", "b", mode="all").take(stopping=False)) == ["a", "b"]


def test_follow_ups_wait_until_the_agent_would_stop_and_steering_comes_first() -> None:
    """A follow-up is not steering."""
    queues = said("later", follow_up=True)
    queues.add(SteeringMessage("s", "now"), follow_up=False)
    assert texts(queues.take(stopping=False)) == ["now"]
    assert queues.take(stopping=False) == []
    assert texts(queues.take(stopping=True)) == ["later"]


def test_each_kind_has_a_mode_of_its_own_that_can_be_set_at_any_time() -> None:
    """Follow-ups are heard as steering is, unless somebody says how."""
    queues = SteeringQueues("one-at-a-time", "all")
    for number in range(4):
        queues.add(SteeringMessage(str(number), str(number)), follow_up=number > 1)
    assert texts(queues.take(stopping=True)) == ["0"]
    queues.modes("all", "one-at-a-time")
    assert texts(queues.take(stopping=True)) == ["1"]
    assert texts(queues.take(stopping=True)) == ["2"]
    queues.modes("all")
    queues.add(SteeringMessage("4", "4"), follow_up=True)
    assert texts(queues.take(stopping=True)) == ["3", "4"]


def test_what_is_taken_back_is_not_heard() -> None:
    """Of what is named, what waited is told; what was heard is not, nor what was never said."""
    queues = said("a", "b", "c")
    queues.add(SteeringMessage("f", "later"), follow_up=True)
    assert texts(queues.take(stopping=False)) == ["a"]
    assert queues.drop(["0", "2", "f", "x"]) == ["2", "f"]
    assert texts(queues.take(stopping=True)) == ["b"]
    assert queues.take(stopping=True) == []


def test_the_same_thing_is_not_queued_twice() -> None:
    """A root that says it again, to a process it thinks new, is harmless."""
    queues = said("a")
    queues.add(SteeringMessage("0", "a"), follow_up=False)
    assert len(queues.take(stopping=False)) == 1
    assert queues.take(stopping=False) == []


class Conversation(Talk):
    """A talk in which things are said."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.queues = SteeringQueues()
        self.events: list[tuple[str, str, str, int, bool]] = []
        self.heard: list[tuple[str, int]] = []

    async def turn(self, **limits: int) -> object:
        """Run a turn that hears and tells."""
        return await Turn(
            query_id="q",
            agent_id="a",
            prompt="go",
            backend=self.backend,
            toolbox=self.box,
            record=self.record,
            limits=Limits(**limits),  # type: ignore[arg-type]
            report=lambda *_: None,
            brake=self.brake,
            interject=lambda stopping: self.queues.take(stopping=stopping),
            heard=lambda id: self.heard.append((id, len(self.recorded))),
            emit=lambda *event: self.events.append(event),
        ).run()

    def users(self) -> list[str]:
        """Return what was said by users, in order."""
        return [text_of(message) for message in self.recorded if message.role == "user" and text_of(message)]


@pytest.fixture
def steered() -> Conversation:
    """Return a talk whose tool steers the agent that calls it."""

    @tool
    def look() -> str:
        talk.queues.add(SteeringMessage("1", "be brief"), follow_up=False)
        talk.queues.add(SteeringMessage("2", "then sum up"), follow_up=True)
        return "seen"

    script = ScriptedBackend([{"tool": "look"}, "brief", "summary"])
    talk = Conversation(script, look)
    return talk


async def test_steering_comes_after_the_batch_and_follow_ups_when_the_agent_would_stop(steered: Conversation) -> None:
    """Both become user messages at their moment; the turn ends with the answer to the last."""
    reply = await steered.turn()
    assert reply.text == "summary"  # type: ignore[attr-defined]
    assert steered.users() == ["go", "[Steering]\nbe brief", "[Steering]\nthen sum up"]
    assert [id for id, _ in steered.heard] == ["1", "2"]
    for _, count in steered.heard:
        assert text_of(steered.recorded[count - 1]).startswith("[Steering]"), "it was told before it was on record"
    roles = [(message.role, text_of(message)) for message in steered.recorded]
    assert roles.index(("user", "[Steering]\nbe brief")) < roles.index(("assistant", "brief"))
    assert roles.index(("assistant", "brief")) < roles.index(("user", "[Steering]\nthen sum up"))
    assert_valid(steered.recorded)


async def test_what_waits_from_before_is_heard_with_the_prompt() -> None:
    """Something said to an idle agent is part of its next turn."""
    talk = Conversation(ScriptedBackend(["fine"]))
    talk.queues.add(SteeringMessage("1", "short answers"), follow_up=False)
    await talk.turn()
    assert talk.users() == ["go", "[Steering]\nshort answers"]


async def test_steering_without_end_is_bounded_by_the_steps_of_a_turn() -> None:
    """A follow-up for every answer does not make a turn endless."""
    talk = Conversation(ScriptedBackend([{"loop": ["again"]}]))
    for number in range(10):
        talk.queues.add(SteeringMessage(str(number), "more"), follow_up=True)
    reply = await talk.turn(max_turns=4)
    assert (reply.stop_reason, reply.steps) == ("max_turns", 4)  # type: ignore[attr-defined]


async def test_everything_that_happens_is_told(steered: Conversation) -> None:
    """Calls, results, responses and what was said, in order and with the step they belong to."""
    await steered.turn()
    kinds = [event[0] for event in steered.events]
    assert [kind for kind in kinds if kind != "text"] == [
        "message",
        "tool_call",
        "tool_result",
        "steered",
        "message",
        "steered",
        "message",
    ]
    assert ("tool_call", "{}", "look", 1, False) in steered.events
    assert ("tool_result", "seen", "look", 1, False) in steered.events
    assert ("text", "summary", "", 2, False) in steered.events
