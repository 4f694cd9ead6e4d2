"""`orch hooks init`: a file of hooks to begin with, and the line of the configuration that names it."""

from __future__ import annotations

import os
import tomllib
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

from orch_protocol.errors import ConfigError

from .. import config, paths
from ..outfile import write_out
from . import render, words
from .failure import Failure
from .verb import Verb

__all__ = ["INIT"]

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
    file = Path(words.clean(arguments.file)).expanduser().absolute() if arguments.file else home / "house_hooks.py"
    if file.suffix != ".py":
        raise ConfigError(f"{file} is to end in .py")
    if file.exists():
        raise Failure("FileExistsError", f"{file} is there already, and is left as it is: name another FILE", 2)
    line = f"load = [{_quoted(str(file))}]"
    changed = _configured(paths.private_dir(home) / "config.toml", line, home)
    write_out(str(file), [TEMPLATE])
    if changed is not None:
        write_out(str(home / "config.toml"), [changed])
        told = f"{home / 'config.toml'} names it: agents that are spawned from now on have its hooks"
    else:
        told = f"{home / 'config.toml'} has hooks already: put {_quoted(str(file))} under load in [hooks] there"
    said: dict[str, Any] = {"file": str(file), "configured": changed is not None}
    words.say(arguments, said, render.safe(f"{file}\n{told}\norch hooks list shows them"))
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


INIT: Final = Verb(
    "Write a file of hooks to begin with, and let the configuration name it. What is there is never overwritten.",
    "orch hooks init",
    _arguments,
    _init,
)
