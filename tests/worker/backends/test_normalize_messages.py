"""Any conversation becomes one that strict providers accept, and one that they accept stays as it is."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_doubles import assert_valid
from orch_protocol.core.messages import (
    Image,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    assistant,
    text_of,
    tool_uses,
    user,
)
from orch_worker.backends.normalize_messages import ProviderRequirements, arrange, whole

WANTS = ProviderRequirements("ours", re.compile(r"[a-zA-Z0-9_-]{1,40}"))
OURS = Thinking("hm", "sig", "ours")
THEIRS = Thinking("hm", "sig", "theirs")


def uses(*ids: str) -> Message:
    """Return an assistant's message that makes calls with `ids`."""
    return Message("assistant", tuple(ToolUse(id, "t", {}) for id in ids))


def results(*ids: str) -> Message:
    """Return a user's message that answers calls with `ids`."""
    return Message("user", tuple(ToolResult(id, (Text(f"r{id}"),)) for id in ids))


FINE = [user("hi"), uses("a", "b"), results("a", "b"), assistant("done"), user("bye")]

texts = st.builds(Text, st.sampled_from(["", " ", "x", "y"]))
blocks = st.one_of(
    texts,
    st.sampled_from([OURS, THEIRS, Opaque("ours", {}), Opaque("theirs", {}), Image("image/png", "aGk=")]),
    st.builds(ToolUse, st.sampled_from("abc!"), st.just("t"), st.just({})),
    st.builds(ToolResult, st.sampled_from("abc!"), st.lists(texts, max_size=2).map(tuple)),
)
messages = st.builds(
    lambda role, parts: Message(
        role, tuple(part for part in parts if not isinstance(part, ToolResult if role == "assistant" else ToolUse))
    ),
    st.sampled_from(["user", "assistant", "system"]),
    st.lists(blocks, max_size=4),
)


def test_what_fits_is_kept() -> None:
    """A conversation that is fine is sent as it is."""
    assert arrange(FINE, WANTS) == FINE


@given(st.lists(messages, max_size=12), st.booleans())
@settings(max_examples=300, deadline=None)
def test_anything_becomes_valid(conversation: list[Message], system: bool) -> None:
    """Whatever was appended: roles alternate, a user begins, calls are answered at once, and nothing is empty."""
    wants = ProviderRequirements("ours", WANTS.ids, system=system)
    arranged = arrange(conversation, wants)
    spoken = [message for message in arranged if message.role != "system"]
    assert_valid(spoken)
    assert [message.role for message in spoken] == [("user", "assistant")[place % 2] for place in range(len(spoken))]
    assert system or spoken == arranged
    ids = [call.id for message in arranged for call in tool_uses(message)]
    assert len(set(ids)) == len(ids)
    assert all(WANTS.ids.fullmatch(id) for id in ids)
    for message in arranged:
        for block in message.content:
            assert not isinstance(block, Text) or block.text.strip()
            assert not isinstance(block, Thinking | Opaque) or block.provider == "ours"
            assert not isinstance(block, ToolResult) or block.content
    for before, after in pairwise(arranged):
        assert not tool_uses(before) or after.role == "user"


@given(st.lists(messages, max_size=8))
@settings(deadline=None)
def test_arranging_is_stable(conversation: list[Message]) -> None:
    """A conversation that grows keeps its beginning, so that a provider's cache holds."""
    arranged = arrange([*conversation, user("x")], WANTS)
    longer = arrange([*conversation, user("x"), assistant("y"), user("z")], WANTS)
    assert longer[: len(arranged)] == arranged


def test_neighbours_are_joined() -> None:
    """Several messages of one role are one message, results first."""
    arranged = arrange([user("a"), user("b"), uses("c"), user("wait"), results("c")], WANTS)
    assert arranged[0] == Message("user", (Text("a"), Text("b")))
    assert arranged[2] == Message("user", (*results("c").content, Text("wait")))


