"""Warns agents when all agents of a user together have cost more than `warn_usd` on a day.

Each agent gets one warning per turn. The hook stops nothing. Use a budget to stop agents. `orch costs` shows the costs
of each day.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from orch_protocol.hooks.events import Event, ProviderResponse
from orch_protocol.hooks.options import HookOptions

from ...system.atomic_json import file_lock, read, write
from ..hook import Hook, make_hook

__all__ = ["FILE", "add_spending", "make"]

NAME: Final = "cost_tracker"
FILE: Final = "spending.json"
"""The cost of the current day, in dollars. The agents of a user cannot read each other's sessions."""
WARNING: Final = (
    "All agents together have cost ${spent:.2f} today, more than the limit of ${limit:.2f}. Finish now: state what you "
    "have and what is left to do."
)


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, configured by `options`."""
    limit, file = options.cost_tracker.warn_usd, Path(options.evidence) / FILE

    def warn(event: Event, ctx: Any) -> None:
        if limit is None or not isinstance(event, ProviderResponse):
            return
        spent = add_spending(file, day_of(event.at), event.usage.cost_usd)
        if spent >= limit and not ctx.turn_state.get(NAME):
            ctx.turn_state[NAME] = True
            ctx.steer(WARNING.format(spent=spent, limit=limit))

    return (make_hook(warn, "after_provider_response", name=NAME, priority=200, kind="observe"),)


def day_of(at: float) -> str:
    """Return the UTC date of the Unix time `at` in the form 2026-01-31."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def add_spending(file: Path, day: str, usd: float) -> float:
    """Add `usd` to the cost of `day` in `file`, and return the new cost. The cost of another day is dropped.

    Raise ConfigError, StoreError or OSError if the file cannot be read or written.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file_lock(file.with_name(f"{file.name}.lock")):
        spent = read(file, dict[str, float], {}, "counting starts again").get(day, 0.0) + usd
        write(file, {day: spent}, durable=False)
    return spent
