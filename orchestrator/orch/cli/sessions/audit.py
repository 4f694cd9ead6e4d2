"""The command `orch session audit` shows all events in a session file, and verifies the file's checksum chain."""

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
    parser.add_argument("key", metavar="KEY|FILE", help="agent number, id or unique prefix, or name; or a file")
    command.run_argument(parser)
    parser.add_argument("--turn", metavar="QUERY", help="only events of this query")


def _audit(arguments: Namespace) -> int:
    from pathlib import Path

    import msgspec

    from ...sessions.audit import audit

    turn = arguments.turn
    all_rows = audit(Path(_file(arguments)))
    rows = [row for row in all_rows if turn is None or row.what == "damage" or row.turn == turn]
    remarks = [row for row in rows if row.remark]
    for row in remarks:
        print(f"orch: line {row.line}: {row.remark}", file=sys.stderr)
    if turn is not None and all(row.turn != turn for row in rows):
        raise CommandError(
            "EntryNotFoundError", f"the session has no query {turn!r}: list its queries with --json (field `turn`)", 3
        )
    command.print_result(arguments, [msgspec.to_builtins(row) for row in rows], table(rows))
    return 1 if remarks else 0


def _file(arguments: Namespace) -> str:
    """Return the session file for `arguments.key`, which is a file name or the name of an agent.

    The name of an agent may look like a file name.
    """
    key: str = arguments.key
    looks_like_file = command.is_file(key)
    if looks_like_file and (os.path.sep in key or os.path.exists(key)):
        return key
    connection = Connection(run=arguments.run)
    try:
        state = connection.call("state", {"ref": key})
    except CommandError as failure:
        if failure.kind != "AgentNotFoundError" or not (looks_like_file or os.path.isfile(key)):
            raise
        return key
    finally:
        connection.close()
    return os.path.join(state["folder"], "session.jsonl")


ACTIONS = {
    "audit": (
        "show every recorded event, and verify the checksum chain",
        CliCommand(
            "Show every event recorded in a session file: prompts, tool calls, results, replies, usage, "
            "branches, archives. Verifies the checksum chain; exit code 1 if a line does not match.",
            "orch session audit reader --json",
            _arguments,
            _audit,
        ),
    ),
}