def test_results_in_call_order() -> None:
    """Results are sent in the order of the calls, whatever order they were added in."""
    arranged = arrange([user("x"), uses("a", "b"), results("b", "a")], WANTS)
    assert arranged[2] == results("a", "b")


def test_missing_and_stray_results() -> None:
    """A call without a result gets one that says so; a result without a call becomes text."""
    arranged = arrange([user("x"), uses("a"), results("z")], WANTS)
    lost, *stray = arranged[2].content
    assert isinstance(lost, ToolResult)
    assert (lost.tool_use_id, lost.is_error) == ("a", True)
    assert "rz" in text_of(Message("user", tuple(stray)))


def test_calls_at_the_end_are_answered() -> None:
    """A conversation that ends with calls gets their results, so that it may be sent."""
    assert [message.role for message in arrange([user("x"), uses("a")], WANTS)] == ["user", "assistant", "user"]


def test_a_lost_beginning_is_said() -> None:
    """A conversation that begins with an assistant gets a user's message in front."""
    arranged = arrange([assistant("hello")], WANTS)
    assert arranged[0].role == "user"
    assert "not on record" in text_of(arranged[0])


@pytest.mark.parametrize("bad", ["functions.weather:0", "x" * 41, "", "a b"])
def test_ids_are_made_to_fit(bad: str) -> None:
    """An id that the provider would refuse is replaced, in the call and in its result alike."""
    _, asked, answered = arrange([user("x"), uses(bad), results(bad)], WANTS)
    [id] = [call.id for call in tool_uses(asked)]
    assert WANTS.ids.fullmatch(id)
    assert [result.tool_use_id for result in answered.content if isinstance(result, ToolResult)] == [id]


def test_ids_that_come_again() -> None:
    """The same id in a later response, or twice in one, is told apart."""
    arranged = arrange([user("x"), uses("a", "a"), results("a", "a"), uses("a"), results("a")], WANTS)
    ids = [call.id for message in arranged for call in tool_uses(message)]
    assert len(set(ids)) == 3
    assert ids[0] == "a"
    assert_valid(arranged)


def test_reasoning_stays_with_its_provider() -> None:
    """Reasoning and opaque blocks of others are left out, one's own are not touched."""
    content = (OURS, THEIRS, Opaque("ours", {"a": 1}), Opaque("theirs", {"a": 2}), Text("t"))
    arranged = arrange([user("x"), Message("assistant", content), user("y")], WANTS)
    assert arranged[1].content == (OURS, Opaque("ours", {"a": 1}), Text("t"))


def test_a_message_of_nothing_disappears() -> None:
    """A message of which the provider takes nothing is not sent, and its neighbours are joined."""
    arranged = arrange([user("x"), Message("assistant", (THEIRS,)), user("y")], WANTS)
    assert arranged == [Message("user", (Text("x"), Text("y")))]


def test_system_messages_where_they_are_not_taken() -> None:
    """A late system message becomes a user's note for a provider that takes none."""
    wants = ProviderRequirements("ours", WANTS.ids, system=False)
    arranged = arrange([user("x"), Message("system", (Text("be quick"),))], wants)
    assert [message.role for message in arranged] == ["user"]
    assert "be quick" in text_of(arranged[0])


def test_system_messages_do_not_part_calls_from_results() -> None:
    """A system message between a call and its result comes after it."""
    arranged = arrange([user("x"), uses("a"), Message("system", (Text("s"),)), results("a")], WANTS)
    assert [message.role for message in arranged] == ["user", "assistant", "user", "system"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("wörld", "wörld"),
        ("\ud83d\ude00", "\N{GRINNING FACE}"),
        ("a\ud83d", "a\N{REPLACEMENT CHARACTER}"),
        ("\ude00\ud83d", 2 * "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_whole(text: str, expected: str) -> None:
    """Halves that came apart are one character again; a half alone is replaced."""
    assert whole(text) == expected
