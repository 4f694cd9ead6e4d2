"""Describes a value in a few lines: type, extent, memory size and first items. This module imports no libraries."""

from __future__ import annotations

import datetime
import math
import numbers
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from decimal import Decimal
from itertools import islice
from reprlib import Repr
from typing import Any, Final

from msgspec import Struct

__all__ = [
    "PANIC",
    "Column",
    "Columns",
    "ValueSummary",
    "cell",
    "is_array",
    "is_frame",
    "is_large",
    "is_series",
    "library_of",
    "memory_bytes",
    "one_line_repr",
    "parse_cell",
    "parse_date",
    "summarize_value",
    "type_name",
    "value_extent",
    "value_schema",
]


# --- Columns of a table ---

MAX_COLUMNS: Final = 1_000
MAX_DISTINCT: Final = 500
MAX_KEY: Final = 120
SHOWN_COMMON: Final = 3
MAX_CELL: Final = 60
HUGE: Final = 10**300  # Larger values would overflow the mean.

MISSING: Final = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "nat"})
INTEGER: Final = re.compile(r"[-+]?(0|[1-9]\d{0,39})")
NUMBER: Final = re.compile(r"[-+]?(\d{1,40}\.\d*|\.\d+|\d{1,40})([eE][-+]?\d{1,3})?")
DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")
LEADING_ZERO: Final = re.compile(r"[-+]?0\d")  # A leading zero means that the text is a code, such as a postcode.


class DateText(str):
    """A date as text that can be sorted."""

    __slots__ = ()


class TimestampText(str):
    """A date and time as text that can be sorted."""

    __slots__ = ()


KIND_OF_TYPE: Final = {type(None): "", bool: "boolean", str: "text", DateText: "date", TimestampText: "time"}
DATE_KINDS: Final = frozenset({"date", "time"})


class Column:
    """Statistics of one column. `declared` is the declared type of the column."""

    def __init__(self, name: str, declared: str = "") -> None:
        self.name = name
        self.declared = declared
        self.count = 0
        """The number of values that are not missing."""
        self._kinds: Counter[str] = Counter()
        self._ranges: dict[str, tuple[Any, Any]] = {}
        self._sum = 0.0
        self._values: Counter[str] | None = Counter()

    def add(self, value: Any) -> None:
        """Add a value."""
        kind, measure = _measure(value)
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
            self._values[_shorten(str(value), MAX_KEY)] += 1
            if len(self._values) > MAX_DISTINCT:
                self._values = None

    @property
    def kind(self) -> str:
        """The type of the values. If there are several types, the count of each type is added."""
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
        """The number of distinct values."""
        return f">{MAX_DISTINCT:,}" if self._values is None else f"{len(self._values):,}"

    def range(self) -> str:
        """Return a short description of the values.

        For numbers and dates, the description is their range. For other values, the description lists the most common
        values. If all other values differ, the description is the range of text lengths. Without texts, the description
        is "".
        """
        kinds = set(self._kinds)
        if kinds and kinds <= {"integer", "number"}:
            low, high = self._extent("integer", "number")
            return f"{_number(low)} to {_number(high)}, mean {_number(self._sum / self.count)}"
        if kinds and kinds <= {"date", "time"}:
            low, high = self._extent("date", "time")
            return f"{low} to {high}"
        if self._values is not None and (len(self._values) < self.count or len(self._values) == 1):
            common = self._values.most_common(SHOWN_COMMON)
            more = ", ..." if len(self._values) > SHOWN_COMMON else ""
            return ", ".join(f"{_shorten(value, MAX_CELL)!r} {count:,}" for value, count in common) + more
        low, high = self._ranges.get("text", (None, None))
        return "" if low is None else f"{low:,} to {high:,} characters"

    def _extent(self, *kinds: str) -> tuple[Any, Any]:
        ranges = [self._ranges[kind] for kind in kinds if kind in self._ranges]
        return min(low for low, _ in ranges), max(high for _, high in ranges)


