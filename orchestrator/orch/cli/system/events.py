"""`orch events`: what happened to agents, by number, from wherever one left off."""

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

PAGE = 1000
WAIT = 30.0


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--since", type=command.non_negative_int, default=0, metavar="N", help="what comes after event N (0: all)"
    )
    parser.add_argument("--ref", help="of one agent alone")
    parser.add_argument("--follow", action="store_true", help="go on with what happens from now on, until interrupted")


def _events(arguments: Namespace) -> int:
    since, connection = arguments.since, Connection()
    while True:
        params = {"since": since, "ref": arguments.ref, "most": PAGE, "seconds": WAIT if arguments.follow else 0.0}
        rows = connection.call("events", params)
        for row in rows:
            print(to_json(row) if arguments.json else _line(row), flush=True)
        if rows:
            since = rows[-1]["n"]
        if len(rows) < PAGE and not arguments.follow:
            return 0


def _line(row: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"]))
    told = " ".join(f"{name}={value}" for name, value in row["data"].items() if isinstance(value, (str, int)) and value)
    turn = f" turn={row['turn']}" if row["turn"] else ""
    return terminal.safe(f"{row['n']:>6}  {at}  {row['kind']:<21} {row['agent_id']}{turn} {told}".rstrip())


VERBS = {
    "events": CliCommand(
        "Show what happened: agents that came up, were asked, answered, archived or ended, each with a number. With "
        "--json a line of JSON for each.",
        "orch events --since 120 --follow",
        _arguments,
        _events,
    )
}
