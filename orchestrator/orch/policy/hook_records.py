"""Records of hooks in `$ORCH_HOME`.

The records contain which hooks are disabled, and the totals of each hook over all processes.
"""

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
from orch_worker.hooks.loader import BUILT_IN_SOURCE, REPAIR_HINT, DisabledHooks, builtin_rows, read_disabled_hooks
from orch_worker.system.atomic_json import change_json, file_lock, write

from ..config import paths

__all__ = [
    "AUDIT_LOG",
    "EVIDENCE",
    "HookLine",
    "add_hook_totals",
    "disabled_hooks_file",
    "hook_lines",
    "hooks_spec",
    "read_totals",
    "set_enabled",
    "sum_tallies",
]

MAX_RECORDED: Final = 200
EXPIRY_SECONDS: Final = 30 * 86_400
"""Time in seconds. If no running program reports a hook for this time, the totals of the hook are removed."""
EVIDENCE: Final = "evidence"
"""The folder in a home that contains measurements of hooks."""
MAX_ERROR_CHARS: Final = 500
MAX_METRICS: Final = 50


class HookTotals(Struct, frozen=True):
    """The totals of a hook.

    `at` is the time of the last report in epoch seconds. `runs` contains the names of the runs that reported the hook.
    """

    tally: HookTally
    at: float = 0.0
    runs: tuple[str, ...] = ()


class HookLine(Struct, frozen=True):
    """A hook as `orch hooks list` shows it.

    `mean_ms` is None before the first call. `running` is False if the hook is not configured and its program has ended.
    """

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
    running: bool = True


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
"""The session file as an entry in the list of hooks.

The session file records every event. The list shows it as a built-in hook that cannot be disabled.
"""


def hooks_spec(configured: HooksConfig) -> HooksSpec:
    """Return the configuration of hooks that agents get."""
    options = HookOptions(**{name: getattr(configured, name) for name in HookOptions.__struct_fields__})
    return HooksSpec(configured.load, options)


def disabled_hooks_file(home: Path) -> Path:
    """Return the file that contains the names of disabled hooks."""
    return home / "hooks.json"


def hook_lines(home: Path, configured: Iterable[HookRow], now: float | None = None) -> list[HookLine]:
    """Return the `configured` hooks in order, then the hooks of programs that have totals, then other built-in hooks.

    Raises ConfigError if the file of disabled hooks cannot be read.
    """
    disabled, recorded = (
        read_disabled_hooks(str(disabled_hooks_file(home))),
        _unexpired(home, time.time() if now is None else now),
    )
    rows = {row.name: row for row in configured}
    configured_names = frozenset(rows)
    reported = (each.tally.row for _, each in sorted(recorded.items()) if each.tally.row.source != BUILT_IN_SOURCE)
    for row in (*reported, *builtin_rows()):
        rows.setdefault(row.name, row)
    found = []
    for name, row in rows.items():
        loaded = name in configured_names or row.source != BUILT_IN_SOURCE
        totals = recorded.get(name, HookTotals(HookTally(row)))
        tally = totals.tally
        found.append(
            HookLine(
                name=name,
                stages=row.stages,
                priority=row.priority,
                kind=row.kind,
                enabled=loaded and name not in disabled,
                source=row.source,
                mean_ms=round(1000 * tally.seconds / tally.calls, 3) if tally.calls else None,
                errors=tally.errors,
                calls=tally.calls,
                on_error=row.on_error,
                timeout=row.seconds,
                last_error=tally.last_error,
                metrics=tally.metrics,
                running=name in configured_names or not loaded or bool(totals.runs),
            )
        )
    return found


def set_enabled(home: Path, name: str, *, enabled: bool) -> bool:
    """Enable or disable the hook `name` for every process of this user. Return whether the setting changed.

    Raises ConfigError for `audit_log`, which cannot be disabled.
    """
    if name == AUDIT_LOG.name and not enabled:
        raise ConfigError("audit_log writes the session files and is always on: read it with orch session audit")
    paths.private_dir(home)

    def changed(disabled: DisabledHooks) -> DisabledHooks:
        others = {each for each in disabled.disabled if each != name}
        return DisabledHooks(tuple(sorted(others if enabled else others | {name})))

    before = change_json(disabled_hooks_file(home), DisabledHooks, DisabledHooks(), REPAIR_HINT, changed)
    return (name in before.disabled) == enabled


def add_hook_totals(home: Path, tallies: Iterable[HookTally], run: str, now: float | None = None) -> None:
    """Add `tallies`, which the run `run` reports, to the totals of the hooks. Raises StoreError."""
    at = time.time() if now is None else now
    with file_lock(_lock(home)):
        kept = _unexpired(home, at)
        for each in tallies:
            before = kept.get(each.row.name, HookTotals(HookTally(each.row)))
            runs = tuple(dict.fromkeys((*before.runs, run)))
            kept[each.row.name] = HookTotals(sum_tallies(before.tally, each), at, runs)
        names = sorted(kept, key=lambda name: kept[name].at, reverse=True)[:MAX_RECORDED]
        write(_file(home), {name: kept[name] for name in sorted(names)}, durable=False)


def read_totals(home: Path) -> dict[str, HookTotals]:
    """Return the totals of hooks by name.

    Return {} if the file cannot be read, because the totals are not essential.
    """
    try:
        return msgspec.json.decode(_file(home).read_bytes(), type=dict[str, HookTotals])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def _unexpired(home: Path, now: float) -> dict[str, HookTotals]:
    """Return the totals that have not expired, without the names of ended runs."""
    totals, found = read_totals(home), {}
    running = {run for run in {run for each in totals.values() for run in each.runs} if _is_running(home, run)}
    for name, each in totals.items():
        runs = tuple(run for run in each.runs if run in running)
        if runs or now - each.at < EXPIRY_SECONDS:
            found[name] = replace(each, runs=runs)
    return found


def _is_running(home: Path, run: str) -> bool:
    return paths.is_in_use(paths.run_dir(home, run))


def sum_tallies(old: HookTally | None, tally: HookTally) -> HookTally:
    last = tally.last_error[:MAX_ERROR_CHARS]
    if old is None:
        return replace(tally, last_error=last)
    return HookTally(
        tally.row,
        calls=old.calls + tally.calls,
        seconds=old.seconds + tally.seconds,
        errors=old.errors + tally.errors,
        late=old.late + tally.late,
        last_error=last or old.last_error,
        metrics=_add_metrics(old.metrics, tally.metrics),
    )


def _add_metrics(old: dict[str, float], more: dict[str, float]) -> dict[str, float]:
    """Return the sums of both, limited to MAX_METRICS metrics."""
    sums = old | {name: old.get(name, 0.0) + value for name, value in more.items()}
    return dict(list(sums.items())[:MAX_METRICS])


def _file(home: Path) -> Path:
    return home / "hook-stats.json"


def _lock(home: Path) -> Path:
    """Return the path of the lock file. Only one process at a time may change the records."""
    return paths.private_dir(home) / "hooks.lock"
