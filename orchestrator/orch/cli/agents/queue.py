"""`orch queue`: what was said to an agent that works and waits until it hears it."""

from __future__ import annotations

import sys

from ...client.connection import Connection
from ...client.failure import CommandError
from ...render import terminal
from .. import command
from ..command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS"]

MODES = ("one-at-a-time", "all")
HEAD = ("ID", "HEARD", "AGE", "TEXT")


def _arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument("--clear", metavar="ID", action="append", default=[], help="take back what goes by that id")
    parser.add_argument("--clear-all", action="store_true", help="take back all of it")
    parser.add_argument("--steering", choices=MODES, help="how much it hears at once while it works")
    parser.add_argument("--follow-up", choices=MODES, help="how much it hears at once when it would stop")


def _queue(arguments: Namespace) -> int:
    if arguments.clear and arguments.clear_all:
        raise CommandError("UsageError", "--clear-all takes back what --clear names, and the rest", 2)
    connection = Connection()
    if arguments.steering or arguments.follow_up:
        modes = {"steering": arguments.steering, "follow_up": arguments.follow_up}
        connection.call("set_queue", {"ref": arguments.ref} | modes)
    if arguments.clear or arguments.clear_all:
        shown = connection.call("clear_queue", {"ref": arguments.ref, "ids": arguments.clear or None})
    else:
        shown = connection.call("queue", {"ref": arguments.ref})
    command.print_result(arguments, shown, _page(shown["waiting"]))
    if not shown["waiting"] and not arguments.json:
        print("orch: nothing waits to be heard", file=sys.stderr)
    return 0


def _page(waiting: list[dict[str, Any]]) -> str:
    cells = [
        [
            said["id"],
            "at its end" if said["follow_up"] else "next",
            terminal.age(said["at"]),
            terminal.truncate_line(said["text"]),
        ]
        for said in waiting
    ]
    return terminal.format_columns([list(HEAD), *cells], frozenset()) if cells else ""


VERBS = {
    "queue": CliCommand(
        "Show what was said to an agent and it has not heard yet. What is taken back is shown once more.",
        "orch queue 1 --clear 1f22a6cc",
        _arguments,
        _queue,
    )
}
