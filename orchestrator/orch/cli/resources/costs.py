"""The command `orch costs` shows the daily usage of models and tools."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

import msgspec

from ...client.connection import Connection
from ...config import config, paths
from ...policy.hook_records import EVIDENCE
from ...render import terminal
from ...render.columns import format_columns
from ...sessions.daily_usage import COSTS, DailyUsage, add_usage, daily_usage
from .. import command
from ..command import CliCommand

__all__ = ["VERBS"]

MODEL_COLUMNS: Final = ["DAY", "MODEL", "CALLS", "IN", "OUT", "CACHED", "COST"]
TOOL_COLUMNS: Final = ["TOOL", "CALLS", "ERRORS"]


def _arguments(parser: ArgumentParser) -> None:
    command.run_argument(parser)
    parser.add_argument(
        "--days", metavar="N", type=command.positive_int, default=7, help="number of latest days with usage (7)"
    )


def _costs(arguments: Namespace) -> int:
    home = paths.home(os.environ)
    sessions = paths.sessions_of(home, config.load(Path.cwd(), os.environ).config.session_dir)
    only = None
    if arguments.run is not None:
        rows = Connection(run=arguments.run).call("list", {"all": True, "runs": False})
        only = [row["folder"] for row in rows]
    unread: list[str] = []
    found = daily_usage(sessions, home / EVIDENCE / COSTS, only, unread.append)
    days = dict(list(found.items())[: arguments.days])
    where = f"in {sessions}" if arguments.run is None else f"of the run {arguments.run!r}"
    text = _page(days) if days else f"no costs: no session {terminal.safe(where)} contains a request"
    command.print_result(arguments, msgspec.to_builtins(days), text)
    if unread:
        files = terminal.pluralize(len(unread), "session file")
        print(f"orch: {files} not counted; the first: {terminal.safe(unread[0])}", file=sys.stderr)
    return 0


def _page(days: dict[str, DailyUsage]) -> str:
    total = DailyUsage()
    rows = [MODEL_COLUMNS]
    for day, daily in days.items():
        total = add_usage(total, daily)
        for name, model in sorted(daily.models.items(), key=lambda each: -each[1].usage.cost_usd):
            usage = model.usage
            counts = (model.requests, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens)
            cost = terminal.format_cost(msgspec.structs.asdict(usage))
            rows.append([day, terminal.one_line(name), *map(terminal.count, counts), cost])
    tool_rows = [
        [terminal.one_line(name), str(tool.calls), str(tool.errors)]
        for name, tool in sorted(total.tools.items(), key=lambda each: -each[1].calls)
    ]
    parts = [format_columns(rows, {2, 3, 4, 5, 6}), f"${total.cost_usd:.4f} in all"]
    if tool_rows:
        parts.append("\n" + format_columns([TOOL_COLUMNS, *tool_rows], {1, 2}))
    return "\n".join(parts)


VERBS = {
    "costs": CliCommand(
        "Show the daily usage and cost (UTC) of models and tools, from the sessions of all agents, also of programs.",
        "orch costs --days 30",
        _arguments,
        _costs,
    )
}