class Columns:
    """Statistics of a table's columns. Rows are added one by one, and the first `shown` rows are kept."""

    def __init__(self, names: Iterable[str] = (), declared: Mapping[str, str] | None = None, shown: int = 5) -> None:
        self.rows = 0
        self.left_out = False
        """Whether columns were left out because there are too many."""
        self._declared = declared or {}
        self._columns: dict[str, Column] = {}
        self._shown = shown
        self._head: list[Mapping[str, Any]] = []
        for name in names:
            self._column(name)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row. A column that the row does not contain counts as a missing value."""
        self.rows += 1
        if len(self._head) < self._shown:
            self._head.append(row)
        for name, value in row.items():
            column = self._columns.get(name) or self._column(str(name))
            if column is not None:
                column.add(value)

    def text(self) -> str:
        """Return the statistics as a table, and the first rows."""
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


def parse_cell(text: str) -> Any:
    """Return the value of a text cell: a number, a boolean, a date, or otherwise the text.

    Return None for an empty cell.
    """
    text = text.strip()
    if text.lower() in MISSING:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if LEADING_ZERO.match(text):
        return text
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else parse_date(text)


def parse_date(text: str) -> str:
    """Return `text` as DateText or TimestampText if it is an ISO 8601 date or time.

    Otherwise return `text` unchanged.
    """
    if not (DATE.fullmatch(text) or TIME.fullmatch(text)):
        return text
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return text
    return DateText(text) if len(text) == len("2026-01-01") else TimestampText(text)


def _measure(value: Any) -> tuple[str, Any]:
    """Return the kind of `value` ("" if the value is missing), and the quantity for its range."""
    if (kind := KIND_OF_TYPE.get(type(value))) is not None:
        return kind, value if kind in DATE_KINDS else len(value) if kind == "text" else None
    match value:
        case str():
            return "text", len(value)
        case datetime.datetime():
            return ("", None) if value != value else ("time", TimestampText(value.isoformat(" ")))
        case datetime.date():
            return "date", DateText(value.isoformat())
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
    return _shorten(" ".join(islice(text[: 4 * MAX_CELL].split(), MAX_CELL)).replace("|", "\\|"), MAX_CELL)


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


# --- Values of data libraries, recognized by type if the library is imported ---

LIBRARIES: Final = frozenset({"numpy", "pandas", "polars"})
PANIC: Final = "PanicException"
"""The name of the exception that polars raises for unexpected bytes.

The exception class is not a subclass of Exception.
"""


def library_of(value: Any) -> str:
    """Return "numpy", "pandas" or "polars" if `value` comes from one of these libraries. Otherwise return ""."""
    name = type(value).__module__.partition(".")[0]
    return name if name in LIBRARIES and name in sys.modules else ""


def is_frame(value: Any) -> bool:
    """Return whether `value` is a data frame."""
    return _is_library_type(value, ("pandas", "polars"), "DataFrame")


def is_series(value: Any) -> bool:
    """Return whether `value` is a column of a data frame."""
    return _is_library_type(value, ("pandas", "polars"), "Series")


def is_array(value: Any) -> bool:
    """Return whether `value` is a numpy array."""
    return _is_library_type(value, ("numpy",), "ndarray")


def type_name(value: Any) -> str:
    """Return the type of `value` as text, such as `list` or `pandas.DataFrame`."""
    kind = type(value)
    package = str(kind.__module__).partition(".")[0]
    return kind.__name__ if package in ("builtins", "__main__") else f"{package}.{kind.__name__}"


def _is_library_type(value: Any, libraries: tuple[str, ...], name: str) -> bool:
    library = library_of(value)
    return library in libraries and isinstance(value, getattr(sys.modules[library], name, ()))


LARGE_REPR: Final = 4_000
LARGE_COUNT: Final = 1_000
COUNTED: Final = 100_000
"""Maximum number of items of a list, tuple or set whose types are counted."""
LARGE_ROWS: Final = 60
LARGE_CELLS: Final = 1_000
SAMPLED: Final = 500
DEEP_CELLS: Final = 2_000_000
DEPTH: Final = 3
SHOWN_COLUMNS: Final = 30
SHOWN_KEYS: Final = 12
SHOWN_ROWS: Final = 5
SHOWN_ITEMS: Final = 5
SIMPLE_TYPES: Final = (bool, int, float, complex, type(None))
UNITS: Final[dict[type, str]] = {str: "character", bytes: "byte", bytearray: "byte"}
CONTAINERS: Final = (list, tuple, set, frozenset, dict)

_brief = Repr()
_brief.maxlevel, _brief.maxstring, _brief.maxother, _brief.maxlong = 4, 200, 200, 60
_brief.maxlist = _brief.maxtuple = _brief.maxdict = _brief.maxset = _brief.maxfrozenset = 12
_brief.maxdeque = _brief.maxarray = 12


class ValueSummary(Struct, frozen=True):
    """A description of a value: `extent`, such as "12 items" or "", approximate `size` in bytes, and `lines`.

    `lines` contain the schema and the first items.
    """

    type: str
    extent: str
    size: int
    lines: tuple[str, ...]

    @property
    def head(self) -> str:
        """The description without the lines."""
        return ", ".join(filter(None, (self.type, self.extent, bytes_text(self.size))))


def summarize_value(value: Any) -> ValueSummary:
    """Return a description of `value`. Never raise: if the value's own code fails, the description is shorter."""
    return ValueSummary(type_name(value), value_extent(value), memory_bytes(value), tuple(_describe_lines(value)))


