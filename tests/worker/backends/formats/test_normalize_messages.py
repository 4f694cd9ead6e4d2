"""Normalizing a conversation, so that strict providers accept it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import msgspec
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
from orch_worker.backends.formats.normalize_messages import (
    ProviderRequirements,
    join_surrogates,
    normalize_messages,
    parse_input,
    with_model,
)
from pictures import png

DOT = Image.from_bytes(png(2, 1), "dot.png")
WIDE = Image.from_bytes(png(2001, 1), "wide.png")
LARGE = Image.from_bytes(png(1, 1, 3_900_000), "large.png")
NAMES = re.compile(r"[a-zA-Z0-9_-]{1,64}")
WANTS = ProviderRequirements("ours", re.compile(r"[a-zA-Z0-9_-]{1,40}"), NAMES, "model")
OWN = Thinking("hm", "sig", "ours", "model")
OTHER = Thinking("hm", "sig of another", "ours", "other")
FOREIGN = Thinking("hm", "sig", "theirs")
KEPT = (("ours", "model"), ("ours", ""))
"""Providers and models of the reasoning that requests contain."""


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
    st.sampled_from([OWN, OTHER, FOREIGN, Opaque("ours", {}), Opaque("theirs", {}), Image("image/png", "aGk=")]),
    st.builds(ToolUse, st.sampled_from("abc!"), st.sampled_from(["t", "", "a.t", "a/t", "t" * 65]), st.just({})),
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
    wants = ProviderRequirements("ours", WANTS.ids, NAMES, "model", system=system)
    arranged = normalize_messages(conversation, wants)
    spoken = [message for message in arranged if message.role != "system"]
    assert_valid(spoken)
    assert [message.role for message in spoken] == [("user", "assistant")[place % 2] for place in range(len(spoken))]
    assert system or spoken == arranged
    ids = [call.id for message in arranged for call in tool_uses(message)]
    assert len(set(ids)) == len(ids)
    assert all(WANTS.ids.fullmatch(id) for id in ids)
    names = [call.name for message in arranged for call in tool_uses(message)]
    assert all(map(NAMES.fullmatch, names))
    given = [call.name for message in conversation for call in tool_uses(message)]
    assert len(set(zip(given, names, strict=True))) == len(set(given)) == len(set(names))
    for message in arranged:
        for block in message.content:
            assert not isinstance(block, Text) or block.text.strip()
            assert not isinstance(block, Thinking | Opaque) or (block.provider, block.model) in KEPT
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


def sent_names(*names: str) -> list[str]:
    """Return the names of calls that a request contains for calls of `names`."""
    calls = [ToolUse(str(number), name, {}) for number, name in enumerate(names)]
    arranged = normalize_messages([user("x"), *(Message("assistant", (call,)) for call in calls)], WANTS)
    return [call.name for message in arranged for call in tool_uses(message)]


BAD_NAMES = [
    "", " ", "functions.read_file", "mcp.github/list_issues", "read_file<|channel|>commentary", "x" * 129,
    "read\x00file", "read_file\n",
    "lesen_\u00fc", "\ud800", "\U0001f527", "1.", "read_file()", "read file", '{"name": "x"}',
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_NAMES)
def test_invalid_name_of_a_call_is_converted_and_the_call_keeps_its_result(bad: str) -> None:
    """A name that the provider refuses is converted. The conversation itself is unchanged."""
    conversation = [user("x"), Message("assistant", (ToolUse("a", bad, {"p": 1}),)), results("a"), user("y")]
    arranged = normalize_messages(conversation, WANTS)
    (call,) = tool_uses(arranged[1])
    assert NAMES.fullmatch(call.name)
    assert call.name[0].isalpha()
    assert (call.id, call.input) == ("a", {"p": 1})
    assert arranged[2].content[0] == results("a").content[0]
    assert tool_uses(conversation[1])[0].name == bad


def test_converted_name_shows_the_original_name() -> None:
    """A model recognizes its own call, because the converted name contains the valid part of the original name."""
    assert sent_names("functions.read_file")[0].startswith("functions_read_file_")


@given(st.lists(st.one_of(st.sampled_from(["a", "a_b", *BAD_NAMES]), st.text(max_size=80)), max_size=12))
def test_different_names_stay_different_and_do_not_depend_on_later_calls(names: list[str]) -> None:
    """Names are valid, valid names are unchanged, and equal names stay equal.

    Adding the converted names as original names tests the names that a model repeats from its own conversation.
    """
    first = sent_names(*names)
    everything = sent_names(*names, *first)
    assert everything[: len(names)] == first
    assert all(map(NAMES.fullmatch, everything))
    originals = [*names, *first]
    assert len(set(zip(originals, everything, strict=True))) == len(set(originals)) == len(set(everything))
    assert all(name == sent for name, sent in zip(names, first, strict=True) if NAMES.fullmatch(name))


@pytest.mark.parametrize(
    "block",
    [
        OTHER,
        Opaque("ours", {"type": "redacted_thinking", "data": "x"}, "other"),
        Opaque("ours", {"type": "reasoning", "id": "rs_1", "encrypted_content": "x"}, "other"),
    ],
)
def test_signed_reasoning_of_another_model_is_left_out(block: Thinking | Opaque) -> None:
    """Reasoning of the same model and of an unknown model stays. The rest of the message stays in each case."""
    for model, stays in (("other", False), ("model", True), ("", True)):
        own = msgspec.structs.replace(block, model=model)
        arranged = normalize_messages([user("x"), Message("assistant", (own, Text("t")))], WANTS)
        assert arranged[1].content == ((own, Text("t")) if stays else (Text("t"),))


def test_only_signed_reasoning_is_labeled_with_its_model() -> None:
    """Text, calls, plain reasoning and other blocks of a provider can be sent to each model of the provider."""
    plain = (Text("t"), ToolUse("a", "t", {}), Thinking("hm", None, "ours"), Opaque("ours", {"type": "message"}))
    secret = (Thinking("hm", "sig", "ours"), Opaque("ours", {"type": "reasoning", "id": "rs_1"}))
    labeled = with_model((*plain, *secret), "m")
    assert labeled[:4] == plain
    assert [block.model for block in labeled[4:] if isinstance(block, Thinking | Opaque)] == ["m", "m"]


def test_thinking_without_a_signature_is_left_out_if_the_provider_needs_one() -> None:
    """A message that contains only such thinking is left out, because a message must not be empty."""
    wants = msgspec.structs.replace(WANTS, signed=True)
    cut = Message("assistant", (Thinking("hm", None, "ours"),))
    assert normalize_messages([user("x"), cut, user("y")], wants) == [Message("user", (Text("x"), Text("y")))]
    assert normalize_messages([user("x"), cut, user("y")], WANTS)[1] == cut


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        ({"a": "\ud800"}, {"a": "\N{REPLACEMENT CHARACTER}"}),
        (None, {}),
        ("", {}),
        ({}, {}),
        ([1], {"invalid_json": "[1]"}),
        (7, {"invalid_json": "7"}),
        ("[1]", {"invalid_json": "[1]"}),
        ('{"a": 1', {"invalid_json": '{"a": 1'}),
    ],
)
def test_arguments_are_accepted_as_text_and_as_an_object(given: object, expected: dict[str, Any]) -> None:
    assert parse_input(given) == expected


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
    assert normalize_messages([own], ProviderRequirements("ours", WANTS.ids, NAMES, images=False)) == [note]


def test_messages_without_supported_content_are_dropped() -> None:
    """The messages before and after a dropped message are joined."""
    arranged = normalize_messages([user("x"), Message("assistant", (FOREIGN,)), user("y")], WANTS)
    assert arranged == [Message("user", (Text("x"), Text("y")))]


def test_late_system_messages_become_user_notes() -> None:
    """The note is for providers that accept a system message only at the beginning."""
    wants = ProviderRequirements("ours", WANTS.ids, NAMES, system=False)
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
    wants = ProviderRequirements("ours", WANTS.ids, NAMES, images=images)
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
    wants = ProviderRequirements("ours", WANTS.ids, NAMES, images=False)
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
