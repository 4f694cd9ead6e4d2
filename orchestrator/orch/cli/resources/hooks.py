"""`orch hooks`: which hooks there are, what they did so far, and switching them off and on for good."""

from __future__ import annotations

import os
import sys
import tomllib
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.stages import HookRow
from orch_worker.hooks.loader import configured_hooks, read_switches

from ...client.connection import replace_invalid_utf8
from ...client.failure import CommandError
from ...config import config, paths
from ...config.output_file import write_out
from ...policy.hook_records import AUDIT_LOG, HookLine, hook_lines, hooks_spec, set_enabled, switches_file
from ...render import terminal
from ...render.resources.hooks import table
from .. import command
from ..command import CliCommand, CommandGroup

__all__ = ["INIT", "VERBS"]


# --- `orch hooks init` ---

TEMPLATE: Final = '''\
"""Hooks: functions that are called when something happens in an agent. All of this file's run in every agent.

`orch hooks list` shows them with what they did, `orch hooks disable NAME` switches one off for good. A hook is called
with the event and a context; it returns nothing, event.patch(...) to change something, or a decision.
"""

from orch import Block, hook


# Decides: a call that it blocks does not run, and its reason is the result. When it fails, the call is blocked too.
@hook("tool_call")
def no_force_push(event, ctx) -> Block:
    if event.name == "bash" and "push --force" in event.input.get("command", ""):
        return Block("nobody pushes with --force here: ask for a pull request")


# Changes: only what it returns is kept and shown to the model. A lower priority is called first (50 unless said).
@hook("tool_result", priority=10, kind="transform")
def shorten(event, ctx):
    if event.name == "bash" and len(event.text) > 50_000:
        return event.patch(text=event.text[:25_000] + "\\n[...]\\n" + event.text[-25_000:])


# Observes: nobody waits for it. The log is that of the agent's process; ctx.state is this hook's own for as long as the
# process lives, ctx.turn_state until the turn ends.
@hook("turn_end")
def count(event, ctx):
    ctx.state["turns"] = ctx.state.get("turns", 0) + 1
    ctx.log(f"turn {ctx.state['turns']}: {event.tool_calls} calls, {event.usage.output_tokens} tokens")
'''


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help="where to ($ORCH_HOME/house_hooks.py)")


def _init(arguments: Namespace) -> int:
    home = paths.home(os.environ)
    file = (
        Path(replace_invalid_utf8(arguments.file)).expanduser().absolute()
        if arguments.file
        else home / "house_hooks.py"
    )
    if file.suffix != ".py":
        raise ConfigError(f"{file} is to end in .py")
    if file.exists():
        raise CommandError("FileExistsError", f"{file} is there already, and is left as it is: name another FILE", 2)
    line = f"load = [{_quoted(str(file))}]"
    changed = _configured(paths.private_dir(home) / "config.toml", line, home)
    write_out(str(file), [TEMPLATE])
    if changed is not None:
        write_out(str(home / "config.toml"), [changed])
        told = f"{home / 'config.toml'} names it: agents that are spawned from now on have its hooks"
    else:
        told = f"{home / 'config.toml'} has hooks already: put {_quoted(str(file))} under load in [hooks] there"
    said: dict[str, Any] = {"file": str(file), "configured": changed is not None}
    command.print_result(arguments, said, terminal.safe(f"{file}\n{told}\norch hooks list shows them"))
    return 0


def _configured(path: Path, line: str, home: Path) -> str | None:
    """Return the configuration at `path` with `line` under [hooks]; None when it has such a table already.

    Raises ConfigError when it cannot be read, or is no configuration.
    """
    try:
        text = path.read_text() if path.exists() else ""
        tables = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): mend it first") from error
    if "hooks" in tables:
        return None
    changed = f"{text.rstrip()}\n\n" if text.strip() else ""
    changed += f"[hooks]\n{line}\n"
    config.check(path, changed.encode(), home)
    return changed


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


INIT: Final = CliCommand(
    "Write a file of hooks to begin with, and let the configuration name it. What is there is never overwritten.",
    "orch hooks init",
    _arguments,
    _init,
)


NOT_FOUND: Final = 3


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="a project's folder (this one)")


def _list(arguments: Namespace) -> int:
    found = _known(Path(arguments.folder).absolute())
    for each in found:
        if each.last_error:
            print(f"orch: {each.name}, the last error: {terminal.truncate_line(each.last_error)}", file=sys.stderr)
    command.print_result(arguments, msgspec.to_builtins(found), table(found))
    return 0


def _known(folder: Path) -> list[HookLine]:
    """Return the hooks that are configured for `folder`, and those heard of. Says which cannot be imported."""
    loaded = config.load(folder, os.environ)
    for note in loaded.notes:
        print(f"orch: {note}", file=sys.stderr)
    rows: list[HookRow] = []
    options = hooks_spec(loaded.config.hooks).options
    for name in loaded.config.hooks.load:
        try:
            rows += (hook.row for hook in configured_hooks([name], options))
        except ConfigError as error:
            print(f"orch: {error}", file=sys.stderr)
    return [*hook_lines(paths.home(os.environ), rows), AUDIT_LOG]


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
    name = replace_invalid_utf8(arguments.name)
    if name not in known:
        there = ", ".join(dict.fromkeys(known)) or "none"
        raise CommandError("HookNotFoundError", f"there is no hook {name!r}; there are: {there}", NOT_FOUND)
    changed = set_enabled(paths.home(os.environ), name, enabled=enabled)
    command.print_switched(arguments, name, "from each agent's next turn on", on=enabled, changed=changed)
    return 0


VERBS = {
    "hooks": CommandGroup(
        "Hooks: functions that watch, change and stop what agents do.",
        "orch hooks list",
        {
            "list": (
                "the hooks that are configured here, and those of programs",
                CliCommand(
                    "List the hooks that are configured here, and those that programs registered, with what they did.",
                    "orch hooks list --json",
                    _list_arguments,
                    _list,
                ),
            ),
            "init": ("write a file of hooks to begin with", INIT),
            "disable": (
                "switch one off, for every process and for good",
                CliCommand(
                    "Switch a hook off for all agents of this user, from their next turn on, until it is enabled.",
                    "orch hooks disable house.redact",
                    _name_arguments,
                    _disable,
                ),
            ),
            "enable": (
                "switch it on again",
                CliCommand(
                    "Switch a hook on again, from each agent's next turn on.",
                    "orch hooks enable house.redact",
                    _name_arguments,
                    _enable,
                ),
            ),
        },
    )
}
