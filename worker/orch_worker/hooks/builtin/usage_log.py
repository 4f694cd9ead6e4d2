"""What models and tools were used for, day by day: one file of sums that all agents of a user add to."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.core.messages import Usage

from ...system.atomic_json import file_lock, read, write

__all__ = ["DailyUsage", "ModelUsage", "ToolUsage", "UsageLog", "add_usage", "day_of"]

KEPT_DAYS: Final = 400


class ModelUsage(Struct, frozen=True, omit_defaults=True):
    """What the requests to one model took. `usage.cost_usd` is a floor while a price was missing."""

    requests: int = 0
    usage: Usage = Usage()

    def __add__(self, other: ModelUsage) -> ModelUsage:
        return ModelUsage(self.requests + other.requests, self.usage + other.usage)


class ToolUsage(Struct, frozen=True, omit_defaults=True):
    """How often one tool ran, failed, and how many seconds that took."""

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0

    def __add__(self, other: ToolUsage) -> ToolUsage:
        return ToolUsage(self.calls + other.calls, self.errors + other.errors, self.seconds + other.seconds)


class DailyUsage(Struct, frozen=True):
    """The sums of one day: models as `provider:name`, tools by name."""

    models: dict[str, ModelUsage] = {}
    tools: dict[str, ToolUsage] = {}

    @property
    def cost_usd(self) -> float:
        """Return the dollars of all models."""
        return sum(each.usage.cost_usd for each in self.models.values())


def day_of(at: float) -> str:
    """Return the day of `at` (Unix time, seconds), by UTC, as in 2026-01-31."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def add_usage(one: DailyUsage, other: DailyUsage) -> DailyUsage:
    """Return the sums of both."""
    models, tools = dict(one.models), dict(one.tools)
    for name, model in other.models.items():
        models[name] = models.get(name, ModelUsage()) + model
    for name, tool in other.tools.items():
        tools[name] = tools.get(name, ToolUsage()) + tool
    return DailyUsage(models, tools)


class UsageLog:
    """The sums in the file at `path`, of the last 400 days with any."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def days(self) -> dict[str, DailyUsage]:
        """Return the sums by day, the last one first. Raises ConfigError when they cannot be read."""
        found = read(self._path, dict[str, DailyUsage], {}, "counting begins anew")
        return dict(sorted(found.items(), reverse=True))

    def add(self, day: str, sums: DailyUsage) -> DailyUsage:
        """Add `sums` to those of `day`, and return that. Raises ConfigError, StoreError, OSError."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(self._path.with_name(f"{self._path.name}.lock")):
            days = self.days()
            days[day] = add_usage(days.get(day, DailyUsage()), sums)
            write(self._path, dict(sorted(days.items(), reverse=True)[:KEPT_DAYS]), durable=False)
        return days[day]
