"""The verbs about agents: spawn, list, show, kill, resume."""

from __future__ import annotations

import json
import os

from . import render, words
from .connection import Connection
from .failure import Failure
from .verb import Verb, dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["ROW", "VERBS", "agent_arguments", "spawn_params"]

SPAWNED = ("id", "seq", "name", "preset", "depth", "pid")
ROW = (
    *("id", "seq", "name", "parent_id", "depth", "kind", "status", "task", "model", "preset", "pid", "created_at"),
    *("last_activity", "pending", "context_tokens", "context_limit", "queries", "usage"),
)
TOOLS_SEE = ("PATH", "HOME", "LANG", "LANGUAGE", "TERM", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "VIRTUAL_ENV")
"""What an agent's tools see of the caller's environment, besides LC_*."""


def agent_arguments(parser: ArgumentParser) -> None:
    """Let the command take what a new agent is to be."""
    parser.add_argument("task", metavar="TASK", help="what the agent is for, in a sentence; - reads it from stdin")
    parser.add_argument("--preset", help="the set of tools it gets, such as minimal or investigate")
    parser.add_argument("--tools", metavar="A,B", help="the tools it gets, instead of a preset")
    parser.add_argument("--model", metavar="PROVIDER:MODEL", help="the model that answers; local: one of this machine")
    parser.add_argument("--name", help="a name to call it by")
    parser.add_argument("--cwd", metavar="FOLDER", help="the folder its tools work in (this one)")
    parser.add_argument("--script", metavar="FILE", help="a JSON array of responses to give instead of a model's")


def spawn_params(arguments: Namespace) -> dict[str, Any]:
    """Return what to ask of the daemon: the flags, and what is configured where the caller stands. Raises Failure."""
    cwd = os.path.abspath(arguments.cwd or os.curdir)
    params: dict[str, Any] = {
        "task": words.text(arguments.task),
        "cwd": cwd,
        "name": arguments.name,
        "env": {name: value for name, value in os.environ.items() if name in TOOLS_SEE or name.startswith("LC_")},
        "request_id": os.urandom(8).hex(),
    }
    if arguments.script is not None:
        params["script"] = _script(arguments.script)
    from .settings import spawn_settings

    return params | spawn_settings(cwd, arguments)


def _spawn_arguments(parser: ArgumentParser) -> None:
    agent_arguments(parser)
    parser.add_argument(
        "--query", metavar="PROMPT", nargs="?", const=True, help="ask it at once (the task itself without PROMPT)"
    )


def _spawn(arguments: Namespace) -> int:
    params = spawn_params(arguments)
    connection = Connection()
    spawned = connection.call("spawn", words.clean(params))
    told = {key: spawned[key] for key in SPAWNED}
    if arguments.query is None:
        words.say(arguments, told, spawned["id"])
        return 0
    from .asking import agreed
    from .waiting import wait

    if not arguments.json:
        print(spawned["id"], flush=True)
    prompt = params["task"] if arguments.query is True else words.text(arguments.query)
    reply = wait(connection, "query", {"ref": spawned["id"], "prompt": prompt}, quiet=arguments.json)
    words.say(arguments, told | {"reply": agreed(reply)}, render.shown(reply["text"]))
    return 0


def _script(file: str) -> list[Any]:
    try:
        with open(file, encoding="utf-8") as opened:
            script = json.load(opened)
    except (OSError, ValueError) as error:
        raise Failure("ConfigError", f"script {file}: {error}", 2) from error
    if not isinstance(script, list):
        raise Failure("ConfigError", f"script {file}: a script is a JSON array, one item a response", 2)
    return script


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="killed ones too")
    parser.add_argument("--tree", action="store_true", help="children below their parents, usage of whole branches")


def _list(arguments: Namespace) -> int:
    rows = Connection().call("list", {"all": arguments.all})
    if arguments.json:
        print(dump([{key: row[key] for key in ROW} for row in rows]))
    else:
        print(render.tree(rows) if arguments.tree else render.table(rows))
    return 0


def _show_arguments(parser: ArgumentParser) -> None:
    words.ref(parser)
    parser.add_argument("--messages", type=int, default=20, metavar="N", help="how much of the conversation (20)")


def _show(arguments: Namespace) -> int:
    shown = Connection().call("show", words.clean({"ref": arguments.ref, "messages": arguments.messages}))
    words.say(arguments, shown, render.agent(shown) if not arguments.json else "")
    return 0


def _kill_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("refs", metavar="REF", nargs="*", help="agents to end, with everything below them")
    parser.add_argument("--all", action="store_true", help="every agent")
    parser.add_argument("--dry-run", action="store_true", help="print what would be ended, and end nothing")


def _kill(arguments: Namespace) -> int:
    params = {"refs": arguments.refs, "all": arguments.all, "dry_run": arguments.dry_run}
    killed = Connection().call("kill", words.clean(params))
    words.say(arguments, killed, "\n".join(killed["ids"]))
    return 0


def _resume(arguments: Namespace) -> int:
    row = Connection().call("resume", words.clean({"ref": arguments.ref}))
    words.say(arguments, {key: row[key] for key in ROW}, row["id"])
    return 0


VERBS = {
    "spawn": Verb(
        "Start an agent: a process with a task and a fixed set of tools. Prints its id.",
        'orch spawn "Explain this repository" --preset investigate --query "What does the README promise?"',
        _spawn_arguments,
        _spawn,
    ),
    "list": Verb("List agents, oldest first.", "orch list --tree", _list_arguments, _list),
    "show": Verb("Show one agent and the end of its conversation.", "orch show 1 --messages 5", _show_arguments, _show),
    "kill": Verb(
        "End agents and everything below them, and print their ids. Their transcripts stay.",
        "orch kill --all --dry-run",
        _kill_arguments,
        _kill,
    ),
    "resume": Verb("Let a killed or failed agent answer again.", "orch resume 1", words.ref, _resume),
}
