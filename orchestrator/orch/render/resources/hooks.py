"""Table of hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...policy.hook_records import HookLine
from .. import terminal
from ..columns import format_columns

__all__ = ["table"]

HEAD: Final = ["HOOK", "STAGES", "KIND", "PRIORITY", "STATE", "CALLS", "MEAN", "ERRORS", "SOURCE"]
RIGHT: Final = frozenset({3, 5, 6, 7})
MAX_STAGES: Final = 3


def table(found: Sequence[HookLine]) -> str:
    """Return hooks as a table, one per line."""
    return format_columns([HEAD, *map(_cells, found)], RIGHT, paths={8})


def _cells(line: HookLine) -> list[str]:
    shown = ", ".join(line.stages[:MAX_STAGES])
    if len(line.stages) > MAX_STAGES:
        shown += f" and {len(line.stages) - MAX_STAGES} more"
    mean = "" if line.mean_ms is None else f"{line.mean_ms:.2f} ms"
    state = "off" if not line.enabled else "on" if line.running else "not running"
    counts = [str(line.priority), state, str(line.calls), mean, str(line.errors)]
    return [terminal.safe(line.name), shown, line.kind, *counts, terminal.safe(line.source)]
