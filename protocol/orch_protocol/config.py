"""Configuration as data: names, types, defaults. Reading files and variables is `orch.config`'s work."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from .spec import BackendSpec, Durability

__all__ = ["Config", "DaemonConfig", "LimitsConfig", "SubagentsConfig"]

Positive = Annotated[float, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Count = Annotated[int, Meta(ge=1)]


class SubagentsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What spawning may do. Enforced by the root, for its own callers and for every worker's."""

    enabled: bool = True
    max_concurrent: Count = 16
    depth_cap: Annotated[int, Meta(ge=0)] = 3
    allow_nested: bool = False
    timeout_minutes: Positive = 30.0
    """Idle time after which an agent goes cold: its process ends, its transcript answers the next query."""
    default_preset: str = "investigate"
    default_tools: tuple[str, ...] | None = None
    """Tools of an agent spawned with neither preset nor tools; None means `default_preset`'s."""


class LimitsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of a turn, for agents spawned without their own."""

    max_turns: Count = 25
    turn_seconds: Seconds = 3600.0
    tool_seconds: Seconds = 120.0
    reply_tokens: Count = 4000


class DaemonConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The per-user process behind the CLI."""

    idle_minutes: Positive = 15.0


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set. `model` is `provider:model`, or None: the offline extractive backend."""

    model: str | None = None
    durability: Durability = "process"
    subagents: SubagentsConfig = field(default_factory=SubagentsConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    daemon: DaemonConfig = field(default_factory=DaemonConfig)


def parse_model(model: str | None) -> BackendSpec:
    """Return the backend that `provider:model` names; None is the extractive one."""
    if model is None:
        return BackendSpec("extractive")
    provider, _, name = model.partition(":")
    return BackendSpec(provider, name)