def is_large(value: Any) -> bool:
    """Return whether `value` is too large to be shown completely."""
    try:
        if is_frame(value):
            return len(value) > LARGE_ROWS or len(value) * value.shape[1] > LARGE_CELLS
        if is_series(value):
            return len(value) > LARGE_ROWS
        if is_array(value):
            return bool(value.size > LARGE_CELLS)
        if isinstance(value, (str, bytes, bytearray)):
            return len(value) > LARGE_REPR
        if isinstance(value, CONTAINERS):
            return len(value) > LARGE_COUNT or _repr_exceeds(value, LARGE_REPR)
    except Exception:  # Methods of subclasses may raise any exception.
        return False
    return False


def value_extent(value: Any) -> str:
    """Return the extent of `value`: rows and columns, items or characters. Return "" if `value` has no extent."""
    try:
        if is_frame(value):
            return f"{_count_text(len(value), 'row')} x {_count_text(value.shape[1], 'column')}"
        if is_series(value):
            return f"{_count_text(len(value), 'value')} of {value.dtype}"
        if is_array(value):
            return f"{' x '.join(map(str, value.shape)) or 'one value'} of {value.dtype}"
        if isinstance(value, (*SIMPLE_TYPES, type)):
            return ""
        return _count_text(len(value), UNITS.get(type(value), "item"))
    except Exception:
        return ""


def memory_bytes(value: Any) -> int:
    """Return the approximate memory size of `value` in bytes. Of large containers, only a sample is measured."""
    try:
        return _memory(value, DEPTH)
    except Exception:
        return sys.getsizeof(value, 0)


def value_schema(value: Any) -> list[str]:
    """Return the structure of `value`: columns with types and missing values, keys, or types of items."""
    try:
        if is_frame(value):
            return _column_lines(value)
        if is_series(value) or is_array(value):
            return [_array_summary(value)]
        if isinstance(value, Mapping):
            keys = [
                f"{one_line_repr(key)}: {_type_and_extent(each)}" for key, each in islice(value.items(), SHOWN_KEYS)
            ]
            return keys + _omitted_note(len(value), SHOWN_KEYS, "keys")
        if isinstance(value, (Sequence, Set)) and not isinstance(value, (str, bytes, bytearray)):
            # Iterating over other containers can run slow code of the agent.
            limit = COUNTED if type(value) in CONTAINERS else LARGE_COUNT
            kinds: dict[str, int] = {}
            for each in islice(value, limit):
                kinds[type_name(each)] = kinds.get(type_name(each), 0) + 1
            counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
            return [
                f"items: {len(value):,}; the first {limit:,}: {counts}" if len(value) > limit else f"items: {counts}"
            ]
    except Exception as error:
        return [f"[the structure cannot be determined: {type(error).__name__}]"]
    return []


def one_line_repr(value: Any) -> str:
    """Return a short repr of `value` on one line."""
    try:
        return " ".join(_brief.repr(value).splitlines())
    except Exception as error:
        return f"<{type_name(value)} whose repr fails: {type(error).__name__}>"


def bytes_text(size: int) -> str:
    """Return a size in bytes as readable text."""
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _describe_lines(value: Any) -> Iterable[str]:
    yield from value_schema(value)
    try:
        if is_frame(value):
            yield f"first {_count_text(min(SHOWN_ROWS, len(value)), 'row')}:"
            yield " | ".join(cell(name) for name in list(value.columns)[:SHOWN_COLUMNS])
            for row in rows(value, 0, SHOWN_ROWS):
                yield " | ".join(map(cell, row[:SHOWN_COLUMNS]))
        elif is_series(value):
            yield f"begins: {', '.join(map(cell, value.head(SHOWN_ITEMS).to_list()))}"
        elif is_array(value):
            yield f"begins: {', '.join(map(cell, value.ravel()[:SHOWN_ITEMS].tolist()))}"
        elif isinstance(value, str):
            lines = value.count("\n") + (not value.endswith("\n"))
            yield f"{_count_text(lines, 'line')}; begins: {one_line_repr(value[:180])}"
        elif isinstance(value, Mapping):
            return
        elif isinstance(value, (Sequence, Set)):
            yield f"begins: {', '.join(one_line_repr(each) for each in islice(value, SHOWN_ITEMS))}"
        else:
            yield one_line_repr(value)
    except Exception as error:
        yield f"[the first items cannot be shown: {type(error).__name__}]"


