"""What the columns of a table hold: kinds of values, how many are missing, their range. Pure."""

from __future__ import annotations

import datetime
import math
import numbers
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any, Final

__all__ = ["Column", "Columns", "cell", "dated", "typed"]

MAX_COLUMNS: Final = 1_000
MAX_DISTINCT: Final = 500
MAX_KEY: Final = 120
COMMON: Final = 3
MAX_CELL: Final = 60
HUGE: Final = 10**300  # past what a mean can be taken of

MISSING: Final = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "nat"})
INTEGER: Final = re.compile(r"[-+]?(0|[1-9]\d{0,39})")
NUMBER: Final = re.compile(r"[-+]?(\d{1,40}\.\d*|\.\d+|\d{1,40})([eE][-+]?\d{1,3})?")
DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")
CODE: Final = re.compile(r"[-+]?0\d")  # a number to nobody who writes the zero: a postcode, a part


class Date(str):
    """A day, as text that sorts."""

    __slots__ = ()


class Moment(str):
    """A day and a time, as text that sorts."""

    __slots__ = ()


PLAIN: Final = {type(None): "", bool: "boolean", str: "text", Date: "date", Moment: "time"}
MEASURED: Final = frozenset({"date", "time"})


class Column:
    """What was seen of one column; `declared` is the type it says of itself."""

    def __init__(self, name: str, declared: str = "") -> None:
        self.name = name
        self.declared = declared
        self.count = 0
        """How many values there are; the missing ones are not counted."""
        self._kinds: Counter[str] = Counter()
        self._ranges: dict[str, tuple[Any, Any]] = {}
        self._sum = 0.0
        self._values: Counter[str] | None = Counter()

    def add(self, value: Any) -> None:
        """Take a value in."""
        kind, measure = _measured(value)
        if not kind:
            return
        self.count += 1
        self._kinds[kind] += 1
        if measure is not None:
            low, high = self._ranges.get(kind, (measure, measure))
            self._ranges[kind] = (min(low, measure), max(high, measure))
        if kind in ("integer", "number"):
            self._sum += measure
        if self._values is not None:
            self._values[_cut(str(value), MAX_KEY)] += 1
            if len(self._values) > MAX_DISTINCT:
                self._values = None

    @property
    def kind(self) -> str:
        """What the values are; of several kinds, each with how many."""
        kinds = dict(self._kinds)
        for wide, narrow in (("number", "integer"), ("time", "date")):
            if wide in kinds and narrow in kinds:
                kinds[wide] += kinds.pop(narrow)
        if len(kinds) < 2:
            found = next(iter(kinds), "nothing")
        else:
            found = "mixed: " + ", ".join(f"{kind} {count:,}" for kind, count in Counter(kinds).most_common())
        return f"{found} ({self.declared})" if self.declared else found

    @property
    def distinct(self) -> str:
        """How many different values there are."""
        return f">{MAX_DISTINCT:,}" if self._values is None else f"{len(self._values):,}"

    def range(self) -> str:
        """Return the extent of the values: of numbers and dates, else the most common ones, else the lengths."""
        kinds = set(self._kinds)
        if kinds and kinds <= {"integer", "number"}:
            low, high = self._extent("integer", "number")
            return f"{_number(low)} to {_number(high)}, mean {_number(self._sum / self.count)}"
        if kinds and kinds <= {"date", "time"}:
            low, high = self._extent("date", "time")
            return f"{low} to {high}"
        if self._values is not None and (len(self._values) < self.count or len(self._values) == 1):
            common = self._values.most_common(COMMON)
            more = ", ..." if len(self._values) > COMMON else ""
            return ", ".join(f"{_cut(value, MAX_CELL)!r} {count:,}" for value, count in common) + more
        low, high = self._ranges.get("text", (None, None))
        return "" if low is None else f"{low:,} to {high:,} characters"

    def _extent(self, *kinds: str) -> tuple[Any, Any]:
        ranges = [self._ranges[kind] for kind in kinds if kind in self._ranges]
        return min(low for low, _ in ranges), max(high for _, high in ranges)


class Columns:
    """The columns of a table whose rows come one by one; the first `shown` rows are kept."""

    def __init__(self, names: Iterable[str] = (), declared: Mapping[str, str] | None = None, shown: int = 5) -> None:
        self.rows = 0
        self.left_out = False
        """Whether there are more columns than are kept."""
        self._declared = declared or {}
        self._columns: dict[str, Column] = {}
        self._shown = shown
        self._head: list[Mapping[str, Any]] = []
        for name in names:
            self._column(name)

    def add(self, row: Mapping[str, Any]) -> None:
        """Take a row in: what it does not hold is missing."""
        self.rows += 1
        if len(self._head) < self._shown:
            self._head.append(row)
        for name, value in row.items():
            column = self._columns.get(name) or self._column(str(name))
            if column is not None:
                column.add(value)

    def text(self) -> str:
        """Return the table of columns, and the first rows."""
        lines = ["column | type | missing | distinct | values"]
        lines += [
            f"{cell(each.name)} | {each.kind} | {self.rows - each.count:,} | {each.distinct} | {each.range()}"
            for each in self._columns.values()
        ]
        if self.left_out:
            lines.append(f"[more than {MAX_COLUMNS:,} columns: the others are left out]")
        if self._head:
            lines += ["", f"The first {len(self._head):,} of {self.rows:,} rows:"]
            lines += [" | ".join(map(cell, self._columns))]
            lines += [" | ".join(cell(row.get(name)) for name in self._columns) for row in self._head]
        return "\n".join(lines)

    def __len__(self) -> int:
        return len(self._columns)

    def _column(self, name: str) -> Column | None:
        if name not in self._columns:
            if len(self._columns) >= MAX_COLUMNS:
                self.left_out = True
                return None
            self._columns[name] = Column(name, self._declared.get(name, ""))
        return self._columns[name]


def typed(text: str) -> Any:
    """Return what a cell of text stands for: None for nothing, a number, a truth, a day; else the text itself."""
    text = text.strip()
    if text.lower() in MISSING:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if CODE.match(text):
        return text
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else dated(text)


def dated(text: str) -> str:
    """Return `text`, marked as what it is if it is a day or a time by ISO 8601."""
    if not (DATE.fullmatch(text) or TIME.fullmatch(text)):
        return text
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return text
    return Date(text) if len(text) == len("2026-01-01") else Moment(text)


def _measured(value: Any) -> tuple[str, Any]:
    """Return the kind of `value`, "" for a missing one, and what of it has a smallest and a largest."""
    if (kind := PLAIN.get(type(value))) is not None:
        return kind, value if kind in MEASURED else len(value) if kind == "text" else None
    match value:
        case str():
            return "text", len(value)
        case datetime.datetime():
            return ("", None) if value != value else ("time", Moment(value.isoformat(" ")))
        case datetime.date():
            return "date", Date(value.isoformat())
        case numbers.Integral():
            return ("integer", int(value)) if abs(int(value)) < HUGE else ("huge integer", None)
        case numbers.Real() | Decimal():
            number = float(value)
            return ("", None) if math.isnan(number) else ("number", number)
        case Mapping():
            return "object", None
        case bytes():
            return "bytes", None
        case Sequence() | set():
            return "list", None
    name = type(value).__name__
    return ("", None) if name in ("NAType", "NaTType") else ("boolean" if name.startswith("bool") else name, None)


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value)
    return _cut(" ".join(islice(text[: 4 * MAX_CELL].split(), MAX_CELL)).replace("|", "\\|"), MAX_CELL)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
