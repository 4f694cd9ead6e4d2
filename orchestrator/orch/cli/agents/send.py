"""The command `orch send` for editors sends a part of a file, or any text, to a running or idle agent."""

from __future__ import annotations

import os

from ...client.connection import Connection
from ...client.failure import CommandError
from .. import command
from ..command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["VERBS", "format_quote"]

FENCE = "```"


def format_quote(text: str, source: str = "", question: str = "") -> str:
    """Return the message for `text`.

    The message contains the question, the source of the text, and the text in a code fence. The fence is longer than
    any fence in the text.
    """
    fence = FENCE
    while fence in text:
        fence += "`"
    parts = [question] if question else []
    parts += [f"From {source}:"] if source else []
    if not parts:
        return text
    extension = os.path.splitext(source.rpartition(":")[0] or source)[1].lstrip(".") if source else ""
    line_end = "" if text.endswith("\n") else "\n"
    return "\n\n".join([*parts, f"{fence}{extension}\n{text}{line_end}{fence}"])


def _arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument("text", metavar="TEXT", help="what to send; - reads it from stdin")
    parser.add_argument(
        "--from",
        metavar="FILE:LINES",
        dest="source",
        help="origin of the text, such as src/pump.py:10-24; shown to the agent",
    )
    parser.add_argument("--ask", metavar="QUESTION", help="instruction that goes with the text")
    parser.add_argument(
        "--later",
        action="store_true",
        help="deliver to a running agent at the end of its turn, not before its next step",
    )


def _send(arguments: Namespace) -> int:
    text = command.text(arguments.text)
    if not text.strip():
        raise CommandError("ConfigError", "the text to send is empty", 2)
    connection = Connection(run=arguments.run)
    row = connection.call("state", {"ref": arguments.ref})
    text_sent = format_quote(text, arguments.source or "", arguments.ask or "")
    # For an idle agent the text becomes a query. If the agent's state has just changed, the agent still gets the text.
    later = arguments.later or row["pending"] is None
    sent = connection.call("steer", {"ref": row["id"], "text": text_sent, "follow_up": later})
    command.print_result(arguments, sent, sent["steer_id"] or sent["query_id"])
    return 0


VERBS = {
    "send": CliCommand(
        "Send text to an agent, for use from editors. A running agent receives it before its next step; an "
        "idle agent is queried with it. Prints the id of the message or query.",
        "orch send latest - --from src/pump.py:10-24 --ask 'Why is this slow?' < selection",
        _arguments,
        _send,
    ),
}
