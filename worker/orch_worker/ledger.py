"""What models and tools were used for, day by day: one file of sums that all agents of a user add to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from orch_protocol.messages import Usage

__all__ = ["Day", "Ledger", "OfModel", "OfTool", "added", "day_of"]

KEPT_DAYS: Final = 400


class OfModel(Struct, frozen=True, omit_defaults=True):
    """What the requests to one model took. `usage.cost_usd` is a floor while a price was missing."""

    requests: int = 0
    usage: Usage = Usage()

    def __add__(self, other: OfModel) -> OfModel:
        return OfModel(self.requests + other.requests, self.usage + other.usage)


class OfTool(Struct, frozen=True, omit_defaults=True):
    """How often one tool ran, failed, and how many seconds that took."""

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0

    def __add__(self, other: OfTool) -> OfTool:
        return OfTool(self.calls + other.calls, self.errors + other.errors, self.seconds + other.seconds)


class Day(Struct, frozen=True):
    """The sums of one day: models as `provider:name`, tools by name."""

    models: dict[str, OfModel] = {}
    tools: dict[str, OfTool] = {}

    @property
    def cost_usd(self) -> float:
        """Return the dollars of all models."""
        return sum(each.usage.cost_usd for each in self.models.values())


def day_of(at: float) -> str:
    """Return the day of `at` (Unix time, seconds), by UTC, as in 2026-01-31."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def added(one: Day, other: Day) -> Day:
    """Return the sums of both."""
    models, tools = dict(one.models), dict(one.tools)
    for name, model in other.models.items():
        models[name] = models.get(name, OfModel()) + model
    for name, tool in other.tools.items():
        tools[name] = tools.get(name, OfTool()) + tool
    return Day(models, tools)


class Ledger:
    """The sums in the file at `path`, of the last 400 days with any."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def days(self) -> dict[str, Day]:
        """Return the sums by day, the last one first. Raises OSError, and ValueError when it cannot be read."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            found = msgspec.json.decode(data, type=dict[str, Day])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ValueError(f"{self._path} cannot be read ({error}): remove it, and counting begins anew") from error
        return dict(sorted(found.items(), reverse=True))

    def add(self, day: str, sums: Day) -> Day:
        """Add `sums` to those of `day`, and return that. Raises as `days` does."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            days = self.days()
            days[day] = added(days.get(day, Day()), sums)
            kept = dict(sorted(days.items(), reverse=True)[:KEPT_DAYS])
            beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(kept))
            os.replace(beside, self._path)
        return days[day]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._path.with_name(f"{self._path.name}.lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
