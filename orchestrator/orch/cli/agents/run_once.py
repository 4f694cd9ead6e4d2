"""The verb for one question: an agent is started or taken up again, asked, and ended."""

from __future__ import annotations

import sys

from ...client.connection import Connection
from ...client.failure import CommandError
from ...config.interrupts import Presses
from .. import command
from ..command import CliCommand
from .approval_prompt import Approval, approval_of, approve_argument
from .query import INTERRUPTED, agreed, ask, progress_argument, stream_argument
from .spawn import SPAWNED, agent_arguments, agent_options, agent_params, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS", "kill_unconfirmed"]

ENDED = ("killed", "failed")


def _arguments(parser: ArgumentParser) -> None:
    agent_arguments(parser)
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="?", help="what to ask, the task itself by default; - reads it from stdin"
    )
    how = parser.add_mutually_exclusive_group()
    stream_argument(how)
    how.add_argument(
        "--json-events", action="store_true", help="print JSON, a line each: the agent, what happens, the reply"
    )
    progress_argument(parser)
    approve_argument(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="run no tool, and say on stderr what would become of each call"
    )
    parser.add_argument(
        "--resume", metavar="REF", help="ask the agent of an earlier run, by its id; TASK is what to ask it"
    )
    parser.add_argument("--keep", action="store_true", help="do not end the agent")


def _run(arguments: Namespace) -> int:
    if not arguments.json_events:
        return _run_as_asked(arguments)
    arguments.json = arguments.stream = True
    try:
        return _run_as_asked(arguments)
    except CommandError as failure:  # whoever reads the lines need not read stderr too
        _line("failed", {"error": {"type": failure.kind, "message": str(failure)}})
        raise


def _run_as_asked(arguments: Namespace) -> int:
    command.one_from_stdin(arguments.task, arguments.prompt)
    arguments.approval = approval_of(arguments)  # an error ends the command before an agent is started
    connection = Connection()
    if arguments.resume is not None:
        return _again(arguments, connection)
    params, says = agent_params(arguments)
    if params["policy"]["rules"]["dry_run"]:
        arguments.progress, arguments.approval = True, Approval("deny")  # no call is made, so none is denied
    prompt = params["task"] if arguments.prompt is None else command.text(arguments.prompt)
    if arguments.keep:
        return _ask(arguments, connection, spawn(connection, params, says), prompt)
    with Presses(1):  # whoever presses Ctrl-C again while the agent is ended does not keep it alive by that
        try:
            spawned = spawn(connection, params, says)
        except KeyboardInterrupt:
            kill_unconfirmed(connection, params)
            raise
        return _ask_and_end(arguments, connection, spawned, prompt)


def _again(arguments: Namespace, connection: Connection) -> int:
    """Ask an agent that was there before: it is what it was, and ended again only if it had been. Raises Failure."""
    _refuse_kinds(arguments)
    row = connection.call("state", {"ref": arguments.resume})
    prompt = command.text(arguments.task)
    if row["status"] not in ENDED:
        arguments.keep = True
        return _ask(arguments, connection, row, prompt)
    connection.call("resume", {"ref": row["id"], "budget": command.budget(arguments)})
    if arguments.keep:
        return _ask(arguments, connection, row, prompt)
    with Presses(1):
        return _ask_and_end(arguments, connection, row, prompt)


def _refuse_kinds(arguments: Namespace) -> None:
    """Raise Failure when something is said of what the agent is to be."""
    from argparse import ArgumentParser

    kinds = ArgumentParser()
    agent_options(kinds)
    untold = vars(kinds.parse_args([]))
    budget = vars(_budget_only().parse_args([]))
    said = [name for name, value in untold.items() if name not in budget and getattr(arguments, name) != value]
    said += ["PROMPT"] if arguments.prompt is not None else []
    said += ["dry-run"] if arguments.dry_run else []
    if said:
        flags = ", ".join(name if name.isupper() else f"--{name.replace('_', '-')}" for name in said)
        raise CommandError(
            "UsageError",
            f"--resume goes on with an agent that is what it is: leave out {flags}. TASK is what to ask it",
            2,
        )


def _budget_only() -> ArgumentParser:
    from argparse import ArgumentParser

    parser = ArgumentParser()
    command.budget_arguments(parser, "")
    return parser


def _ask(arguments: Namespace, connection: Connection, agent: dict[str, Any], prompt: str, ends: bool = False) -> int:
    """Ask and show; as events, with the agent before them and the reply, as one of them, behind. Raises Failure."""
    params = {"ref": agent["id"], "prompt": prompt}
    try:
        if not arguments.json_events:
            return ask(arguments, connection, params, arguments.approval, ends=ends)
        _line("agent", {key: agent[key] for key in SPAWNED})
        return ask(arguments, connection, params, arguments.approval, ends=ends, shows=_reply_line)
    finally:
        if arguments.keep and not arguments.json:
            print(f"orch: agent {agent['id']} is kept", file=sys.stderr)


def _ask_and_end(arguments: Namespace, connection: Connection, agent: dict[str, Any], prompt: str) -> int:
    try:
        return _ask(arguments, connection, agent, prompt, ends=True)
    except CommandError as failure:
        if failure.kind != INTERRUPTED:
            raise
        raise CommandError(INTERRUPTED, f"interrupted; agent {agent['id']} was ended", failure.exit_code) from None
    finally:
        connection.close()  # what it says may be half read
        _end(connection, agent["id"])


def _end(connection: Connection, id: str) -> None:
    """Kill the agent. That this failed is said, and takes no answer's place, nor that of an error before it."""
    try:
        connection.call("kill", {"refs": [id]})
    except CommandError as failure:
        print(f"orch: agent {id} was not ended: {failure}", file=sys.stderr)


def kill_unconfirmed(connection: Connection, params: dict[str, Any]) -> None:
    """Kill the agent that `params` may have made, whose id was not told any more."""
    connection.close()
    again = connection.sibling()
    try:
        id = again.call("spawn", params)["id"]  # the same request: the same agent
        again.call("kill", {"refs": [id]})
    except CommandError:
        pass  # there is no daemon, or it makes none: nothing is left


def _reply_line(reply: dict[str, Any]) -> None:
    _line("reply", agreed(reply))


def _line(kind: str, data: dict[str, Any]) -> None:
    from ...render.transcript import json_line

    json_line({"kind": kind} | data)


VERBS = {
    "run": CliCommand(
        "Start an agent, ask it, print its answer and end it. Ctrl-C ends it too.",
        'orch run "Which file parses the configuration?" --preset investigate --stream',
        _arguments,
        _run,
    ),
}
