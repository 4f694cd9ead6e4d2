"""Hooks as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...policy.hook_records import HookLine
from .. import terminal

__all__ = ["table"]

HEAD: Final = ["HOOK", "STAGES", "KIND", "PRIORITY", "ON", "CALLS", "MEAN", "ERRORS", "SOURCE"]
RIGHT: Final = frozenset({3, 5, 6, 7})
MOST_STAGES: Final = 3


def table(found: Sequence[HookLine]) -> str:
    """Return hooks as a table, one a line."""
    return terminal.format_columns([HEAD, *map(_cells, found)], RIGHT)


def _cells(line: HookLine) -> list[str]:
    shown = ", ".join(line.stages[:MOST_STAGES])
    if len(line.stages) > MOST_STAGES:
        shown += f" and {len(line.stages) - MOST_STAGES} more"
    mean = "" if line.mean_ms is None else f"{line.mean_ms:.2f} ms"
    state = "yes" if line.enabled else "no"
    counts = [str(line.priority), state, str(line.calls), mean, str(line.errors)]
    return [terminal.safe(line.name), shown, line.kind, *counts, terminal.safe(line.source)]
