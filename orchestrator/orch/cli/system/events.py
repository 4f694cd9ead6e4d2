"""The command `orch events` prints events of agents in order, after a given event number."""

from __future__ import annotations

import time

from ...client.connection import Connection
from ...render import terminal
from ...render.terminal import to_json
from .. import command
from ..command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS"]

PAGE_SIZE = 1000
WAIT_SECONDS = 30.0


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--since", type=command.non_negative_int, default=0, metavar="N", help="only events after number N (0: all)"
    )
    parser.add_argument("--ref", help="only events of this agent")
    command.run_argument(parser)
    parser.add_argument("--follow", action="store_true", help="wait for new events until interrupted")


def _events(arguments: Namespace) -> int:
    since, connection = arguments.since, Connection()
    while True:
        seconds = WAIT_SECONDS if arguments.follow else 0.0
        params = {
            "since": since,
            "ref": arguments.ref,
            "limit": PAGE_SIZE,
            "seconds": seconds,
            "run": arguments.run or "",
        }
        rows = connection.call("events", params)
        for row in rows:
            print(to_json(row) if arguments.json else _line(row), flush=True)
        if rows:
            since = rows[-1]["n"]
        if len(rows) < PAGE_SIZE and not arguments.follow:
            return 0


def _line(row: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"]))
    data = row["data"]
    if row["kind"] == "custom_event":
        data = data | {"data": to_json(data["data"])}
    fields = " ".join(f"{name}={value}" for name, value in data.items() if isinstance(value, (str, int)) and value)
    turn = f" turn={row['turn']}" if row["turn"] else ""
    return terminal.safe(f"{row['n']:>6}  {at}  {row['kind']:<21} {row['agent_id']}{turn} {fields}".rstrip())


VERBS = {
    "events": CliCommand(
        "Show the events of agents in order, each with a number. With --json: one JSON object per line.",
        "orch events --since 120 --follow",
        _arguments,
        _events,
    )
}
