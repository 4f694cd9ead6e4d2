"""The command `orch spawn`, and the arguments that are shared by all commands that create agents."""

from __future__ import annotations

import json
import os
import sys
from itertools import count

from ...client.calling_agent import calling_agent
from ...client.connection import Connection
from ...client.failure import CommandError
from .. import command
from ..command import CliCommand
from .approval_prompt import Approval, approval_of, approve_argument
from .query import ask, image_argument, prompt_params, read_images

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence
    from typing import Any

__all__ = [
    "SPAWNED_FIELDS",
    "VERBS",
    "agent_arguments",
    "agent_option_params",
    "agent_options",
    "agent_params",
    "history_argument",
    "history_params",
    "spawn",
]

SPAWNED_FIELDS = ("id", "seq", "name", "preset", "depth", "pid")
CONTEXTS = ("none", "brief", "full")
THINKING = ("off", "minimal", "low", "medium", "high", "xhigh", "max")
"""Reasoning efforts of `orch_protocol.agent.models`, copied because importing that module is slow."""
LEVELS = ("L0", "L1", "L2", "L3")
NOTICE_SECONDS = 2
"""Seconds after which the command reports that it still waits for the agent's process."""
PASSED_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LANGUAGE",
    "TERM",
    "TZ",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "SHELL",
    "VIRTUAL_ENV",
)
"""Variables of the caller's environment that the agent's tools get in addition to LC_*."""


