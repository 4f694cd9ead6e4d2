"""Normalizing a conversation, so that strict providers accept it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

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
from orch_worker.backends.normalize_messages import ProviderRequirements, join_surrogates, normalize_messages
from pictures import png

DOT = Image.from_bytes(png(2, 1), "dot.png")
WIDE = Image.from_bytes(png(2001, 1), "wide.png")
LARGE = Image.from_bytes(png(1, 1, 3_900_000), "large.png")
WANTS = ProviderRequirements("ours", re.compile(r"[a-zA-Z0-9_-]{1,40}"))
OWN = Thinking("hm", "sig", "ours")
FOREIGN = Thinking("hm", "sig", "theirs")


def uses(*ids: str) -> Message:
    """Return an assistant message that makes calls with `ids`."""
    return Message("assistant", tuple(ToolUse(id, "t", {}) for id in ids))


def results(*ids: str) -> Message:
    """Return a user message that answers the calls with `ids`."""
    return Message("user", tuple(ToolResult(id, (Text(f"r{id}"),)) for id in ids))


FINE = [user("hi"), uses("a", "b"), results("a", "b"), assistant("done"), user("bye")]

texts = st.builds(Text, st.sampled_from(["", " ", "x", "y"]))
blocks = st.one_of(
    texts,
    st.sampled_from([OWN, FOREIGN, Opaque("ours", {}), Opaque("theirs", {}), Image("image/png", "aGk=")]),
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


def test_valid_conversation_is_unchanged() -> None:
    assert normalize_messages(FINE, WANTS) == FINE


@given(st.lists(messages, max_size=12), st.booleans())
@settings(max_examples=300)
def test_any_messages_become_a_valid_conversation(conversation: list[Message], system: bool) -> None:
    """Roles alternate, a user begins, calls are answered at once, and no message is empty."""
    wants = ProviderRequirements("ours", WANTS.ids, system=system)
    arranged = normalize_messages(conversation, wants)
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
def test_normalization_is_stable_under_growth(conversation: list[Message]) -> None:
    """The normalized prefix of a growing conversation does not change, so that provider caches stay valid."""
    arranged = normalize_messages([*conversation, user("x")], WANTS)
    longer = normalize_messages([*conversation, user("x"), assistant("y"), user("z")], WANTS)
    assert longer[: len(arranged)] == arranged


def test_adjacent_messages_of_one_role_are_joined() -> None:
    """Results come before text in a joined message."""
    arranged = normalize_messages([user("a"), user("b"), uses("c"), user("wait"), results("c")], WANTS)
    assert arranged[0] == Message("user", (Text("a"), Text("b")))
    assert arranged[2] == Message("user", (*results("c").content, Text("wait")))


def test_results_in_call_order() -> None:
    """Results are sorted into the order of their calls."""
    arranged = normalize_messages([user("x"), uses("a", "b"), results("b", "a")], WANTS)
    assert arranged[2] == results("a", "b")


def test_missing_results_are_added_and_stray_results_become_text() -> None:
    """A call without a result gets an error result, and a result without a call becomes text."""
    arranged = normalize_messages([user("x"), uses("a"), results("z")], WANTS)
    lost, *stray = arranged[2].content
    assert isinstance(lost, ToolResult)
    assert (lost.tool_use_id, lost.is_error) == ("a", True)
    assert "rz" in text_of(Message("user", tuple(stray)))


def test_calls_at_the_end_are_answered() -> None:
    """Calls at the end of a conversation get results, so that the conversation can be sent."""
    assert [message.role for message in normalize_messages([user("x"), uses("a")], WANTS)] == [
        "user",
        "assistant",
        "user",
    ]


def test_conversation_starting_with_an_assistant_gets_a_user_message() -> None:
    """The added user message states that the beginning is not on record."""
    arranged = normalize_messages([assistant("hello")], WANTS)
    assert arranged[0].role == "user"
    assert "not on record" in text_of(arranged[0])


@pytest.mark.parametrize("bad", ["functions.weather:0", "x" * 41, "", "a b"])
def test_invalid_call_ids_are_replaced_consistently(bad: str) -> None:
    """The call and its result get the same new id."""
    _, asked, answered = normalize_messages([user("x"), uses(bad), results(bad)], WANTS)
    [id] = [call.id for call in tool_uses(asked)]
    assert WANTS.ids.fullmatch(id)
    assert [result.tool_use_id for result in answered.content if isinstance(result, ToolResult)] == [id]


def test_duplicate_call_ids_are_made_unique() -> None:
    """Ids are unique within a response and across responses."""
    arranged = normalize_messages([user("x"), uses("a", "a"), results("a", "a"), uses("a"), results("a")], WANTS)
    ids = [call.id for message in arranged for call in tool_uses(message)]
    assert len(set(ids)) == 3
    assert ids[0] == "a"
    assert_valid(arranged)


def test_reasoning_blocks_of_other_providers_are_dropped() -> None:
    """Reasoning and opaque blocks of the same provider are unchanged."""
    content = (OWN, FOREIGN, Opaque("ours", {"a": 1}), Opaque("theirs", {"a": 2}), Text("t"))
    arranged = normalize_messages([user("x"), Message("assistant", content), user("y")], WANTS)
    assert arranged[1].content == (OWN, Opaque("ours", {"a": 1}), Text("t"))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"type": "image_url", "image_url": {"url": "https://x/y.png"}}, "image_url: https://x/y.png"),
        ({"type": "input_image", "image_url": "https://x/y.png"}, "input_image: https://x/y.png"),
        ({"type": "file", "file": {"filename": "a.pdf", "file_data": "AAAA"}}, "file: a.pdf"),
        ({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}, "image: https://x/y.png"),
        ({"type": "document", "source": {"type": "base64", "data": "AAAA"}}, "document"),
    ],
)
def test_texts_replace_user_content_in_the_format_of_other_providers(raw: dict[str, Any], text: str) -> None:
    """The same holds for the provider's own format if the model does not accept images."""
    note = Message("user", (Text(f"[{text}; not shown: this model does not accept this content]"),))
    own = Message("user", (Opaque("ours", raw),))
    assert normalize_messages([Message("user", (Opaque("theirs", raw),))], WANTS) == [note]
    assert normalize_messages([own], WANTS) == [own]
    assert normalize_messages([own], ProviderRequirements("ours", WANTS.ids, images=False)) == [note]


