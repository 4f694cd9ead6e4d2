"""The verb that makes agents, and what others that make some take from it."""

from __future__ import annotations

import json
import os
import sys

from ...client.connection import Connection
from ...client.failure import CommandError
from .. import command
from ..command import CliCommand
from .approval_prompt import Approval, approval_of, approve_argument
from .query import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["SPAWNED", "VERBS", "agent_arguments", "agent_option_params", "agent_options", "agent_params", "spawn"]

SPAWNED = ("id", "seq", "name", "preset", "depth", "pid")
CONTEXTS = ("none", "brief", "full")
THINKING = ("off", "minimal", "low", "medium", "high", "xhigh", "max")
"""Those of `orch_protocol.agent.models`, whose import a thin command does without."""
LEVELS = ("L0", "L1", "L2", "L3")
TOOLS_SEE = ("PATH", "HOME", "LANG", "LANGUAGE", "TERM", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "VIRTUAL_ENV")
"""What an agent's tools see of the caller's environment, besides LC_*."""


def agent_arguments(parser: ArgumentParser) -> None:
    """Let the command take what a new agent is to be, and to be for."""
    parser.add_argument("task", metavar="TASK", help="what the agent is for, in a sentence; - reads it from stdin")
    agent_options(parser)


def agent_options(parser: ArgumentParser) -> None:
    """Let the command take what kind of agent a new one is to be."""
    parser.add_argument("--preset", help="the set of tools it gets, such as minimal or investigate")
    parser.add_argument("--tools", metavar="A,B", help="the tools it gets, instead of a preset")
    parser.add_argument("--context", choices=CONTEXTS, help="how much it is told of the project in its folder")
    parser.add_argument("--model", metavar="PROVIDER:MODEL", help="the model that answers; local: one of this machine")
    parser.add_argument("--thinking", choices=THINKING, help="how much it is to think, or the next level that it has")
    parser.add_argument("--prompt-template", metavar="NAME", help="the template that says who it is: a name, or a file")
    parser.add_argument("--var", metavar="NAME=VALUE", type=command.pair, action="append", help="a variable of it")
    parser.add_argument("--skills", metavar="A,B", help="the skills it has, of those there are; '' for none")
    parser.add_argument("--peers", metavar="REF,...", help="agents it may ask besides those below it")
    parser.add_argument("--archives", metavar="ID,...", help="archives it may search, read and ask")
    parser.add_argument("--name", help="a name to call it by")
    parser.add_argument("--cwd", metavar="FOLDER", help="the folder its tools work in (this one)")
    parser.add_argument("--plan", action="store_true", help="begin in plan mode: look only, until a plan is approved")
    parser.add_argument(
        "--no-persist", action="store_true", help="keep nothing of it on a disk: it is gone with its root"
    )
    parser.add_argument("--sandbox", choices=LEVELS, help="what its tools are kept from: see orch doctor")
    parser.add_argument("--require-sandbox", choices=LEVELS, help="start it only where its tools run at that or more")
    parser.add_argument(
        "--credentials",
        metavar="PATH",
        action="append",
        help="a credential path that its commands can read without approval, such as ~/.ssh; repeatable",
    )
    parser.add_argument("--script", metavar="FILE", help="a JSON array of responses to give instead of a model's")
    command.budget_arguments(parser, "it, with its subagents,")


def agent_params(arguments: Namespace) -> tuple[dict[str, Any], str | None]:
    """Return what to ask of the daemon, and what is to be said of the model. Raises Failure."""
    params, says = agent_option_params(arguments)
    return params | {"task": command.text(arguments.task), "request_id": os.urandom(8).hex()}, says


def agent_option_params(arguments: Namespace) -> tuple[dict[str, Any], str | None]:
    """Return what kind of agent is wanted: the flags, and what is configured where the caller stands. Raises Failure.

    Beside it, what is to be said of the model when nobody named one.
    """
    cwd = os.path.abspath(arguments.cwd or os.curdir)
    params: dict[str, Any] = {
        "cwd": cwd,
        "name": arguments.name,
        "context": arguments.context,
        "plan": arguments.plan,
        "thinking": arguments.thinking,
        "persist": not arguments.no_persist,
        "peers": command.names(arguments.peers or ""),
        "archives": command.names(arguments.archives or ""),
        "env": {name: value for name, value in os.environ.items() if name in TOOLS_SEE or name.startswith("LC_")},
        "umask": _umask(),
    }
    if arguments.script is not None:
        params["script"] = _script(arguments.script)
    from .spawn_settings import spawn_settings

    settings, says = spawn_settings(cwd, arguments)
    return params | settings, says


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def spawn(connection: Connection, params: dict[str, Any], says: str | None) -> dict[str, Any]:
    """Spawn and return the agent. What is to be said of the model is said once, and at a terminal each time."""
    spawned: dict[str, Any] = connection.call("spawn", params)
    if note := spawned.get("note"):
        print(f"orch: {note}", file=sys.stderr)
    if says is not None and (spawned["seq"] == 1 or sys.stderr.isatty()):
        print(says, file=sys.stderr)
    return spawned


def _spawn_arguments(parser: ArgumentParser) -> None:
    agent_arguments(parser)
    parser.add_argument(
        "--query", metavar="PROMPT", nargs="?", const=True, help="ask it at once (the task itself without PROMPT)"
    )
    approve_argument(parser)


def _spawn(arguments: Namespace) -> int:
    command.one_from_stdin(arguments.task, arguments.query)
    arguments.dry_run = False
    approval = approval_of(arguments) if arguments.query is not None else Approval("deny")
    params, says = agent_params(arguments)
    prompt = params["task"] if arguments.query is True else command.text(arguments.query or "")
    if arguments.query not in (None, True) and not prompt.strip():
        raise CommandError("ConfigError", "--query is empty: say what to ask, or leave it out", 2)
    connection = Connection()
    spawned = spawn(connection, params, says)
    told = {key: spawned[key] for key in SPAWNED}
    if arguments.query is None:
        command.print_result(arguments, told, spawned["id"])
        return 0
    if not arguments.json:
        print(spawned["id"], flush=True)
    arguments.stream = arguments.progress = False
    return ask(arguments, connection, {"ref": spawned["id"], "prompt": prompt}, approval, known=told)


def _script(file: str) -> list[Any]:
    from orch_protocol.core.errors import ConfigError
    from orch_worker.backends.offline.scripted import ScriptedBackend

    try:
        with open(file, encoding="utf-8") as opened:
            script = json.load(opened)
        if not isinstance(script, list):
            raise ConfigError("a script is a JSON array, one item a response")
        ScriptedBackend(script)
    except OSError as error:
        raise CommandError("ConfigError", f"script {file} cannot be read: {error.strerror}", 2) from error
    except (ValueError, RecursionError, ConfigError) as error:
        raise CommandError("ConfigError", f"script {file}: {error}", 2) from error
    return script


VERBS = {
    "spawn": CliCommand(
        "Start an agent: a process with a task and a fixed set of tools. Prints its id.",
        'orch spawn "Explain this repository" --preset investigate --query "What does the README promise?"',
        _spawn_arguments,
        _spawn,
    ),
}
