"""The command `orch runs`."""

from __future__ import annotations

import sys

from ...client.connection import Connection
from ...render import terminal
from ...render.columns import format_columns
from .. import command
from ..command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS"]

HEAD = ["RUN", "STATE", "AGENTS", "BUSY", "COST", "ACTIVE", "FOLDER"]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--running", action="store_true", help="only runs whose program is running")


def _runs(arguments: Namespace) -> int:
    rows = [row for row in Connection().call("runs") if row["pid"] or not arguments.running]
    command.print_result(arguments, rows, _table(rows))
    for row in [] if arguments.json else rows:
        if row["error"]:
            print(f"orch: run {terminal.safe(row['name'])}: {terminal.one_line(row['error'])}", file=sys.stderr)
    return 0


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            terminal.safe(row["name"]),
            f"process {row['pid']}" if row["pid"] else row["state"],
            str(row["agents"]),
            str(row["busy"] or ""),
            terminal.format_cost(row) if not row["error"] else "",
            terminal.age(row["last_activity"]) if row["last_activity"] else "",
            terminal.safe(row["cwd"]),
        ]
        for row in rows
    ]
    return format_columns([HEAD, *lines], {2, 3, 4, 5}, paths={6}) if rows else ""


VERBS = {
    "runs": CliCommand(
        "List the runs of the daemon and of programs, most recently active first. Verbs with --run read one of them.",
        "orch runs --running",
        _arguments,
        _runs,
    )
}