def agent_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for a new agent and its task."""
    parser.add_argument("task", metavar="TASK", help="purpose of the agent, one sentence; - reads it from stdin")
    agent_options(parser)
    history_argument(parser)


def history_argument(parser: ArgumentParser) -> None:
    """Add the option for messages at the beginning of the conversation."""
    parser.add_argument(
        "--history",
        metavar="FILE",
        help="JSON array of messages that the conversation starts with, in the format of a provider's API",
    )


def agent_options(
    parser: ArgumentParser,
    *,
    name: str = "name of the agent, usable as REF",
    budget: str = "this agent and its subagents together",
) -> None:
    """Add the options for a new agent. `name` is the help of --name, and `budget` describes what the budget covers."""
    parser.add_argument("--agent", metavar="TYPE", help="agent type, with its tools, model and prompt")
    parser.add_argument("--preset", help="named set of tools: minimal, investigate or work")
    parser.add_argument("--tools", metavar="A,B", help="list of tools; with --preset, in addition to the preset")
    parser.add_argument("--context", choices=CONTEXTS, help="amount of project information in the prompt")
    parser.add_argument(
        "--model", metavar="PROVIDER:MODEL", help="model to use; 'local' selects a model server on this machine"
    )
    parser.add_argument(
        "--thinking", choices=THINKING, help="reasoning effort; falls back to the nearest supported level"
    )
    parser.add_argument(
        "--prompt-template", metavar="NAME", help="prompt template for the agent's role: a name or a file"
    )
    command.variables_argument(parser)
    parser.add_argument("--skills", metavar="A,B", help="skills that the agent may use (default: all); '' for none")
    parser.add_argument(
        "--peers", metavar="REF,...", help="agents that the agent may query in addition to its subagents"
    )
    parser.add_argument("--archives", metavar="ID,...", help="archives that the agent may search, read and query")
    parser.add_argument("--name", help=name)
    parser.add_argument(
        "--isolation", choices=("worktree",), help="let the agent work in its own git worktree and branch"
    )
    parser.add_argument("--cwd", metavar="FOLDER", help="working folder of the agent's tools (default: current folder)")
    parser.add_argument(
        "--plan", action="store_true", help="start in plan mode: read-only tools until you approve a plan"
    )
    parser.add_argument(
        "--no-persist", action="store_true", help="write nothing to disk; the agent is lost when the daemon ends"
    )
    parser.add_argument(
        "--sandbox",
        choices=LEVELS,
        help="sandbox level of the agent's tools; `orch doctor` lists supported levels",
    )
    parser.add_argument(
        "--require-sandbox", choices=LEVELS, help="fail unless the agent's tools run at this sandbox level or higher"
    )
    parser.add_argument(
        "--credentials",
        metavar="PATH",
        action="append",
        help="a credential path that the agent's commands can read without approval, such as ~/.ssh; repeatable",
    )
    parser.add_argument(
        "--max-turns", metavar="N", type=command.positive_int, help="maximum number of model responses for one query"
    )
    parser.add_argument("--script", metavar="FILE", help="JSON array of scripted responses to use instead of a model")
    command.budget_arguments(parser, budget)


def agent_params(arguments: Namespace) -> tuple[dict[str, Any], str | None]:
    """Return the parameters of the spawn request, and a note about the model (or None). Raises CommandError."""
    params, model_note = agent_option_params(arguments)
    params |= history_params(arguments)
    return params | {"task": command.text(arguments.task), "request_id": os.urandom(8).hex()}, model_note


def agent_option_params(arguments: Namespace) -> tuple[dict[str, Any], str | None]:
    """Return the spawn parameters from flags and from the configuration in the caller's folder. Raises CommandError.

    A command of an agent sends only its flags: the new agent has the settings of its parent.

    The second value is a note about the model if no model was chosen.
    """
    cwd = os.path.abspath(arguments.cwd or os.curdir)
    params: dict[str, Any] = {
        "cwd": cwd,
        "agent": arguments.agent,
        "isolation": arguments.isolation,
        "name": arguments.name,
        "context": arguments.context,
        "plan": arguments.plan,
        "thinking": arguments.thinking,
        "persist": not arguments.no_persist,
        "peers": command.names(arguments.peers or ""),
        "archives": command.names(arguments.archives or ""),
    }
    if arguments.script is not None:
        params["script"] = _script(arguments.script)
    if calling_agent() is not None:
        from .spawn_settings import requested_settings

        return params | requested_settings(cwd, arguments), None
    from .spawn_settings import spawn_settings

    params["env"] = {
        name: value for name, value in os.environ.items() if name in PASSED_VARIABLES or name.startswith("LC_")
    }
    params["umask"] = _umask()
    settings, model_note = spawn_settings(cwd, arguments)
    return params | settings, model_note


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def spawn(connection: Connection, params: dict[str, Any], model_note: str | None) -> dict[str, Any]:
    """Spawn an agent and return it.

    `model_note` is the note about the model. On a terminal the note is always printed. Otherwise the note is printed
    only for the first agent.
    """
    seconds = count()

    def report_wait() -> None:
        if next(seconds) == NOTICE_SECONDS and sys.stderr.isatty():
            print("orch: the agent has not started yet; if all agents are busy, it waits for one", file=sys.stderr)

    spawned: dict[str, Any] = connection.call("spawn", params, on_silence=report_wait)
    if note := spawned.get("note"):
        print(f"orch: {note}", file=sys.stderr)
    if model_note is not None and (spawned["seq"] == 1 or sys.stderr.isatty()):
        print(model_note, file=sys.stderr)
    return spawned


def _spawn_arguments(parser: ArgumentParser) -> None:
    agent_arguments(parser)
    parser.add_argument(
        "--query", metavar="PROMPT", nargs="?", const=True, help="query the agent immediately (default PROMPT: TASK)"
    )
    image_argument(parser)
    approve_argument(parser)


def _spawn(arguments: Namespace) -> int:
    command.one_from_stdin(arguments.task, arguments.query)
    arguments.dry_run = False
    approval = approval_of(arguments) if arguments.query is not None else Approval("deny")
    params, model_note = agent_params(arguments)
    prompt = params["task"] if arguments.query is True else command.text(arguments.query or "")
    if arguments.query not in (None, True) and not prompt.strip():
        raise CommandError("ConfigError", "--query is empty; pass a prompt or leave the option out", 2)
    if arguments.image and arguments.query is None:
        raise CommandError("UsageError", "--image belongs to a prompt: add --query PROMPT", 2)
    images = read_images(arguments)
    connection = Connection()
    spawned = spawn(connection, params, model_note)
    result = {key: spawned[key] for key in SPAWNED_FIELDS}
    if arguments.query is None:
        command.print_result(arguments, result, spawned["id"])
        return 0
    if not arguments.json:
        print(spawned["id"], flush=True)
    arguments.stream = arguments.progress = False
    return ask(
        arguments, connection, {"ref": spawned["id"], **prompt_params(prompt, images)}, approval, extra_fields=result
    )


def history_params(arguments: Namespace) -> dict[str, Any]:
    """Return the parameter of the spawn request for --history. Return {} without the option. Raises CommandError."""
    if arguments.history is None:
        return {}
    from msgspec import to_builtins

    from ...archival.adapters import read_messages

    messages: Sequence[Any] = _read_array(
        "history", arguments.history, "message", lambda data: read_messages(data, "message")
    )
    return {"history": to_builtins(messages)}


def _script(file: str) -> list[Any]:
    from orch_worker.backends.offline.scripted import ScriptedBackend

    def check(script: list[Any]) -> list[Any]:
        ScriptedBackend(script)
        return script

    script: list[Any] = _read_array("script", file, "response", check)
    return script


def _read_array(subject: str, file: str, item_name: str, read: Callable[[list[Any]], Any]) -> Any:
    """Read the JSON array in `file` and pass it to the function `read`.

    Return the function's result. Raises CommandError.
    """
    from orch_protocol.core.errors import ConfigError
    from orch_protocol.core.text import decode_text

    try:
        with open(file, "rb") as opened:
            data = json.loads(decode_text(opened.read()))
        if not isinstance(data, list):
            raise ConfigError(f"must be a JSON array with one item for each {item_name}")
        return read(data)
    except OSError as error:
        raise CommandError("ConfigError", f"cannot read {subject} {file}: {error.strerror}", 2) from error
    except (ValueError, RecursionError, ConfigError) as error:
        raise CommandError("ConfigError", f"{subject} {file}: {error}", 2) from error


VERBS = {
    "spawn": CliCommand(
        "Start an agent: a process with a task and a fixed set of tools. Prints the agent's id.",
        'orch spawn "Explain this repository" --preset investigate --query "What does the README promise?"',
        _spawn_arguments,
        _spawn,
    ),
}
