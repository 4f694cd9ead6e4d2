"""The service that passes a value from one agent to another, or to a program."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...core.values import ValueInfo
from ..service import AgentFields, Reach, Service, agents_with

__all__ = ["TAKE_VALUE", "TakeValue", "TakenValue"]


class TakeValue(Struct, frozen=True, forbid_unknown_fields=True):
    """Get the value `name` (a Python variable or a handle) of the agent `ref`."""

    ref: str
    name: str


class TakenValue(Struct, frozen=True):
    """A value of the agent `id`. The file at `path` belongs to the agent. Copy the file to keep it."""

    id: str
    name: str
    path: str
    value: ValueInfo


TAKE_VALUE: Final = Service(
    "take_value",
    TakeValue,
    TakenValue,
    agents_with("query_subagent", "collect_subagent"),
    "Take a named value of an agent.",
    AgentFields(free=("name",), refs={"ref": Reach("take values of", "control")}),
)
