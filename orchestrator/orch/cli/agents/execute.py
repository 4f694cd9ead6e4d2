"""`orch execute`: a command of a session, as it would be typed in a conversation."""

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

SHOWN = frozenset({"copy", "edit", "paste"})
"""Effects whose text is what was asked for, where there is neither a clipboard nor a line to write in."""


def _arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument("line", metavar="LINE", nargs="?", default="/help", help="the command: /status; !ls (/help)")
    approve_argument(parser)


def _execute(arguments: Namespace) -> int:
    arguments.approval = approval_of(arguments)  # before anything is done that cannot be undone
    connection = Connection()
    params = {"ref": arguments.ref, "text": arguments.line}
    done = connection.call("execute", params)
    text = done["text"]
    effect = done["effect"] or {"kind": "", "agent": "", "text": ""}
    if effect["kind"] in SHOWN:
        text = effect["text"]
    command.print_result(arguments, done, terminal.safe_for_stdout(text))
    if not arguments.json and effect["text"] and effect["kind"] in ("ask", "switch"):
        return _ask(arguments, connection, effect)
    return int(done["is_error"])


def _ask(arguments: Namespace, connection: Connection, effect: dict[str, Any]) -> int:
    """Ask what the command is a prompt for: its agent, or the one that it leads to."""
    arguments.stream = arguments.progress = False
    params = {"ref": effect["agent"] or arguments.ref, "prompt": effect["text"]}
    return ask(arguments, connection, params, arguments.approval)


VERBS = {
    "execute": CliCommand(
        "Execute a command of a session and print what comes of it. A prompt that it is is asked, except with --json.",
        'orch execute reader "/context"; orch execute reader /help',
        _arguments,
        _execute,
    ),
}
