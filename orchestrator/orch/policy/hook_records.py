"""What is kept of hooks in `$ORCH_HOME`: which are switched off, and what each one did so far, in whatever process."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.config import HooksConfig
from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.options import HookOptions
from orch_protocol.hooks.stages import STAGES, HookRow, HooksSpec, HookTally
from orch_worker.hooks.loader import DisabledHooks, read_switches
from orch_worker.system.atomic_json import file_lock, write

from ..config import paths

__all__ = [
    "AUDIT_LOG",
    "EVIDENCE",
    "HookLine",
    "add_hook_totals",
    "hook_lines",
    "hooks_spec",
    "read_totals",
    "set_enabled",
    "sum_tallies",
    "switches_file",
]

MAX_RECORDED: Final = 200
EVIDENCE: Final = "evidence"
"""The folder in a home of what hooks have measured."""
MAX_ERROR_CHARS: Final = 500
MAX_METRICS: Final = 50


class HookTotals(Struct, frozen=True):
    """What a hook did so far, and when it was last heard of (Unix time, seconds)."""

    tally: HookTally
    at: float = 0.0


class HookLine(Struct, frozen=True):
    """One hook as `orch hooks list` shows it. `mean_ms` is None before it was called."""

    name: str
    stages: tuple[str, ...]
    priority: int
    kind: str
    enabled: bool
    source: str
    mean_ms: float | None
    errors: int
    calls: int = 0
    on_error: str = "open"
    timeout: float = 0.0
    last_error: str = ""
    metrics: dict[str, float] = {}


AUDIT_LOG: Final = HookLine(
    name="audit_log",
    stages=tuple(STAGES),
    priority=150,
    kind="observe",
    enabled=True,
    source="built-in, always on",
    mean_ms=None,
    errors=0,
)
"""What a session's own file is: all of it is there, whoever reads it. It stands in lists, and is never off."""


def hooks_spec(configured: HooksConfig) -> HooksSpec:
    """Return what agents are told of the hooks that are configured."""
    options = HookOptions(**{name: getattr(configured, name) for name in HookOptions.__struct_fields__})
    return HooksSpec(configured.load, options)


def switches_file(home: Path) -> Path:
    """Return the file that names the hooks that are switched off."""
    return home / "hooks.json"


def hook_lines(home: Path, configured: Iterable[HookRow]) -> list[HookLine]:
    """Return the hooks that are `configured`, in order, then those that were heard of elsewhere.

    Raises ConfigError when what is switched off cannot be read.
    """
    off, kept = read_switches(str(switches_file(home))), read_totals(home)
    rows = {row.name: row for row in configured}
    rows |= {name: each.tally.row for name, each in sorted(kept.items()) if name not in rows}
    found = []
    for name, row in rows.items():
        tally = kept[name].tally if name in kept else HookTally(row)
        mean = round(1000 * tally.seconds / tally.calls, 3) if tally.calls else None
        found.append(
            HookLine(
                name=name,
                stages=row.stages,
                priority=row.priority,
                kind=row.kind,
                enabled=name not in off,
                source=row.source,
                mean_ms=mean,
                errors=tally.errors,
                calls=tally.calls,
                on_error=row.on_error,
                timeout=row.seconds,
                last_error=tally.last_error,
                metrics=tally.metrics,
            )
        )
    return found


def set_enabled(home: Path, name: str, *, enabled: bool) -> bool:
    """Switch the hook `name` on or off for every process of this user; return whether that changed anything.

    Raises ConfigError for the one that cannot be off.
    """
    if name == AUDIT_LOG.name and not enabled:
        raise ConfigError("audit_log is what session files are, and is always on: read it with orch session audit")
    with file_lock(_lock(home)):
        off = set(read_switches(str(switches_file(home))))
        before = set(off)
        off = off - {name} if enabled else off | {name}
        if off != before:
            write(switches_file(home), DisabledHooks(tuple(sorted(off))))
        return off != before


def add_hook_totals(home: Path, ran: Iterable[HookTally], now: float | None = None) -> None:
    """Add what hooks did to what they did before. Raises StoreError."""
    at = time.time() if now is None else now
    with file_lock(_lock(home)):
        kept = read_totals(home)
        for each in ran:
            before = kept.get(each.row.name)
            kept[each.row.name] = HookTotals(sum_tallies(before.tally if before else None, each), at)
        names = sorted(kept, key=lambda name: kept[name].at, reverse=True)[:MAX_RECORDED]
        write(_file(home), {name: kept[name] for name in sorted(names)}, durable=False)


def read_totals(home: Path) -> dict[str, HookTotals]:
    """Return what hooks did so far, by name. What cannot be read counts as nothing: these are figures, which grow."""
    try:
        return msgspec.json.decode(_file(home).read_bytes(), type=dict[str, HookTotals])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def sum_tallies(old: HookTally | None, ran: HookTally) -> HookTally:
    """Return what a hook did in all."""
    last = ran.last_error[:MAX_ERROR_CHARS]
    if old is None:
        return replace(ran, last_error=last)
    return HookTally(
        ran.row,
        calls=old.calls + ran.calls,
        seconds=old.seconds + ran.seconds,
        errors=old.errors + ran.errors,
        late=old.late + ran.late,
        last_error=last or old.last_error,
        metrics=_add_metrics(old.metrics, ran.metrics),
    )


def _add_metrics(old: dict[str, float], more: dict[str, float]) -> dict[str, float]:
    """Return the figures of both, at most MAX_METRICS of them: the first ones."""
    sums = old | {name: old.get(name, 0.0) + value for name, value in more.items()}
    return dict(list(sums.items())[:MAX_METRICS])


def _file(home: Path) -> Path:
    return home / "hook-stats.json"


def _lock(home: Path) -> Path:
    """Return the file whose lock lets one process at a time change what is kept."""
    return paths.private_dir(home) / "hooks.lock"
