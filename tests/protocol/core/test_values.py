"""Values: ids, messages, usage and configuration."""

from __future__ import annotations

import random

import msgspec
import pytest

from orch_protocol.agent.config import Config, parse_model
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.ids import new_entry_id, new_id
from orch_protocol.core.messages import (
    Block,
    Image,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
    assistant,
    text_of,
    tool_uses,
    user,
)
from orch_protocol.core.text import scrub


def test_id_is_never_all_digits() -> None:
    """An id has 12 hexadecimal digits and begins with a letter, so it is never a sequence number."""
    ids = {new_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(id) == 12 and id[0].isalpha() and int(id, 16) for id in ids)


def test_ids_do_not_depend_on_the_seed_of_random() -> None:
    """Ids are different after the same seed, and creating them does not change the state of `random`."""
    names = set()
    for _ in range(2):
        random.seed(7)
        names |= {new_id(), new_entry_id(())}
        assert random.random() == random.Random(7).random()
    assert len(names) == 4


def test_entry_id_avoids_taken_ones() -> None:
    """A new entry id is compared with the taken ids until it is not one of them."""
    seen: list[str] = []

    class Taken:
        def __contains__(self, candidate: object) -> bool:
            seen.append(str(candidate))
            return len(seen) < 3

    assert new_entry_id(Taken()) == seen[2]


@pytest.mark.parametrize(
    "block",
    [
        Text("a"),
        Thinking("hm", "sig=="),
        Thinking("hm"),
        Image("image/png", "aGk="),
        ToolUse("t1", "read_file", {"path": "x", "n": [1, None, {"a": 1.5}]}),
        ToolResult("t1", (Text("x"), Image("image/png", "aGk=")), True),
        Opaque("anthropic", {"type": "server_tool_use", "deep": [1, {"x": None}]}),
    ],
    ids=lambda block: type(block).__name__,
)
def test_every_block_survives_json_and_msgpack(block: Block) -> None:
    """A message with any block is equal after encoding and decoding."""
    message = Message("assistant", (block,))
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message


def test_text_and_calls_are_read_from_a_message() -> None:
    """Blank lines join the text blocks of a message, and its calls keep their order."""
    one, two = ToolUse("1", "a", {}), ToolUse("2", "b", {})
    message = Message("assistant", (Text("x"), one, Text("y"), two))
    assert text_of(message) == "x\n\ny"
    assert tool_uses(message) == [one, two]
    assert text_of(user("q")) == "q"
    assert text_of(assistant("a")) == "a"


def test_usage_sums_every_field_and_marks_missing_prices() -> None:
    """A sum adds each field. If one cost is unknown, the cost of the sum is unknown."""
    total = Usage(1, 2, 3, 4, 0.5) + Usage(10, 20, 30, 40, 0.25, cost_known=False)
    assert total == Usage(11, 22, 33, 44, 0.75, cost_known=False)


def test_scrub_replaces_surrogates_in_nested_structures() -> None:
    """Lone surrogates in keys, values and items are replaced. Other values stay the same."""
    assert scrub({"a\ud800": ["\udfff", 1, ("x",)]}) == {
        "a\N{REPLACEMENT CHARACTER}": ["\N{REPLACEMENT CHARACTER}", 1, ["x"]]
    }
    assert scrub("\U0001f600") == "\U0001f600"


def test_missing_model_is_the_extractive_backend() -> None:
    """Without a model, the backend is `extractive`. The name of a model is split at its first colon."""
    assert parse_model(None) == BackendSpec("extractive")
    assert parse_model("ollama:llama3:8b") == BackendSpec("ollama", "llama3:8b")
    assert parse_model("scripted") == BackendSpec("scripted")


def test_configuration_refuses_unknown_keys_and_values() -> None:
    """Unknown keys and values out of range are errors that name the setting."""
    with pytest.raises(msgspec.ValidationError, match="max_concurent"):
        msgspec.convert({"subagents": {"max_concurent": 3}}, Config)
    with pytest.raises(msgspec.ValidationError, match=r"subagents\.depth_cap"):
        msgspec.convert({"subagents": {"depth_cap": -1}}, Config)
