"""The verbs about agents: spawn, query, collect, list, show, kill, resume."""

from __future__ import annotations

import json
import os
import sys

from . import render
from .connection import Connection
from .failure import Failure
from .verb import Verb, dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS"]


SPAWNED = ("id", "seq", "name", "preset", "depth", "pid")
REPLY = ("id", "text", "stop_reason", "usage", "tool_calls", "files_changed")
USAGE = ("input_tokens", "output_tokens", "cost_usd")
ROW = (
    *("id", "seq", "name", "parent_id", "depth", "kind", "status", "task", "model", "preset", "pid", "created_at"),
    *("last_activity", "pending", "context_tokens", "context_limit", "queries", "usage"),
)
TOOLS_SEE = ("PATH", "HOME", "LANG", "LANGUAGE", "TERM", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "VIRTUAL_ENV")
"""What an agent's tools see of the caller's environment, besides LC_*."""


def _ref(parser: ArgumentParser) -> None:
    parser.add_argument("ref", metavar="REF", help="number, id, beginning of an id, or name of an agent")


def _spawn_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="what the agent is for, in a sentence; - reads it from stdin")
    parser.add_argument("--preset", help="the set of tools it gets, such as minimal or investigate")
    parser.add_argument("--tools", metavar="A,B", help="the tools it gets, instead of a preset")
    parser.add_argument("--model", metavar="PROVIDER:MODEL", help="the model that answers")
    parser.add_argument("--name", help="a name to call it by")
    parser.add_argument("--cwd", metavar="FOLDER", help="the folder its tools work in (this one)")
    parser.add_argument("--script", metavar="FILE", help="a JSON array of responses to give instead of a model's")
    parser.add_argument(
        "--query", metavar="PROMPT", nargs="?", const=True, help="ask it at once (the task itself without PROMPT)"
    )


def _spawn(arguments: Namespace) -> int:
    cwd = os.path.abspath(arguments.cwd or os.curdir)
    params: dict[str, Any] = {
        "task": _text(arguments.task),
        "cwd": cwd,
        "name": arguments.name,
        "env": {name: value for name, value in os.environ.items() if name in TOOLS_SEE or name.startswith("LC_")},
        "request_id": os.urandom(8).hex(),
    }
    if arguments.script is not None:
        params["script"] = _script(arguments.script)
    from .settings import spawn_settings

    params |= spawn_settings(cwd, arguments)
    connection = Connection()
    spawned = connection.call("spawn", _clean(params))
    told = {key: spawned[key] for key in SPAWNED}
    if arguments.query is None:
        _print(arguments, told, spawned["id"])
        return 0
    if not arguments.json:
        print(spawned["id"], flush=True)
    prompt = params["task"] if arguments.query is True else _text(arguments.query)
    reply = _waiting(connection, "query", {"ref": spawned["id"], "prompt": prompt})
    _print(arguments, told | {"reply": _reply(reply)}, render.shown(reply["text"]))
    return 0


def _query_arguments(parser: ArgumentParser) -> None:
    _ref(parser)
    parser.add_argument("prompt", metavar="PROMPT", help="what to ask; - reads it from stdin")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the answer; collect takes it")
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="wait at most so many seconds")


def _query(arguments: Namespace) -> int:
    params = {"ref": arguments.ref, "prompt": _text(arguments.prompt), "request_id": os.urandom(8).hex()}
    connection = Connection()
    if arguments.no_wait:
        submitted = connection.call("submit", _clean(params))
        _print(arguments, submitted, submitted["id"])
        return 0
    reply = _waiting(connection, "query", params | {"timeout": arguments.timeout})
    _print(arguments, _reply(reply), render.shown(reply["text"]))
    return 0


def _collect_arguments(parser: ArgumentParser) -> None:
    _ref(parser)
    parser.add_argument("--again", action="store_true", help="print an answer that was already taken")
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="wait at most so many seconds")
    parser.add_argument("--no-wait", action="store_true", help="exit with 4 at once when there is no answer yet")


