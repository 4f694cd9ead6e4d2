"""The command `orch queue` shows or retracts messages that an agent has not received yet."""

from __future__ import annotations

import sys

from ...client.connection import Connection
from ...client.failure import CommandError
from ...render import terminal
from ...render.columns import format_columns
from .. import command
from ..command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS"]

MODES = ("one-at-a-time", "all")
HEAD = ("ID", "DELIVERED", "AGE", "TEXT")


def _arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument("--clear", metavar="ID", action="append", default=[], help="retract the message with this id")
    parser.add_argument("--clear-all", action="store_true", help="retract all messages")
    parser.add_argument("--steering", choices=MODES, help="number of messages delivered at once during a turn")
    parser.add_argument("--follow-up", choices=MODES, help="number of messages delivered at once at the end of a turn")


def _queue(arguments: Namespace) -> int:
    if arguments.clear and arguments.clear_all:
        raise CommandError("UsageError", "--clear-all and --clear cannot be combined; leave one out", 2)
    connection = Connection(run=arguments.run)
    if arguments.steering or arguments.follow_up:
        modes = {"steering": arguments.steering, "follow_up": arguments.follow_up}
        connection.call("set_queue", {"ref": arguments.ref} | modes)
    if arguments.clear or arguments.clear_all:
        shown = connection.call("clear_queue", {"ref": arguments.ref, "ids": arguments.clear or None})
    else:
        shown = connection.call("queue", {"ref": arguments.ref})
    command.print_result(arguments, shown, _page(shown["waiting"]))
    if not shown["waiting"] and not arguments.json:
        print("orch: the queue is empty", file=sys.stderr)
    return 0


def _page(waiting: list[dict[str, Any]]) -> str:
    cells = [
        [
            message["id"],
            "after the turn" if message["follow_up"] else "next step",
            terminal.age(message["at"]),
            terminal.one_line(message["text"]),
        ]
        for message in waiting
    ]
    return format_columns([list(HEAD), *cells], text={3}) if cells else ""


VERBS = {
    "queue": CliCommand(
        "Show the messages that an agent has not received yet. Retracted messages are printed.",
        "orch queue 1 --clear 1f22a6cc",
        _arguments,
        _queue,
    )
}
