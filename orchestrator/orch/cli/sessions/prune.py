"""The command `orch session prune` permanently deletes old sessions of killed agents."""

from __future__ import annotations

from ...client.connection import Connection
from ...render import terminal
from ...render.columns import format_columns
from .. import command
from ..command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["ACTIONS", "session_table"]

HEAD = ["#", "ID", "NAME", "AGE", "BYTES", "TITLE"]
RIGHT = frozenset({0, 3, 4})


def _arguments(parser: ArgumentParser) -> None:
    help = "sessions of agents that ended longer ago: 90m, 12h, 30d, 8w"
    parser.add_argument("--older-than", metavar="AGE", required=True, action=command.SetOnce, help=help)
    help = "keep the N most recently active"
    parser.add_argument("--keep", type=command.count, metavar="N", default=0, action=command.SetOnce, help=help)
    parser.add_argument(
        "--idle",
        action="store_true",
        help="also idle agents that were not queried for that long; they are killed first",
    )
    command.run_argument(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted; delete nothing")


def _prune(arguments: Namespace) -> int:
    request = {"older": arguments.older_than, "keep": arguments.keep, "idle": arguments.idle}
    connection = Connection(run=arguments.run)
    result: dict[str, Any] = connection.call("prune_sessions", request | {"dry_run": arguments.dry_run})
    rows = result["sessions"]
    return command.print_deleted(arguments, result, rows, "session", session_table)


def session_table(rows: list[dict[str, Any]]) -> str:
    """Return a table of the deleted sessions."""
    cells = [
        [
            *(str(row["seq"]), row["id"], terminal.one_line(row["name"]), terminal.age(row["last_activity"])),
            *(f"{row['bytes']:,}", terminal.one_line(row["title"])),
        ]
        for row in rows
    ]
    return format_columns([HEAD, *cells], RIGHT, text={5})


ACTIONS = {
    "prune": (
        "delete old sessions permanently",
        CliCommand(
            "Permanently delete sessions of agents that were killed or never started. With --idle: also of "
            "idle agents, which are killed first. A session stays while an agent below it is not finished. "
            "Exit code 4 if a session stays because its process still runs.",
            "orch session prune --older-than 30d --dry-run",
            _arguments,
            _prune,
        ),
    ),
}
