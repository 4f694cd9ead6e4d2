"""`orch forget`: delete a session permanently."""

from __future__ import annotations

import sys

from ...client.connection import Connection
from ...client.failure import CommandError
from ...render import terminal
from .. import command
from ..command import CliCommand
from .prune import session_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS"]


def _arguments(parser: ArgumentParser) -> None:
    help = "number, id, unique prefix of an id, or name of an agent; latest; or the id of any session below ORCH_HOME"
    parser.add_argument("session", metavar="SESSION", help=help)
    parser.add_argument("--run", metavar="NAME", help="SESSION is an agent of this run of a program; see `orch runs`")
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted, and delete nothing")


def _forget(arguments: Namespace) -> int:
    needs_confirmation = not arguments.yes and not arguments.dry_run
    if needs_confirmation and (arguments.json or sys.stdin is None or not sys.stdin.isatty()):
        raise CommandError("UsageError", "orch forget asks before it deletes: run it at a terminal, or add --yes", 2)
    connection, params = Connection(), {"ref": arguments.session}
    if arguments.run is not None:
        params["ref"] = Connection(run=arguments.run).call("state", {"ref": arguments.session})["id"]
    if needs_confirmation or arguments.dry_run:
        preview: dict[str, Any] = connection.call("forget_session", params | {"dry_run": True})
        if arguments.dry_run:
            command.print_result(arguments, preview, _text(preview, "would delete"))
            return 0
        print(_text(preview, "to delete permanently:"))
        if not command.confirm():
            raise CommandError("Cancelled", "nothing was deleted", 1)
    result: dict[str, Any] = connection.call("forget_session", params)
    command.print_result(arguments, result, _text(result, "deleted"))
    return 0


def _text(result: dict[str, Any], verb: str) -> str:
    rows, archives = result["sessions"], result["archives"]
    amount = f"{terminal.pluralize(len(rows), 'session')}, {terminal.pluralize(archives, 'archive')}"
    return f"{session_table(rows)}\n{verb} {amount}, {result['bytes']:,} bytes"


VERBS = {
    "forget": CliCommand(
        "Delete permanently the session of an agent and those of all agents below it: transcripts, archives, search "
        "indexes, stored values, and their prompts and answers in the journal. Idle agents are killed. Exits with 4 "
        "when one is busy: then nothing is deleted. Copies, exports and what other agents were told stay.",
        "orch forget reader",
        _arguments,
        _forget,
    )
}
