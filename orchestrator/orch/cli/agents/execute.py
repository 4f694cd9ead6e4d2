"""The command `orch execute` runs a slash command in an agent's session."""

from __future__ import annotations

from ...client.connection import Connection
from ...render import terminal
from .. import command
from ..command import CliCommand
from .approval_prompt import approval_of, approve_argument
from .query import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS"]

PRINTED_EFFECTS = frozenset({"copy", "edit", "paste"})
"""Effects whose text is printed.

Other front ends use a clipboard or an input line, which this command does not have.
"""


def _arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument(
        "line",
        metavar="LINE",
        nargs="?",
        default="/help",
        help="slash command such as /status, or !SHELL-COMMAND; /help lists them",
    )
    approve_argument(parser)


def _execute(arguments: Namespace) -> int:
    arguments.approval = approval_of(arguments)  # fails before the command changes anything
    connection = Connection(run=arguments.run)
    params = {"ref": arguments.ref, "text": arguments.line}
    result = connection.call("execute", params)
    text = result["text"]
    effect = result["effect"] or {"kind": "", "agent": "", "text": ""}
    if effect["kind"] in PRINTED_EFFECTS:
        text = effect["text"]
    command.print_result(arguments, result, terminal.safe_for_stdout(text))
    if not arguments.json and effect["text"] and effect["kind"] in ("ask", "switch"):
        return _ask(arguments, connection, effect)
    return int(result["is_error"])


def _ask(arguments: Namespace, connection: Connection, effect: dict[str, Any]) -> int:
    """Send the prompt of the command to its agent, or to the agent that the command switches to."""
    arguments.stream = arguments.progress = False
    params = {"ref": effect["agent"] or arguments.ref, "prompt": effect["text"]}
    return ask(arguments, connection, params, arguments.approval)


VERBS = {
    "execute": CliCommand(
        "Run a slash command in an agent's session and print its result. A command that is a prompt "
        "template queries the agent, except with --json.",
        'orch execute reader "/context"; orch execute reader /help',
        _arguments,
        _execute,
    ),
}
