"""The commands `orch session list`, `show`, `tree` and `compact`."""

from __future__ import annotations

import sys

from ...client.calling_agent import calling_agent
from ...client.connection import Connection
from ...render.sessions import LAST, compaction, latest, page, table, tree_lines
from .. import command
from ..command import CliCommand, key_argument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["ACTIONS"]


def _session(arguments: Namespace, limit: int | None) -> dict[str, Any]:
    shown: dict[str, Any] = Connection(run=arguments.run).call("session", {"ref": arguments.key, "limit": limit})
    return shown


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="include sessions of killed agents")
    parser.add_argument(
        "--runs", action="store_true", help="with --json: include sessions of programs, as the table does"
    )
    command.run_argument(parser)


def _list(arguments: Namespace) -> int:
    runs = arguments.run is None and (arguments.runs or (not arguments.json and calling_agent() is None))
    rows = latest(Connection(run=arguments.run).call("list", {"all": arguments.all, "runs": runs}))
    command.print_result(arguments, rows, table(command.without_deleted(rows)) if rows else "")
    if not rows and not arguments.json:
        print("orch: no sessions; start one: orch spawn TASK", file=sys.stderr)
    return 0


def _show(arguments: Namespace) -> int:
    shown = _session(arguments, None if arguments.json else LAST)
    command.print_result(arguments, shown, "" if arguments.json else page(shown))
    return 0


def _tree_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("--all", action="store_true", help="show every entry, not only messages")


def _tree(arguments: Namespace) -> int:
    shown = _session(arguments, None)
    command.print_result(
        arguments, shown, "" if arguments.json else "\n".join(tree_lines(shown["entries"], every=arguments.all))
    )
    return 0


def _compact_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument(
        "--instructions", metavar="TEXT", default="", help="instructions for the summary; - reads them from stdin"
    )


def _compact(arguments: Namespace) -> int:
    request = {"ref": arguments.key, "instructions": command.text(arguments.instructions)}
    result = Connection(run=arguments.run).call("compact", request)
    command.print_result(arguments, result, "" if arguments.json else compaction(result))
    return 0


ACTIONS = {
    "list": (
        "list sessions, most recently active first",
        CliCommand(
            "List sessions, one for each agent, most recently active first.",
            "orch session list",
            _list_arguments,
            _list,
        ),
    ),
    "show": (
        "show one session: current entry, branches, last messages",
        CliCommand(
            "Show a session. With --json: all entries, each with its header.",
            "orch session show latest",
            key_argument,
            _show,
        ),
    ),
    "tree": (
        "draw the entries of a session as a tree",
        CliCommand(
            "Draw a session as a tree. '*' marks entries of the current conversation.",
            "orch session tree reader",
            _tree_arguments,
            _tree,
        ),
    ),
    "compact": (
        "replace older messages by a summary",
        CliCommand(
            "Compact a conversation between turns: a summary replaces all but the latest messages.",
            "orch session compact reader --instructions 'Keep every figure.'",
            _compact_arguments,
            _compact,
        ),
    ),
}
