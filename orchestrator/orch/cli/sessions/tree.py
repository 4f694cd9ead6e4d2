"""`orch session list`, `show`, `tree` and `compact`."""

from __future__ import annotations

import sys

from ...client.connection import Connection
from ...render.sessions import LAST, compaction, latest, page, table, tree_lines
from .. import command
from ..command import CliCommand, key_argument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["ACTIONS"]


def _session(arguments: Namespace, most: int | None) -> dict[str, Any]:
    shown: dict[str, Any] = Connection().call("session", {"ref": arguments.key, "most": most})
    return shown


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="those of killed agents too")
    parser.add_argument("--runs", action="store_true", help="with --json: those of programs too, as the table has them")


def _list(arguments: Namespace) -> int:
    rows = latest(Connection().call("list", {"all": arguments.all, "runs": arguments.runs or not arguments.json}))
    command.print_result(arguments, rows, table(command.without_deleted(rows)) if rows else "")
    if not rows and not arguments.json:
        print("orch: there is no session yet; orch spawn TASK begins one", file=sys.stderr)
    return 0


def _show(arguments: Namespace) -> int:
    shown = _session(arguments, None if arguments.json else LAST)
    command.print_result(arguments, shown, "" if arguments.json else page(shown))
    return 0


def _tree_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("--all", action="store_true", help="every entry, not only those in which something was said")


def _tree(arguments: Namespace) -> int:
    shown = _session(arguments, None)
    command.print_result(
        arguments, shown, "" if arguments.json else "\n".join(tree_lines(shown["entries"], every=arguments.all))
    )
    return 0


def _compact_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("--instructions", metavar="TEXT", default="", help="what its writer is told; - is stdin")


def _compact(arguments: Namespace) -> int:
    asked = {"ref": arguments.key, "instructions": command.text(arguments.instructions)}
    done = Connection().call("compact", asked)
    command.print_result(arguments, done, "" if arguments.json else compaction(done))
    return 0


ACTIONS = {
    "list": (
        "sessions, those that were active last first",
        CliCommand("List sessions: one an agent, the latest first.", "orch session list", _list_arguments, _list),
    ),
    "show": (
        "one session: where it is, its branches, what was said last",
        CliCommand(
            "Show a session. With --json all of its entries, each with its head.",
            "orch session show latest",
            key_argument,
            _show,
        ),
    ),
    "tree": (
        "everything that was said, branch by branch",
        CliCommand(
            "Draw the tree of a session; * is what the conversation has now.",
            "orch session tree reader",
            _tree_arguments,
            _tree,
        ),
    ),
    "compact": (
        "let what was said first give way to a summary",
        CliCommand(
            "Compact a conversation between turns: a summary takes the place of all but the last ones.",
            "orch session compact reader --instructions 'Keep every figure.'",
            _compact_arguments,
            _compact,
        ),
    ),
}
