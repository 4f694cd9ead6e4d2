"""`orch session audit`: everything that happened in a session, as the chain of its file has it."""

from __future__ import annotations

import os
import sys

from . import render, words
from .connection import Connection
from .verb import Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from ..audit import Audited

__all__ = ["ACTIONS", "table"]

HEAD = ["LINE", "AT", "WHAT", "NAME", "TOKENS", "COST", "TEXT"]
RIGHT = frozenset({0, 4, 5})


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY|FILE", help="number, id, beginning of one, or name of an agent; or a file")
    parser.add_argument("--turn", metavar="QUERY", help="what belongs to one query alone")


def _audit(arguments: Namespace) -> int:
    from pathlib import Path

    import msgspec

    from ..audit import audit

    file = arguments.key
    if not (os.path.sep in file or ".jsonl" in file):
        state = Connection().call("state", words.clean({"ref": file}))
        file = os.path.join(state["folder"], "session.jsonl")
    turn = arguments.turn
    rows = [row for row in audit(Path(file)) if turn is None or row.what == "damage" or row.turn == turn]
    remarks = [row for row in rows if row.remark]
    for row in remarks:
        print(f"orch: line {row.line}: {row.remark}", file=sys.stderr)
    words.say(arguments, [msgspec.to_builtins(row) for row in rows], table(rows))
    return 1 if remarks else 0


def table(rows: list[Audited]) -> str:
    """Return what happened as a table, one thing a line."""
    return render.columns([HEAD, *map(_cells, rows)], RIGHT)


def _cells(row: Audited) -> list[str]:
    what = f"{row.what}, an error" if row.is_error else row.what
    cost = "" if not row.tokens or row.cost_usd is None else f"${row.cost_usd:.4f}"
    tokens = render.count(row.tokens) if row.tokens else ""
    at = row.at.partition(".")[0].replace("T", " ")
    return [str(row.line), at, what, render.line(row.name, 24), tokens, cost, render.line(row.text)]


ACTIONS = {
    "audit": (
        "everything that happened in it, as the chain of its file has it",
        Verb(
            "Show everything that a session's file says happened: prompts, calls and their arguments, results, "
            "replies, what they took, branches, archives. Each line is checked against the one before "
            "it; exits with 1 where one does not fit. It cannot be switched off.",
            "orch session audit reader --json",
            _arguments,
            _audit,
        ),
    ),
}
