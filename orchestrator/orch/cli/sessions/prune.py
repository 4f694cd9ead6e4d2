"""`orch session prune`: deleting for good what was said to agents that were killed long ago."""

from __future__ import annotations

from ...client.connection import Connection
from ...render import terminal
from .. import command
from ..command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["ACTIONS"]

HEAD = ["#", "ID", "NAME", "AGE", "BYTES", "TITLE"]
RIGHT = frozenset({0, 3, 4})


def _arguments(parser: ArgumentParser) -> None:
    told = "agents that were over longer ago: 90m, 12h, 30d, 8w"
    parser.add_argument("--older-than", metavar="AGE", required=True, action=command.SetOnce, help=told)
    told = "the N of them that were active last"
    parser.add_argument("--keep", type=command.count, metavar="N", default=0, action=command.SetOnce, help=told)
    parser.add_argument(
        "--idle", action="store_true", help="also those that nobody ended, and nobody asked for as long"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted, and delete nothing")


def _prune(arguments: Namespace) -> int:
    asked = {"older": arguments.older_than, "keep": arguments.keep, "idle": arguments.idle}
    pruned: dict[str, Any] = Connection().call("prune_sessions", asked | {"dry_run": arguments.dry_run})
    rows = pruned["sessions"]
    return command.print_deleted(arguments, pruned, rows, "session", _table)


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [
        [
            *(str(row["seq"]), row["id"], terminal.truncate_line(row["name"], 24), terminal.age(row["last_activity"])),
            *(f"{row['bytes']:,}", terminal.truncate_line(row["title"])),
        ]
        for row in rows
    ]
    return terminal.format_columns([HEAD, *cells], RIGHT)


ACTIONS = {
    "prune": (
        "delete old ones for good",
        CliCommand(
            "Delete for good the sessions of agents that were killed, or never came up, and that nobody touched since. "
            "With --idle also of those that nobody ended: they are killed first. One below which something is not over "
            "stays. Exits with 4 when one has a process still: then it stays.",
            "orch session prune --older-than 30d --dry-run",
            _arguments,
            _prune,
        ),
    ),
}
