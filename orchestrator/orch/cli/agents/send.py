"""The verb that editors bind to a key: a piece of a file, or any text, goes to an agent, whatever that does."""

from __future__ import annotations

import os

from ...client.connection import Connection
from ...client.failure import CommandError
from .. import command
from ..command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["VERBS", "quoted"]

FENCE = "```"


def quoted(text: str, source: str = "", question: str = "") -> str:
    """Return what is said of `text`: the question first, then the text as it is, in a fence that it cannot close."""
    fence = FENCE
    while fence in text:
        fence += "`"
    head = [question] if question else []
    head += [f"From {source}:"] if source else []
    if not head:
        return text
    extension = os.path.splitext(source.rpartition(":")[0] or source)[1].lstrip(".") if source else ""
    end = "" if text.endswith("\n") else "\n"
    return "\n\n".join([*head, f"{fence}{extension}\n{text}{end}{fence}"])


def _arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument("text", metavar="TEXT", help="what to send; - reads it from stdin")
    parser.add_argument("--from", metavar="FILE:LINES", dest="source", help="where the text is from, which is told")
    parser.add_argument("--ask", metavar="QUESTION", help="what is to be done with it")
    parser.add_argument(
        "--later", action="store_true", help="an agent that works hears it when it would stop, not before its next step"
    )


def _send(arguments: Namespace) -> int:
    text = command.text(arguments.text)
    if not text.strip():
        raise CommandError("ConfigError", "there is nothing to send: the text is empty", 2)
    connection = Connection()
    row = connection.call("state", {"ref": arguments.ref})
    said = quoted(text, arguments.source or "", arguments.ask or "")
    # An agent that idles is asked it; one that has just become idle, or busy, gets it all the same.
    later = arguments.later or row["pending"] is None
    sent = connection.call("steer", {"ref": row["id"], "text": said, "follow_up": later})
    command.print_result(arguments, sent, sent["steer_id"] or sent["query_id"])
    return 0


VERBS = {
    "send": CliCommand(
        "Send a text to an agent: one that works hears it before its next step, one that idles is asked it. For "
        "editors: bind a key to it. Prints the id of what was said, or asked.",
        "orch send latest - --from src/pump.py:10-24 --ask 'Why is this slow?' < selection",
        _arguments,
        _send,
    ),
}
