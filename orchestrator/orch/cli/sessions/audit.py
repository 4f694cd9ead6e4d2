"""`orch session audit`: everything that happened in a session, as the chain of its file has it."""

from __future__ import annotations

import os
import sys

from ...client.connection import Connection
from ...client.failure import CommandError
from ...render.audit import table
from .. import command
from ..command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


__all__ = ["ACTIONS"]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY|FILE", help="number, id, beginning of one, or name of an agent; or a file")
    parser.add_argument("--turn", metavar="QUERY", help="what belongs to one query alone")


def _audit(arguments: Namespace) -> int:
    from pathlib import Path

    import msgspec

    from ...sessions.audit import audit

    turn = arguments.turn
    every = audit(Path(_file(arguments.key)))
    rows = [row for row in every if turn is None or row.what == "damage" or row.turn == turn]
    remarks = [row for row in rows if row.remark]
    for row in remarks:
        print(f"orch: line {row.line}: {row.remark}", file=sys.stderr)
    if turn is not None and all(row.turn != turn for row in rows):
        raise CommandError(
            "EntryNotFoundError", f"it has no query {turn!r}: --json alone tells which it has, as `turn`", 3
        )
    command.print_result(arguments, [msgspec.to_builtins(row) for row in rows], table(rows))
    return 1 if remarks else 0


def _file(key: str) -> str:
    """Return the file that `key` means, whatever it is called: no agent is. An agent may be called as a file is."""
    looks = command.is_file(key)
    if looks and (os.path.sep in key or os.path.exists(key)):
        return key
    connection = Connection()
    try:
        state = connection.call("state", {"ref": key})
    except CommandError as failure:
        if failure.kind != "AgentNotFoundError" or not (looks or os.path.isfile(key)):
            raise
        return key
    finally:
        connection.close()
    return os.path.join(state["folder"], "session.jsonl")


ACTIONS = {
    "audit": (
        "everything that happened in it, as the chain of its file has it",
        CliCommand(
            "Show everything that a session's file says happened: prompts, calls and their arguments, results, "
            "replies, what they took, branches, archives. Each line is checked against the one before "
            "it; exits with 1 where one does not fit. It cannot be switched off.",
            "orch session audit reader --json",
            _arguments,
            _audit,
        ),
    ),
}