def rows(frame: Any, start: int, stop: int) -> list[tuple[Any, ...]]:
    """Return rows of a pandas or polars data frame."""
    if library_of(frame) == "polars":
        return list(frame.slice(start, max(stop - start, 0)).iter_rows())
    return list(frame.iloc[start:stop].itertuples(index=False, name=None))


def _column_lines(frame: Any) -> list[str]:
    names = list(frame.columns)
    shown = names[:SHOWN_COLUMNS]
    lines = ["column | type | missing | range"]
    for index, name in enumerate(shown):
        column = frame.to_series(index) if library_of(frame) == "polars" else frame.iloc[:, index]
        lines.append(f"{cell(name)} | {column.dtype} | {_missing(column):,} | {_range(column)}")
    return lines + _omitted_note(len(names), SHOWN_COLUMNS, "columns")


def _missing(column: Any) -> int:
    return int(column.null_count() if library_of(column) == "polars" else column.isna().sum())


def _range(column: Any) -> str:
    if not any(kind in str(column.dtype).lower() for kind in ("int", "float", "date", "decimal", "duration")):
        return ""
    try:
        return f"{cell(column.min())} to {cell(column.max())}"
    except Exception:  # The values cannot be compared.
        return ""


def _array_summary(values: Any) -> str:
    parts = [f"type {values.dtype}"]
    if is_series(values):
        parts.append(f"{_missing(values):,} missing")
    else:
        parts.insert(0, f"shape {tuple(values.shape)}")
        if values.dtype.kind == "f":
            parts.append(f"{int((values != values).sum()):,} not a number")
    if str(values.dtype) != "object" and (span := _span(values)):
        parts.append(span)
    return ", ".join(parts)


def _span(values: Any) -> str:
    if is_series(values):
        return _range(values)
    if not values.size or values.dtype.kind not in "iufM":
        return ""
    numbers = values[values == values]  # These are the numbers without NaN.
    return f"{cell(numbers.min())} to {cell(numbers.max())}" if numbers.size else ""


def _memory(value: Any, depth: int) -> int:
    if is_array(value):
        return int(value.nbytes)
    if is_frame(value) or is_series(value):
        if library_of(value) == "polars":
            return int(value.estimated_size())
        usage = value.memory_usage(deep=value.size <= DEEP_CELLS)
        return int(usage if is_series(value) else usage.sum())
    size = sys.getsizeof(value, 0)
    if depth and isinstance(value, CONTAINERS) and value:
        items: Iterable[Any] = (
            value if not isinstance(value, dict) else (each for pair in value.items() for each in pair)
        )
        sample = list(islice(items, SAMPLED))
        count = len(value) * (2 if isinstance(value, dict) else 1)
        size += int(sum(_memory(each, depth - 1) for each in sample) * count / len(sample))
    return size


def _repr_exceeds(value: Any, limit: int) -> bool:
    """Return whether the repr of a container has more than `limit` characters. The repr is not created."""
    remaining, pending = limit, [value]
    while pending:
        each = pending.pop()
        if isinstance(each, (str, bytes, bytearray)):
            remaining -= len(each) + 2
        elif isinstance(each, dict):
            pending.extend(islice(each.keys(), limit))
            pending.extend(islice(each.values(), limit))
            remaining -= 4 * len(each) + 2
        elif isinstance(each, CONTAINERS):
            pending.extend(islice(each, limit))
            remaining -= 2 * len(each) + 2
        else:
            remaining -= 1 if isinstance(each, SIMPLE_TYPES) else 20
        if remaining < 0:
            return True
    return False


def _type_and_extent(value: Any) -> str:
    return ", ".join(filter(None, (type_name(value), value_extent(value))))


def _omitted_note(count: int, shown: int, unit: str) -> list[str]:
    return [f"[{count - shown:,} more {unit}]"] if count > shown else []


def _count_text(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'s' * (count != 1)}"
