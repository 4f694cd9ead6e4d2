"""Table of the audit trail of a session."""

from __future__ import annotations

from . import terminal
from .columns import format_columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sessions.audit import AuditRow

__all__ = ["table"]

HEAD = ["LINE", "AT", "WHAT", "NAME", "TOKENS", "COST", "TEXT"]
RIGHT = frozenset({0, 4, 5})


def table(rows: list[AuditRow]) -> str:
    """Return the events as a table."""
    return format_columns([HEAD, *map(_cells, rows)], RIGHT, text={6})


def _cells(row: AuditRow) -> list[str]:
    what = f"{row.what}, an error" if row.is_error else row.what
    cost = "" if not row.tokens or row.cost_usd is None else f"${row.cost_usd:.4f}"
    tokens = terminal.count(row.tokens) if row.tokens else ""
    at = row.at.partition(".")[0].replace("T", " ")
    return [
        str(row.line),
        at,
        what,
        terminal.one_line(row.name),
        tokens,
        cost,
        terminal.one_line(row.text),
    ]
