"""`orch session inform`, `keep`, `kept`: what programs put into a session, for its model or for themselves."""

from __future__ import annotations

import json

from ...client.connection import Connection
from ...client.failure import CommandError
from ...render import terminal
from ...render.terminal import to_json
from .. import command
from ..command import CliCommand, key_argument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["ACTIONS"]


def _inform_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("text", metavar="TEXT", help="what the model is to know; - reads it from stdin")
    parser.add_argument("--kind", action=command.SetOnce, help="what it is, for programs (note)")
    parser.add_argument("--hidden", action="store_true", help="people are not shown it, where a program asks whether")


def _inform(arguments: Namespace) -> int:
    told = {"type": "add_message", "custom_type": arguments.kind or "note", "text": command.text(arguments.text)}
    changed = _changed(arguments, told | {"display": not arguments.hidden})
    command.print_result(arguments, changed, changed["entry"])
    return 0


def _keep_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("kind", metavar="KIND", help="what it is, by which it is found again")
    parser.add_argument("data", metavar="JSON", help="what is kept; - reads it from stdin")


def _keep(arguments: Namespace) -> int:
    try:
        data = json.loads(command.text(arguments.data))
        json.dumps(data, allow_nan=False)  # Python reads NaN, and what is too large as infinite
    except (ValueError, RecursionError) as error:
        what = 'what is kept is JSON, such as {"count": 3} or "text"'
        raise CommandError("UsageError", f"{what}: {error}", 2) from error
    changed = _changed(arguments, {"type": "set_metadata", "custom_type": arguments.kind, "data": data})
    command.print_result(arguments, changed, changed["entry"])
    return 0


def _kept_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("kind", metavar="KIND", nargs="?", help="of this kind alone")


def _kept(arguments: Namespace) -> int:
    rows = Connection().call("list_session_metadata", {"ref": arguments.key, "custom_type": arguments.kind})
    cells = [[row["entry"], terminal.safe(row["custom_type"]), terminal.safe(to_json(row["data"]))] for row in rows]
    command.print_result(
        arguments, rows, terminal.format_columns([["ENTRY", "KIND", "DATA"], *cells], frozenset()) if cells else ""
    )
    return 0


def _changed(arguments: Namespace, change: dict[str, Any]) -> dict[str, Any]:
    asked = {"ref": arguments.key, "change": change}
    changed: dict[str, Any] = Connection().call("change_session", asked)
    return changed


ACTIONS = {
    "inform": (
        "tell the model something between turns, without asking",
        CliCommand(
            "Put something before the model, which it reads with the next question. Prints the entry's id.",
            "orch session inform reader 'Valve 7 was replaced.'",
            _inform_arguments,
            _inform,
        ),
    ),
    "keep": (
        "keep JSON data with a session, which no model is told",
        CliCommand(
            "Keep data with a session, for programs alone. Prints the entry's id.",
            "orch session keep reader progress '{\"page\": 7}'",
            _keep_arguments,
            _keep,
        ),
    ),
    "kept": (
        "what is kept with a session",
        CliCommand(
            "Print what programs keep with a session, in order, as far as the conversation went past it.",
            "orch session kept reader progress",
            _kept_arguments,
            _kept,
        ),
    ),
}
