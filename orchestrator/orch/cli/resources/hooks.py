"""The command `orch hooks` lists, enables and disables hooks, and writes a file of example hooks."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.core.errors import ConfigError, OrchError
from orch_protocol.hooks.stages import HookRow
from orch_worker.hooks.loader import BUILTIN, configured_hooks, read_disabled_hooks
from orch_worker.system.project_code import use_trusted_code

from ...client.connection import replace_invalid_utf8
from ...client.failure import CommandError
from ...config import config, paths
from ...config.output_file import write_output_file
from ...config.user_config import add_to_list
from ...policy.hook_records import AUDIT_LOG, HookLine, disabled_hooks_file, hook_lines, hooks_spec, set_enabled
from ...render import terminal
from ...render.resources.hooks import table
from .. import command
from ..command import CliCommand, CommandGroup

__all__ = ["INIT", "VERBS"]


# --- `orch hooks init` ---

TEMPLATE: Final = '''\
"""Hooks: functions that orch calls when something happens in an agent. The hooks in this file run in every agent.

`orch hooks list` shows hooks with their statistics. `orch hooks disable NAME` disables a hook. orch calls a hook
with the event and a context. The hook returns nothing, event.patch(...) to change something, or a decision.
"""

from orch import Block, hook


# This hook decides. A blocked call does not run, and its result is the reason. If the hook fails, the call is blocked.
@hook("tool_call")
def no_force_push(event, ctx) -> Block:
    if event.name == "bash" and "push --force" in event.input.get("command", ""):
        return Block("pushing with --force is not allowed here: open a pull request")


# This hook changes results. The model sees only the changed result. Hooks with a lower priority run first (default 50).
@hook("tool_result", priority=10, kind="transform")
def shorten(event, ctx):
    if event.name == "bash" and len(event.text) > 50_000:
        return event.patch(text=event.text[:25_000] + "\\n[...]\\n" + event.text[-25_000:])


# This hook observes, and the agent does not wait for it. ctx.log writes to the log of the agent's process. ctx.state
# belongs to this hook and lasts as long as the process. ctx.turn_state lasts until the turn ends.
@hook("turn_end")
def count(event, ctx):
    ctx.state["turns"] = ctx.state.get("turns", 0) + 1
    ctx.log(f"turn {ctx.state['turns']}: {event.tool_calls} calls, {event.usage.output_tokens} tokens")
'''


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help="file to write (default: $ORCH_HOME/house_hooks.py)")


def _init(arguments: Namespace) -> int:
    home = paths.home(os.environ)
    file = (
        Path(replace_invalid_utf8(arguments.file)).expanduser().absolute()
        if arguments.file
        else home / "house_hooks.py"
    )
    if file.suffix != ".py":
        raise ConfigError(f"file name {file} must end in .py")
    if file.exists():
        raise CommandError("FileExistsError", f"{file} already exists and was not changed; pass another FILE", 2)
    write_output_file(str(file), [TEMPLATE])
    try:
        add_to_list(home, "hooks", "load", str(file))
    except (OrchError, OSError):
        file.unlink()
        raise
    text = f"{file}\n{home / 'config.toml'} loads it for agents spawned from now on\norch hooks list shows its hooks"
    command.print_result(arguments, {"file": str(file), "configured": True}, terminal.safe(text))
    return 0


INIT: Final = CliCommand(
    "Write a file with example hooks and add it to the configuration. Existing files are never overwritten.",
    "orch hooks init",
    _arguments,
    _init,
)


NOT_FOUND: Final = 3
NEXT_TURN: Final = "from the next turn of each agent"
NEW_AGENTS: Final = "for agents spawned from now on"


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", default=".", help="project folder (default: current folder)"
    )


def _list(arguments: Namespace) -> int:
    found = _all_hooks(Path(arguments.folder).absolute())
    for each in found:
        if each.last_error:
            print(f"orch: {each.name}, the last error: {terminal.truncate_line(each.last_error)}", file=sys.stderr)
    command.print_result(arguments, msgspec.to_builtins(found), table(found))
    return 0


def _all_hooks(folder: Path) -> list[HookLine]:
    """Return the hooks configured for `folder` and the hooks with statistics. Reports hooks that cannot be imported."""
    loaded = command.load_config(folder)
    rows: list[HookRow] = []
    options = hooks_spec(loaded.config.hooks).options
    if loaded.code is not None:
        use_trusted_code(loaded.code)
    for name in loaded.config.hooks.load:
        try:
            rows += (hook.row for hook in configured_hooks([name], options))
        except ConfigError as error:
            print(f"orch: {error}", file=sys.stderr)
    return [*hook_lines(paths.home(os.environ), rows), AUDIT_LOG]


def _name_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the hook, as in `orch hooks list`")


def _disable(arguments: Namespace) -> int:
    name = _require_known(arguments, (line.name for line in _all_hooks(Path.cwd())))
    changed = set_enabled(paths.home(os.environ), name, enabled=False)
    command.print_switched(arguments, name, NEXT_TURN, on=False, changed=changed)
    return 0


def _enable(arguments: Namespace) -> int:
    home = paths.home(os.environ)
    disabled = read_disabled_hooks(str(disabled_hooks_file(home)))
    name = _require_known(arguments, (*disabled, *(line.name for line in _all_hooks(Path.cwd()))))
    loaded = config.load(Path.cwd(), os.environ).config.hooks
    builtin = name.partition(".")[0]
    missing = builtin in BUILTIN and builtin not in loaded.load
    if missing:
        configured_hooks([builtin], hooks_spec(loaded).options)  # raises ConfigError if a setting is missing
    changed = set_enabled(home, name, enabled=True)
    if missing:
        changed |= add_to_list(home, "hooks", "load", builtin)
        _report_override(builtin)
    command.print_switched(arguments, name, NEW_AGENTS if missing else NEXT_TURN, on=True, changed=changed)
    return 0


def _require_known(arguments: Namespace, known: Iterable[str]) -> str:
    """Return the hook in the arguments. Raises CommandError if the hook is not in `known`."""
    name: str = replace_invalid_utf8(arguments.name)
    names = tuple(dict.fromkeys(known))
    if name not in names:
        raise CommandError("HookNotFoundError", f"no hook named {name!r}; known: {', '.join(names)}", NOT_FOUND)
    return name


def _report_override(builtin: str) -> None:
    """Print a note if `hooks.load` in this folder comes from another file than the user's configuration."""
    loaded = config.load(Path.cwd(), os.environ)
    if builtin not in loaded.config.hooks.load:
        source = loaded.sources["hooks.load"]
        print(
            f"orch: {builtin} stays off in this folder, because {source} sets hooks.load: add it there", file=sys.stderr
        )


VERBS = {
    "hooks": CommandGroup(
        "Hooks: functions that observe, change or block the actions of agents.",
        "orch hooks list",
        {
            "list": (
                "list hooks: built-in, configured, of programs",
                CliCommand(
                    "List built-in hooks, configured hooks and hooks that programs registered, with their statistics.",
                    "orch hooks list --json",
                    _list_arguments,
                    _list,
                ),
            ),
            "init": ("write a file with example hooks", INIT),
            "disable": (
                "disable a hook for all agents",
                CliCommand(
                    "Disable a hook for all agents of this user, from their next turn.",
                    "orch hooks disable house.redact",
                    _name_arguments,
                    _disable,
                ),
            ),
            "enable": (
                "enable a hook; write a built-in one to config.toml",
                CliCommand(
                    "Enable a disabled hook, or add a built-in hook to the configuration of this user.",
                    "orch hooks enable content_safety",
                    _name_arguments,
                    _enable,
                ),
            ),
        },
    )
}
