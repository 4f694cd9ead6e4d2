"""Ids, messages, usage and configuration as values."""

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


def test_an_id_is_never_all_digits() -> None:
    """A sequence number and an id cannot be mistaken for one another."""
    ids = {new_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(id) == 12 and id[0].isalpha() and int(id, 16) for id in ids)


def test_ids_are_no_part_of_a_programs_luck() -> None:
    """Who seeds `random` gets the same numbers, whatever was named meanwhile; and no name comes again."""
    names = set()
    for _ in range(2):
        random.seed(7)
        names |= {new_id(), new_entry_id(())}
        assert random.random() == random.Random(7).random()
    assert len(names) == 4


def test_an_entry_id_is_one_that_is_not_taken() -> None:
    """Entry ids are checked against those the file has."""
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
    """No block loses anything on disk or on the wire."""
    message = Message("assistant", (block,))
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message


def test_text_and_calls_are_read_from_a_message() -> None:
    """Text blocks are joined by blank lines; calls keep their order."""
    one, two = ToolUse("1", "a", {}), ToolUse("2", "b", {})
    message = Message("assistant", (Text("x"), one, Text("y"), two))
    assert text_of(message) == "x\n\ny"
    assert tool_uses(message) == [one, two]
    assert text_of(user("q")) == "q"
    assert text_of(assistant("a")) == "a"


def test_usage_adds_up_and_a_missing_price_makes_the_cost_a_floor() -> None:
    """Sums keep every field; one unknown price makes the sum unknown."""
    total = Usage(1, 2, 3, 4, 0.5) + Usage(10, 20, 30, 40, 0.25, cost_known=False)
    assert total == Usage(11, 22, 33, 44, 0.75, cost_known=False)


def test_scrub_mends_strings_inside_structures() -> None:
    """Keys, values and items alike; what is not text stays."""
    assert scrub({"a\ud800": ["\udfff", 1, ("x",)]}) == {
        "a\N{REPLACEMENT CHARACTER}": ["\N{REPLACEMENT CHARACTER}", 1, ["x"]]
    }
    assert scrub("\U0001f600") == "\U0001f600"


def test_no_model_is_the_extractive_backend() -> None:
    """None needs no key; a name is split at its first colon."""
    assert parse_model(None) == BackendSpec("extractive")
    assert parse_model("ollama:llama3:8b") == BackendSpec("ollama", "llama3:8b")
    assert parse_model("scripted") == BackendSpec("scripted")


def test_configuration_refuses_what_it_does_not_know() -> None:
    """Unknown keys and values out of range are errors that name the field."""
    with pytest.raises(msgspec.ValidationError, match="max_concurent"):
        msgspec.convert({"subagents": {"max_concurent": 3}}, Config)
    with pytest.raises(msgspec.ValidationError, match=r"subagents\.depth_cap"):
        msgspec.convert({"subagents": {"depth_cap": -1}}, Config)
