"""Steering messages to a working agent: each is delivered once, in order and at the right step."""

from __future__ import annotations

import pytest

from agent_doubles import Talk, assert_valid
from orch_protocol.agent.spec import Limits
from orch_protocol.core.messages import text_of
from orch_worker.agent.steering import SteeringMessage, SteeringQueues
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.tools.api.base import tool


def queues_of(*texts: str, follow_up: bool = False, mode: str = "one-at-a-time") -> SteeringQueues:
    """Return queues that contain `texts`."""
    queues = SteeringQueues(mode)  # type: ignore[arg-type]
    for number, text in enumerate(texts):
        queues.add(SteeringMessage(str(number), text), follow_up=follow_up)
    return queues


def texts(taken: list[SteeringMessage]) -> list[str]:
    return [each.text for each in taken]


def test_steering_mode_delivers_one_message_or_all() -> None:
    """Messages are delivered in the order in which they were sent."""
    queues = queues_of("a", "b")
    assert texts(queues.take(stopping=False)) == ["a"]
    assert texts(queues.take(stopping=True)) == ["b"]
    assert queues.take(stopping=True) == []
    assert texts(queues_of("a", "b", mode="all").take(stopping=False)) == ["a", "b"]


def test_follow_ups_are_delivered_after_steering_when_the_turn_would_end() -> None:
    """Follow-ups and steering messages have separate queues."""
    queues = queues_of("later", follow_up=True)
    queues.add(SteeringMessage("s", "now"), follow_up=False)
    assert texts(queues.take(stopping=False)) == ["now"]
    assert queues.take(stopping=False) == []
    assert texts(queues.take(stopping=True)) == ["later"]


def test_steering_and_follow_ups_have_separate_modes() -> None:
    """Each mode can be changed at any time. One argument sets both."""
    queues = SteeringQueues("one-at-a-time", "all")
    for number in range(4):
        queues.add(SteeringMessage(str(number), str(number)), follow_up=number > 1)
    assert texts(queues.take(stopping=True)) == ["0"]
    queues.set_modes("all", "one-at-a-time")
    assert texts(queues.take(stopping=True)) == ["1"]
    assert texts(queues.take(stopping=True)) == ["2"]
    queues.set_modes("all")
    queues.add(SteeringMessage("4", "4"), follow_up=True)
    assert texts(queues.take(stopping=True)) == ["3", "4"]


def test_retracted_steering_is_not_delivered() -> None:
    """Retracting returns the ids of messages that were still queued, but not of delivered or unknown ones."""
    queues = queues_of("a", "b", "c")
    queues.add(SteeringMessage("f", "later"), follow_up=True)
    assert texts(queues.take(stopping=False)) == ["a"]
    assert queues.drop(["0", "2", "f", "x"]) == ["2", "f"]
    assert texts(queues.take(stopping=True)) == ["b"]
    assert queues.take(stopping=True) == []


def test_duplicate_steering_message_is_queued_once() -> None:
    """A root may resend a message to a process that already has it."""
    queues = queues_of("a")
    queues.add(SteeringMessage("0", "a"), follow_up=False)
    assert len(queues.take(stopping=False)) == 1
    assert queues.take(stopping=False) == []


class Conversation(Talk):
    """An agent that receives steering messages."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.events: list[tuple[str, str, str, int, bool]] = []
        self.on_event = lambda *event: self.events.append(event)

    def users(self) -> list[str]:
        """Return the texts of user messages, in order."""
        return [text_of(message) for message in self.recorded if message.role == "user" and text_of(message)]


@pytest.fixture
def steered() -> Conversation:
    """Return an agent whose tool steers the agent that calls it."""

    @tool
    def look() -> str:
        talk.queues.add(SteeringMessage("1", "be brief"), follow_up=False)
        talk.queues.add(SteeringMessage("2", "then sum up"), follow_up=True)
        return "seen"

    script = ScriptedBackend([{"tool": "look"}, "brief", "summary"])
    talk = Conversation(script, look)
    return talk


async def test_steering_follows_tool_results_and_follow_ups_follow_the_reply(steered: Conversation) -> None:
    """Steering and follow-ups become user messages. The turn ends with the response to the last one."""
    reply = await steered.ask()
    assert reply.text == "summary"
    assert steered.users() == ["go", "[Steering]\nbe brief", "[Steering]\nthen sum up"]
    assert [id for id, _ in steered.acknowledged] == ["1", "2"]
    for _, count in steered.acknowledged:
        assert text_of(steered.recorded[count - 1]).startswith("[Steering]"), "it was told before it was on record"
    roles = [(message.role, text_of(message)) for message in steered.recorded]
    assert roles.index(("user", "[Steering]\nbe brief")) < roles.index(("assistant", "brief"))
    assert roles.index(("assistant", "brief")) < roles.index(("user", "[Steering]\nthen sum up"))
    assert_valid(steered.recorded)


async def test_steering_queued_while_idle_joins_the_next_prompt() -> None:
    """A message to an idle agent is part of its next turn."""
    talk = Conversation(ScriptedBackend(["fine"]))
    talk.queues.add(SteeringMessage("1", "short answers"), follow_up=False)
    await talk.ask()
    assert talk.users() == ["go", "[Steering]\nshort answers"]


async def test_step_limit_bounds_endless_follow_ups() -> None:
    """Each follow-up counts as a step, so the turn ends with `max_turns`."""
    talk = Conversation(ScriptedBackend([{"loop": ["again"]}]))
    for number in range(10):
        talk.queues.add(SteeringMessage(str(number), "more"), follow_up=True)
    reply = await talk.ask(limits=Limits(max_turns=4))
    assert (reply.stop_reason, reply.steps) == ("max_turns", 4)


async def test_turn_events_are_emitted_in_order_with_their_step(steered: Conversation) -> None:
    """Calls, results, responses and steering messages are reported in order."""
    await steered.ask()
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
