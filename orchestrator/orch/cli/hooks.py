"""`orch hooks`: which hooks there are, what they did so far, and switching them off and on for good."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.errors import ConfigError
from orch_protocol.hooks import HookRow
from orch_worker.declared import declared, read_switches

from .. import config, paths
from ..hook_records import AUDIT_LOG, HookLine, hooks_spec, lines, switch, switches_file
from . import render, words
from .failure import Failure
from .hooks_init import INIT
from .verb import Group, Verb

__all__ = ["VERBS", "table"]

HEAD: Final = ["HOOK", "STAGES", "KIND", "PRIORITY", "ON", "CALLS", "MEAN", "ERRORS", "SOURCE"]
RIGHT: Final = frozenset({3, 5, 6, 7})
MOST_STAGES: Final = 3
NOT_FOUND: Final = 3


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="a project's folder (this one)")


def _list(arguments: Namespace) -> int:
    found = _known(Path(arguments.folder).absolute())
    for each in found:
        if each.last_error:
            print(f"orch: {each.name}, the last error: {render.line(each.last_error)}", file=sys.stderr)
    words.say(arguments, msgspec.to_builtins(found), table(found))
    return 0


def table(found: Sequence[HookLine]) -> str:
    """Return hooks as a table, one a line."""
    return render.columns([HEAD, *map(_cells, found)], RIGHT)


def _known(folder: Path) -> list[HookLine]:
    """Return the hooks that are configured for `folder`, and those heard of. Says which cannot be imported."""
    loaded = config.load(folder, os.environ)
    for note in loaded.notes:
        print(f"orch: {note}", file=sys.stderr)
    rows: list[HookRow] = []
    options = hooks_spec(loaded.config.hooks).options
    for name in loaded.config.hooks.load:
        try:
            rows += (hook.row for hook in declared([name], options))
        except ConfigError as error:
            print(f"orch: {error}", file=sys.stderr)
    return [*lines(paths.home(os.environ), rows), AUDIT_LOG]


def _cells(line: HookLine) -> list[str]:
    shown = ", ".join(line.stages[:MOST_STAGES])
    if len(line.stages) > MOST_STAGES:
        shown += f" and {len(line.stages) - MOST_STAGES} more"
    mean = "" if line.mean_ms is None else f"{line.mean_ms:.2f} ms"
    state = "yes" if line.enabled else "no"
    counts = [str(line.priority), state, str(line.calls), mean, str(line.errors)]
    return [render.safe(line.name), shown, line.kind, *counts, render.safe(line.source)]


def _name_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the hook, as orch hooks list names it")


def _disable(arguments: Namespace) -> int:
    names = [line.name for line in _known(Path.cwd())]
    return _switch(arguments, names, enabled=False)


def _enable(arguments: Namespace) -> int:
    off = read_switches(str(switches_file(paths.home(os.environ))))
    names = [*off, *(line.name for line in _known(Path.cwd()))]
    return _switch(arguments, names, enabled=True)


def _switch(arguments: Namespace, known: Sequence[str], *, enabled: bool) -> int:
    name = words.clean(arguments.name)
    if name not in known:
        there = ", ".join(dict.fromkeys(known)) or "none"
        raise Failure("HookNotFoundError", f"there is no hook {name!r}; there are: {there}", NOT_FOUND)
    changed = switch(paths.home(os.environ), name, enabled=enabled)
    words.say_switched(arguments, name, "from each agent's next turn on", on=enabled, changed=changed)
    return 0


VERBS = {
    "hooks": Group(
        "Hooks: functions that watch, change and stop what agents do.",
        "orch hooks list",
        {
            "list": (
                "the hooks that are configured here, and those of programs",
                Verb(
                    "List the hooks that are configured here, and those that programs registered, with what they did.",
                    "orch hooks list --json",
                    _list_arguments,
                    _list,
                ),
            ),
            "init": ("write a file of hooks to begin with", INIT),
            "disable": (
                "switch one off, for every process and for good",
                Verb(
                    "Switch a hook off for all agents of this user, from their next turn on, until it is enabled.",
                    "orch hooks disable house.redact",
                    _name_arguments,
                    _disable,
                ),
            ),
            "enable": (
                "switch it on again",
                Verb(
                    "Switch a hook on again, from each agent's next turn on.",
                    "orch hooks enable house.redact",
                    _name_arguments,
                    _enable,
                ),
            ),
        },
    )
}
