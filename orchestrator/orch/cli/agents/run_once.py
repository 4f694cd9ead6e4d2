"""The command `orch run` starts or resumes an agent, queries the agent, and ends it.

The daemon ends the agent when the connection of this command closes, so the agent ends however the command ends. The
command also ends the agent itself, to wait until the agent's processes have ended.
"""

from __future__ import annotations

import sys

from ...client.connection import NOT_RUNNING, Connection
from ...client.failure import CommandError
from ...config.interrupts import InterruptLimit
from .. import command
from ..command import CliCommand
from .approval_prompt import Approval, approval_of, approve_argument
from .query import (
    INTERRUPTED,
    ask,
    image_argument,
    progress_argument,
    prompt_params,
    read_images,
    returned_type,
    returns_argument,
    stable_fields,
    stream_argument,
)
from .spawn import SPAWNED_FIELDS, agent_arguments, agent_options, agent_params, history_argument, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS"]

ENDED = ("killed", "failed")


def _arguments(parser: ArgumentParser) -> None:
    agent_arguments(parser)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="the prompt (default: TASK); - reads it from stdin")
    image_argument(parser)
    group = parser.add_mutually_exclusive_group()
    stream_argument(group)
    group.add_argument(
        "--json-events", action="store_true", help="print one JSON object per line: the agent, each event, the reply"
    )
    returns_argument(group)
    progress_argument(parser)
    approve_argument(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="run no tool; print to stderr how each call would be decided"
    )
    parser.add_argument(
        "--resume", metavar="REF", help="query the agent of an earlier `orch run --keep`; TASK is the prompt"
    )
    parser.add_argument("--keep", action="store_true", help="do not end the agent with this command")


def _run(arguments: Namespace) -> int:
    if not arguments.json_events:
        return _run_agent(arguments)
    arguments.json = arguments.stream = True
    try:
        return _run_agent(arguments)
    except CommandError as failure:  # programs that read the events get the error without reading stderr
        _print_event("failed", {"error": {"type": failure.kind, "message": str(failure)}})
        raise


def _run_agent(arguments: Namespace) -> int:
    command.one_from_stdin(arguments.task, arguments.prompt)
    arguments.approval = approval_of(arguments)  # reports an error before an agent is started
    returned_type(arguments)
    arguments.images = read_images(arguments)
    connection = Connection()
    if arguments.resume is not None:
        return _query_existing(arguments, connection)
    params, model_note = agent_params(arguments)
    if params.get("policy", {}).get("rules", {}).get("dry_run"):
        arguments.progress, arguments.approval = True, Approval("deny")  # no tool runs, so no call needs an approval
    prompt = params["task"] if arguments.prompt is None else command.text(arguments.prompt)
    if arguments.keep:
        return _ask(arguments, connection, spawn(connection, params, model_note), prompt)
    with InterruptLimit(1):  # a second Ctrl-C must not stop this command while it waits for the agent's end
        spawned = spawn(connection, params | {"ends_with_connection": True}, model_note)
        return _ask_and_end(arguments, connection, spawned, prompt)


def _query_existing(arguments: Namespace, connection: Connection) -> int:
    """Query an existing agent. If this command resumed the agent, end the agent afterwards. Raises CommandError."""
    _refuse_new_agent_options(arguments)
    row = connection.call("state", {"ref": arguments.resume})
    prompt = command.text(arguments.task)
    if row["status"] not in ENDED:
        arguments.keep = True
        return _ask(arguments, connection, row, prompt)
    resume_params = {"ref": row["id"], "budget": command.budget(arguments), "ends_with_connection": not arguments.keep}
    connection.call("resume", resume_params)
    if arguments.keep:
        return _ask(arguments, connection, row, prompt)
    with InterruptLimit(1):
        return _ask_and_end(arguments, connection, row, prompt)


def _refuse_new_agent_options(arguments: Namespace) -> None:
    """Raise CommandError for arguments that apply only to a new agent."""
    from argparse import ArgumentParser

    parser = ArgumentParser()
    agent_options(parser)
    history_argument(parser)
    defaults = vars(parser.parse_args([]))
    budget = vars(_budget_only().parse_args([]))
    changed = [name for name, value in defaults.items() if name not in budget and getattr(arguments, name) != value]
    changed += ["PROMPT"] if arguments.prompt is not None else []
    changed += ["dry-run"] if arguments.dry_run else []
    if changed:
        flags = ", ".join(name if name.isupper() else f"--{name.replace('_', '-')}" for name in changed)
        raise CommandError(
            "UsageError",
            f"--resume queries an existing agent, whose settings are fixed; leave out {flags}. TASK is the prompt",
            2,
        )


def _budget_only() -> ArgumentParser:
    from argparse import ArgumentParser

    parser = ArgumentParser()
    command.budget_arguments(parser, "")
    return parser


def _ask(
    arguments: Namespace, connection: Connection, agent: dict[str, Any], prompt: str, kills_agent: bool = False
) -> int:
    """Send the query and print the reply. With --json-events, print the agent, the events and the reply.

    Raises CommandError.
    """
    params = {"ref": agent["id"], **prompt_params(prompt, arguments.images)}
    try:
        if not arguments.json_events:
            return ask(arguments, connection, params, arguments.approval, kills_agent=kills_agent)
        _print_event("agent", {key: agent[key] for key in SPAWNED_FIELDS})
        return ask(
            arguments, connection, params, arguments.approval, kills_agent=kills_agent, show_reply=_print_reply_event
        )
    finally:
        if arguments.keep and not arguments.json:
            print(f"orch: agent {agent['id']} was not ended (--keep)", file=sys.stderr)


def _ask_and_end(arguments: Namespace, connection: Connection, agent: dict[str, Any], prompt: str) -> int:
    try:
        return _ask(arguments, connection, agent, prompt, kills_agent=True)
    except CommandError as failure:
        if failure.kind != INTERRUPTED:
            raise
        raise CommandError(INTERRUPTED, f"interrupted; agent {agent['id']} was ended", failure.exit_code) from None
    finally:
        connection.close()  # the connection may have received a part of a response
        _kill(connection, agent["id"])


def _kill(connection: Connection, id: str) -> None:
    """Kill the agent. A failure is reported on stderr. The failure does not replace the reply or an earlier error."""
    try:
        connection.sibling().call("kill", {"refs": [id]})
    except CommandError as failure:
        if failure.kind != NOT_RUNNING:  # the agent's process ended with the daemon, and the next daemon ends the agent
            print(f"orch: agent {id} was not ended: {failure}", file=sys.stderr)


def _print_reply_event(reply: dict[str, Any]) -> None:
    _print_event("reply", stable_fields(reply))


def _print_event(kind: str, data: dict[str, Any]) -> None:
    from ...render.transcript import json_line

    json_line({"kind": kind} | data)


VERBS = {
    "run": CliCommand(
        "Start an agent, query it, print its answer and end it. The agent also ends if this command is interrupted "
        "or killed, or its terminal is closed; --keep keeps it.",
        'orch run "Which file parses the configuration?" --preset investigate --stream',
        _arguments,
        _run,
    ),
}
