"""Types of replies: the schema for the model, the conversion of JSON to a value, and queries with a type."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from orch.api.return_types import MismatchError, return_type
from orch_protocol.core.errors import BadReplyError, ConfigError
from orchestrator.root_double import opened


class Struct(msgspec.Struct):
    """A msgspec struct."""

    place: str
    degrees: int


@dataclass
class Data:
    """A dataclass."""

    place: str
    degrees: int


class Typed(TypedDict):
    """A TypedDict."""

    place: str
    degrees: int


class WithFunction(pydantic.BaseModel):
    """A pydantic model that JSON cannot represent."""

    act: Callable[[], None]


class Model(pydantic.BaseModel):
    """A pydantic model with a rule for a field."""

    place: str
    degrees: int = pydantic.Field(lt=100)


class Plain:
    """A class that JSON cannot represent."""


SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "degrees": {"$ref": "#/$defs/degrees"}},
    "required": ["place", "degrees"],
    "$defs": {"degrees": {"type": "integer", "maximum": 99}},
}
GOOD, BAD = '{"place": "pump", "degrees": 82}', '{"place": "pump", "degrees": "hot"}'
VALUES = [
    (Struct, Struct("pump", 82)),
    (Data, Data("pump", 82)),
    (Typed, {"place": "pump", "degrees": 82}),
    (Model, Model(place="pump", degrees=82)),
    (SCHEMA, {"place": "pump", "degrees": 82}),
]


@pytest.mark.parametrize(("returns", "value"), VALUES)
def test_each_kind_of_type(returns: Any, value: Any) -> None:
    """The schema contains the fields, matching JSON becomes a value of the type, and other JSON is a mismatch."""
    found = return_type(returns)
    assert {"place", "degrees"} <= set(json.dumps(found.schema).replace('"', " ").split())
    assert found.decode(GOOD.encode()) == value
    with pytest.raises(MismatchError, match="degrees"):
        found.decode(BAD.encode())
    with pytest.raises(msgspec.DecodeError):
        found.decode(b"{half")


def test_models_within_other_types() -> None:
    """A pydantic model can be a part of a type, and its rules apply."""
    found = return_type(list[Model])
    assert found.decode(f"[{GOOD}]".encode()) == [Model(place="pump", degrees=82)]
    with pytest.raises(MismatchError, match="less than 100"):
        found.decode(b'[{"place": "pump", "degrees": 100}]')


@pytest.mark.parametrize(
    ("returns", "why"),
    [
        (5, "a JSON schema, or a type"),
        (Plain, "a JSON schema, or a type"),
        ({"type": "nonsense"}, "'nonsense' is not valid"),
        ({"type": object()}, "not a valid JSON schema"),
        ({"$schema": 5}, "not a valid JSON schema"),
        ({"$schema": []}, "not a valid JSON schema"),
        (WithFunction, "pydantic has no JSON schema"),
    ],
)
def test_other_types_are_refused(returns: Any, why: str) -> None:
    """The error for an unusable type states the alternatives or the reason."""
    with pytest.raises(ConfigError, match=why):
        return_type(returns)


def test_a_schema_elsewhere_is_not_fetched() -> None:
    """A reference to another document is an error before the query, and causes no network request."""
    elsewhere = {"$ref": "http://127.0.0.1:1/schema.json"}
    for schema in (elsewhere, {"properties": {"place": elsewhere}}, {"$ref": "#/$defs/none"}, {"$ref": "http://[x"}):
        with pytest.raises(ConfigError, match="refers to a schema that it does not contain"):
            return_type(schema)
    found = return_type({"$ref": "#/unknown", "unknown": elsewhere})
    with pytest.raises(ConfigError, match="refers to a schema that it does not contain"):
        found.decode(b"{}")


@pytest.mark.parametrize(("returns", "value"), VALUES)
async def test_submit(tmp_path: Path, returns: Any, value: Any) -> None:
    """The future returns the value after one corrected reply."""
    async with opened(tmp_path) as o:
        agent = await o.scripted(BAD, GOOD, tools=[])
        assert await agent.submit("How hot?", returns=returns) == value


async def test_a_correction_waits_for_queued_queries(tmp_path: Path) -> None:
    """Queries that were queued before the correction run first, and the correction does not fail because of them."""
    async with opened(tmp_path) as o:
        agent = await o.scripted(BAD, "between", GOOD, tools=[])
        typed = agent.submit("How hot?", returns=Data)
        other = agent.submit("And?", queue=True)
        assert (await other).text == "between"
        assert await typed == Data("pump", 82)


async def test_submit_fails_after_two_replies(tmp_path: Path) -> None:
    """If the corrected reply is also invalid, the error contains the last reply."""
    async with opened(tmp_path) as o:
        agent = await o.scripted(BAD, "It is hot.", tools=[])
        with pytest.raises(BadReplyError, match=r"in two attempts: .*It is hot\."):
            await agent.submit("How hot?", returns=Data)
        with pytest.raises(ConfigError, match="a JSON schema, or a type"):
            agent.submit("How hot?", returns=Plain)


async def test_collect(tmp_path: Path) -> None:
    """`collect` returns the value of a reply. A correction contains the schema, which the query may not contain."""
    async with opened(tmp_path) as o:
        good = await o.scripted(GOOD, tools=[])
        late = await o.scripted("It is hot.", GOOD, tools=[])
        for agent in (good, late):
            await agent.submit("How hot?")
            assert await agent.collect(returns=Data) == Data("pump", 82)
        assert '"degrees"' in str((await late.show()).messages[-2])
        with pytest.raises(ConfigError, match="a JSON schema, or a type"):
            await good.collect(again=True, returns=Plain)
        assert await good.collect(again=True, returns=SCHEMA) == {"place": "pump", "degrees": 82}


async def test_ask_all(tmp_path: Path) -> None:
    """Each result has its value or its error; one agent's failure does not affect the others."""
    async with opened(tmp_path) as o:
        good = await o.scripted(GOOD, tools=[])
        late = await o.scripted("Hm.", GOOD, tools=[])
        bad = await o.scripted("Hm.", BAD, tools=[])
        gone = await o.scripted(GOOD, tools=[])
        await gone.kill()
        found = await o.ask_all([good, late, bad, gone], "How hot?", returns=Data)
        assert [each.value for each in found] == [Data("pump", 82), Data("pump", 82), None, None]
        assert [each.ref for each in found] == [good.id, late.id, bad.id, gone.id]
        assert [each.error is None for each in found] == [True, True, False, False]
        assert found[1].reply is not None
        assert found[1].reply.text == GOOD
        assert "two attempts" in str(found[2].error)


async def test_ask_all_in_time(tmp_path: Path) -> None:
    """The timeout includes the correction."""
    async with opened(tmp_path) as o:
        agent = await o.scripted("Hm.", {"text": GOOD, "sleep": 3600}, tools=[])
        found = await asyncio.wait_for(o.ask_all([agent], "How hot?", timeout=0.5, returns=Data), 20)
        assert found[0].value is None
        assert "0." in str(found[0].error)
        await agent.cancel()