def _collect(arguments: Namespace) -> int:
    timeout = 0 if arguments.no_wait else arguments.timeout
    params = {"ref": arguments.ref, "timeout": timeout, "again": arguments.again}
    reply = _waiting(Connection(), "collect", params)
    _print(arguments, _reply(reply), render.shown(reply["text"]))
    return 0


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
    _ref(parser)
    parser.add_argument("--messages", type=int, default=20, metavar="N", help="how much of the conversation (20)")


def _show(arguments: Namespace) -> int:
    shown = Connection().call("show", _clean({"ref": arguments.ref, "messages": arguments.messages}))
    _print(arguments, shown, render.agent(shown) if not arguments.json else "")
    return 0


def _kill_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("refs", metavar="REF", nargs="*", help="agents to end, with everything below them")
    parser.add_argument("--all", action="store_true", help="every agent")
    parser.add_argument("--dry-run", action="store_true", help="print what would be ended, and end nothing")


def _kill(arguments: Namespace) -> int:
    params = {"refs": arguments.refs, "all": arguments.all, "dry_run": arguments.dry_run}
    killed = Connection().call("kill", _clean(params))
    _print(arguments, killed, "\n".join(killed["ids"]))
    return 0


def _resume(arguments: Namespace) -> int:
    row = Connection().call("resume", _clean({"ref": arguments.ref}))
    _print(arguments, {key: row[key] for key in ROW}, row["id"])
    return 0


def _waiting(connection: Connection, method: str, params: dict[str, Any]) -> Any:
    """Ask and wait. Ctrl-C ends the waiting, never the agent."""
    try:
        return connection.call(method, _clean(params))
    except KeyboardInterrupt:
        connection.close()
        ref = params["ref"]
        message = f"stopped waiting; agent {ref} works on. Its answer: orch collect {ref}"
        raise Failure("Interrupted", message, 130) from None


def _print(arguments: Namespace, data: Any, text: str) -> None:
    if arguments.json:
        print(dump(data))
    elif text:
        print(text)


def _reply(reply: dict[str, Any]) -> dict[str, Any]:
    chosen = {key: reply[key] for key in REPLY}
    return chosen | {"usage": {key: reply["usage"][key] for key in USAGE}}


def _text(argument: str) -> str:
    """Return the text that `argument` is, or stdin's when it is a dash."""
    if argument != "-":
        return argument
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def _script(file: str) -> list[Any]:
    try:
        with open(file, encoding="utf-8") as opened:
            script = json.load(opened)
    except (OSError, ValueError) as error:
        raise Failure("ConfigError", f"script {file}: {error}", 2) from error
    if not isinstance(script, list):
        raise Failure("ConfigError", f"script {file}: a script is a JSON array, one item a response", 2)
    return script


def _clean(value: Any) -> Any:
    """Return `value` with text from the command line that is not UTF-8 made so."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if not value.isascii() else value
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def _seconds(text: str) -> float:
    from argparse import ArgumentTypeError

    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


VERBS = {
    "spawn": Verb(
        "Start an agent: a process with a task and a fixed set of tools. Prints its id.",
        'orch spawn "Explain this repository" --preset investigate --query "What does the README promise?"',
        _spawn_arguments,
        _spawn,
    ),
    "query": Verb(
        "Ask an agent and print its answer. Ctrl-C ends the waiting; the agent works on.",
        'orch query 1 "Which file parses the configuration?" --timeout 60',
        _query_arguments,
        _query,
    ),
    "collect": Verb(
        "Take the answer to a query nobody waited for. An answer is taken once; --again prints it anew.",
        "orch collect 1 --timeout 60",
        _collect_arguments,
        _collect,
    ),
    "list": Verb("List agents, oldest first.", "orch list --tree", _list_arguments, _list),
    "show": Verb("Show one agent and the end of its conversation.", "orch show 1 --messages 5", _show_arguments, _show),
    "kill": Verb(
        "End agents and everything below them, and print their ids. Their transcripts stay.",
        "orch kill --all --dry-run",
        _kill_arguments,
        _kill,
    ),
    "resume": Verb("Let a killed or failed agent answer again.", "orch resume 1", _ref, _resume),
}