def test_messages_without_supported_content_are_dropped() -> None:
    """The messages before and after a dropped message are joined."""
    arranged = normalize_messages([user("x"), Message("assistant", (FOREIGN,)), user("y")], WANTS)
    assert arranged == [Message("user", (Text("x"), Text("y")))]


def test_late_system_messages_become_user_notes() -> None:
    """The note is for providers that accept a system message only at the beginning."""
    wants = ProviderRequirements("ours", WANTS.ids, system=False)
    arranged = normalize_messages([user("x"), Message("system", (Text("be quick"),))], wants)
    assert [message.role for message in arranged] == ["user"]
    assert "be quick" in text_of(arranged[0])


def test_system_message_between_call_and_result_moves_behind_the_result() -> None:
    arranged = normalize_messages([user("x"), uses("a"), Message("system", (Text("s"),)), results("a")], WANTS)
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
def test_split_surrogate_pairs_are_rejoined(text: str, expected: str) -> None:
    """A surrogate without its pair is replaced by U+FFFD."""
    assert join_surrogates(text) == expected


def shown_images(conversation: list[Message], *, images: bool = True) -> list[bool]:
    """Return for each image of the conversation whether the image is sent and not replaced by text."""
    wants = ProviderRequirements("ours", WANTS.ids, images=images)
    sent = [
        part
        for message in normalize_messages(conversation, wants)
        for block in message.content
        for part in (block.content if isinstance(block, ToolResult) else (block,))
        if isinstance(part, Image) or "[image: " in getattr(part, "text", "")
    ]
    return [isinstance(part, Image) for part in sent]


def test_models_without_vision_get_the_texts_of_images() -> None:
    """The text names the image and the reason."""
    conversation = [user(["look", DOT]), uses("a"), Message("user", (ToolResult("a", (DOT,)),))]
    assert shown_images(conversation) == [True, True]
    assert shown_images(conversation, images=False) == [False, False]
    wants = ProviderRequirements("ours", WANTS.ids, images=False)
    assert text_of(normalize_messages(conversation, wants)[0]) == (
        "look\n\n[image: dot.png, 2x1; not shown: this model does not accept images]"
    )


@pytest.mark.parametrize(
    ("images", "kept"),
    [
        ([DOT] * 100, 100),
        ([DOT] * 101, 100),
        ([*[DOT] * 19, WIDE], 20),
        ([*[DOT] * 24, WIDE], 20),
        ([LARGE] * 4, 4),
        ([*[LARGE] * 6, DOT], 5),
    ],
)
def test_old_images_beyond_the_limits_of_a_request_are_replaced(images: list[Image], kept: int) -> None:
    """A request has at most 100 images, 20 if one of them is large, and 20 MiB of images."""
    conversation = [*FINE[:2], Message("user", (ToolResult("a", (images[0],)), ToolResult("b", (Text("x"),))))]
    conversation += [assistant("hm"), user(images[1:])]
    assert shown_images(conversation) == [False] * (len(images) - kept) + [True] * kept
    assert ("not shown: the request contains newer images" in str(normalize_messages(conversation, WANTS))) == (
        kept < len(images)
    )
