"""The daily usage of models and tools, in one file that all agents of a user update."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.core.messages import Usage

from ...system.atomic_json import file_lock, read, write

__all__ = ["DailyUsage", "ModelUsage", "ToolUsage", "UsageLog", "add_usage", "day_of"]

MAX_DAYS: Final = 400


class ModelUsage(Struct, frozen=True, omit_defaults=True):
    """Usage of one model. `usage.cost_usd` is a lower bound if the price of a request is unknown."""

    requests: int = 0
    usage: Usage = Usage()

    def __add__(self, other: ModelUsage) -> ModelUsage:
        return ModelUsage(self.requests + other.requests, self.usage + other.usage)


class ToolUsage(Struct, frozen=True, omit_defaults=True):
    """The number of calls and errors of one tool, and the total duration of its calls in seconds."""

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0

    def __add__(self, other: ToolUsage) -> ToolUsage:
        return ToolUsage(self.calls + other.calls, self.errors + other.errors, self.seconds + other.seconds)


class DailyUsage(Struct, frozen=True):
    """The usage on one day. Keys of `models` are `provider:name`. Keys of `tools` are names."""

    models: dict[str, ModelUsage] = {}
    tools: dict[str, ToolUsage] = {}

    @property
    def cost_usd(self) -> float:
        """Return the cost of all models, in dollars."""
        return sum(each.usage.cost_usd for each in self.models.values())


def day_of(at: float) -> str:
    """Return the UTC date of the Unix time `at` in the form 2026-01-31."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def add_usage(one: DailyUsage, other: DailyUsage) -> DailyUsage:
    """Return the sum of `one` and `other`."""
    models, tools = dict(one.models), dict(one.tools)
    for name, model in other.models.items():
        models[name] = models.get(name, ModelUsage()) + model
    for name, tool in other.tools.items():
        tools[name] = tools.get(name, ToolUsage()) + tool
    return DailyUsage(models, tools)


class UsageLog:
    """The usage file at `path`, which contains the last 400 days with usage."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def days(self) -> dict[str, DailyUsage]:
        """Return the usage of each day, latest day first. Raise ConfigError if the file cannot be read."""
        found = read(self._path, dict[str, DailyUsage], {}, "counting starts again")
        return dict(sorted(found.items(), reverse=True))

    def add(self, day: str, sums: DailyUsage) -> DailyUsage:
        """Add `sums` to the usage of `day`, and return the new total of that day.

        Raise ConfigError, StoreError or OSError if the file cannot be read or written.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(self._path.with_name(f"{self._path.name}.lock")):
            days = self.days()
            days[day] = add_usage(days.get(day, DailyUsage()), sums)
            write(self._path, dict(sorted(days.items(), reverse=True)[:MAX_DAYS]), durable=False)
        return days[day]
