"""What a value is, in a few lines: type, extent, size in memory, and its first part. Imports nothing to look at it."""

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


# --- What the columns of a table hold ---

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


class DateText(str):
    """A day, as text that sorts."""

    __slots__ = ()


class TimestampText(str):
    """A day and a time, as text that sorts."""

    __slots__ = ()


COLUMNS_PLAIN: Final = {type(None): "", bool: "boolean", str: "text", DateText: "date", TimestampText: "time"}
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


def parse_cell(text: str) -> Any:
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
    return float(text) if NUMBER.fullmatch(text) else parse_date(text)


def parse_date(text: str) -> str:
    """Return `text`, marked as what it is if it is a day or a time by ISO 8601."""
    if not (DATE.fullmatch(text) or TIME.fullmatch(text)):
        return text
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return text
    return DateText(text) if len(text) == len("2026-01-01") else TimestampText(text)


def _measured(value: Any) -> tuple[str, Any]:
    """Return the kind of `value`, "" for a missing one, and what of it has a smallest and a largest."""
    if (kind := COLUMNS_PLAIN.get(type(value))) is not None:
        return kind, value if kind in MEASURED else len(value) if kind == "text" else None
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
    return _cut(" ".join(islice(text[: 4 * MAX_CELL].split(), MAX_CELL)).replace("|", "\\|"), MAX_CELL)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


# --- Values of libraries that a user's code has imported, told by their types ---

LIBRARIES: Final = frozenset({"numpy", "pandas", "polars"})
PANIC: Final = "PanicException"
"""What polars raises of bytes that it did not expect: no Exception."""


def library_of(value: Any) -> str:
    """Return which of numpy, pandas and polars `value` is of, "" for none of them."""
    name = type(value).__module__.partition(".")[0]
    return name if name in LIBRARIES and name in sys.modules else ""


def is_frame(value: Any) -> bool:
    """Return whether `value` is a data frame."""
    return _is(value, ("pandas", "polars"), "DataFrame")


def is_series(value: Any) -> bool:
    """Return whether `value` is one column of a data frame."""
    return _is(value, ("pandas", "polars"), "Series")


def is_array(value: Any) -> bool:
    """Return whether `value` is an array of numpy's."""
    return _is(value, ("numpy",), "ndarray")


def type_name(value: Any) -> str:
    """Return what `value` is, for people and models: `list`, `pandas.DataFrame`."""
    kind = type(value)
    package = str(kind.__module__).partition(".")[0]
    return kind.__name__ if package in ("builtins", "__main__") else f"{package}.{kind.__name__}"


def _is(value: Any, libraries: tuple[str, ...], name: str) -> bool:
    library = library_of(value)
    return library in libraries and isinstance(value, getattr(sys.modules[library], name, ()))


LARGE_REPR: Final = 4_000
LARGE_COUNT: Final = 1_000
LARGE_ROWS: Final = 60
LARGE_CELLS: Final = 1_000
SAMPLED: Final = 500
DEEP_CELLS: Final = 2_000_000
DEPTH: Final = 3
SHOWN_COLUMNS: Final = 30
SHOWN_KEYS: Final = 12
SHOWN_ROWS: Final = 5
SHOWN_ITEMS: Final = 5
GLIMPSE_PLAIN: Final = (bool, int, float, complex, type(None))
UNITS: Final[dict[type, str]] = {str: "character", bytes: "byte", bytearray: "byte"}
CONTAINERS: Final = (list, tuple, set, frozenset, dict)

_brief = Repr()
_brief.maxlevel, _brief.maxstring, _brief.maxother, _brief.maxlong = 4, 200, 200, 60
_brief.maxlist = _brief.maxtuple = _brief.maxdict = _brief.maxset = _brief.maxfrozenset = 12
_brief.maxdeque = _brief.maxarray = 12


class ValueSummary(Struct, frozen=True):
    """What is said of a value: `extent` as in "12 items" ("" when it has none), `size` in bytes, about; `lines` of its
    schema and its beginning."""

    type: str
    extent: str
    size: int
    lines: tuple[str, ...]

    @property
    def head(self) -> str:
        """All of it but the lines, in one."""
        return ", ".join(filter(None, (self.type, self.extent, bytes_text(self.size))))


def summarize_value(value: Any) -> ValueSummary:
    """Return what is to be said of `value`. Never raises: code of somebody else's may, and then less is said."""
    return ValueSummary(type_name(value), value_extent(value), memory_bytes(value), tuple(_lines(value)))


def is_large(value: Any) -> bool:
    """Return whether `value` is too much to be shown whole, or would be shown with its middle left out."""
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
            return len(value) > LARGE_COUNT or _outgrows(value, LARGE_REPR)
    except Exception:  # whatever a subclass of somebody else's does
        return False
    return False


def value_extent(value: Any) -> str:
    """Return how much `value` is: rows and columns, items, characters; "" for what has no extent."""
    try:
        if is_frame(value):
            return f"{_many(len(value), 'row')} x {_many(value.shape[1], 'column')}"
        if is_series(value):
            return f"{_many(len(value), 'value')} of {value.dtype}"
        if is_array(value):
            return f"{' x '.join(map(str, value.shape)) or 'one value'} of {value.dtype}"
        if isinstance(value, (*GLIMPSE_PLAIN, type)):
            return ""
        return _many(len(value), UNITS.get(type(value), "item"))
    except Exception:
        return ""


def memory_bytes(value: Any) -> int:
    """Return about how many bytes `value` takes in memory; of what holds much, a part is looked at."""
    try:
        return _memory(value, DEPTH)
    except Exception:
        return sys.getsizeof(value, 0)


def value_schema(value: Any) -> list[str]:
    """Return what `value` is made of: columns with types and missing values, keys, types of items."""
    try:
        if is_frame(value):
            return _columns(value)
        if is_series(value) or is_array(value):
            return [_numbers(value)]
        if isinstance(value, Mapping):
            keys = [f"{one_line_repr(key)}: {_what(each)}" for key, each in islice(value.items(), SHOWN_KEYS)]
            return keys + _more(len(value), SHOWN_KEYS, "keys")
        if isinstance(value, (Sequence, Set)) and not isinstance(value, (str, bytes, bytearray)):
            kinds: dict[str, int] = {}
            for each in islice(value, LARGE_COUNT):
                kinds[type_name(each)] = kinds.get(type_name(each), 0) + 1
            told = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
            return [f"items: {told}{'; of the first 1,000' if len(value) > LARGE_COUNT else ''}"]
    except Exception as error:
        return [f"[what it is made of cannot be said: {type(error).__name__}]"]
    return []


def one_line_repr(value: Any) -> str:
    """Return `value` in one line, with much of a large one left out."""
    try:
        return " ".join(_brief.repr(value).splitlines())
    except Exception as error:
        return f"<{type_name(value)} whose repr fails: {type(error).__name__}>"


def bytes_text(size: int) -> str:
    """Return a size in bytes as people say it."""
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _lines(value: Any) -> Iterable[str]:
    yield from value_schema(value)
    try:
        if is_frame(value):
            yield f"first {_many(min(SHOWN_ROWS, len(value)), 'row')}:"
            yield " | ".join(cell(name) for name in list(value.columns)[:SHOWN_COLUMNS])
            for row in rows(value, 0, SHOWN_ROWS):
                yield " | ".join(map(cell, row[:SHOWN_COLUMNS]))
        elif is_series(value):
            yield f"begins: {', '.join(map(cell, value.head(SHOWN_ITEMS).to_list()))}"
        elif is_array(value):
            yield f"begins: {', '.join(map(cell, value.ravel()[:SHOWN_ITEMS].tolist()))}"
        elif isinstance(value, str):
            lines = value.count("\n") + (not value.endswith("\n"))
            yield f"{_many(lines, 'line')}; begins: {one_line_repr(value[:180])}"
        elif isinstance(value, Mapping):
            return
        elif isinstance(value, (Sequence, Set)):
            yield f"begins: {', '.join(one_line_repr(each) for each in islice(value, SHOWN_ITEMS))}"
        else:
            yield one_line_repr(value)
    except Exception as error:
        yield f"[how it begins cannot be said: {type(error).__name__}]"


def rows(frame: Any, start: int, stop: int) -> list[tuple[Any, ...]]:
    """Return rows of a data frame, of whichever library."""
    if library_of(frame) == "polars":
        return list(frame.slice(start, max(stop - start, 0)).iter_rows())
    return list(frame.iloc[start:stop].itertuples(index=False, name=None))


def _columns(frame: Any) -> list[str]:
    names = list(frame.columns)
    shown = names[:SHOWN_COLUMNS]
    lines = ["column | type | missing | range"]
    for place, name in enumerate(shown):
        column = frame.to_series(place) if library_of(frame) == "polars" else frame.iloc[:, place]
        lines.append(f"{cell(name)} | {column.dtype} | {_missing(column):,} | {_range(column)}")
    return lines + _more(len(names), SHOWN_COLUMNS, "columns")


def _missing(column: Any) -> int:
    return int(column.null_count() if library_of(column) == "polars" else column.isna().sum())


def _range(column: Any) -> str:
    if not any(kind in str(column.dtype).lower() for kind in ("int", "float", "date", "decimal", "duration")):
        return ""
    try:
        return f"{cell(column.min())} to {cell(column.max())}"
    except Exception:  # nothing in it that has an order
        return ""


def _numbers(values: Any) -> str:
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
    numbers = values[values == values]  # what is no number has no place in a range
    return f"{cell(numbers.min())} to {cell(numbers.max())}" if numbers.size else ""


def _memory(value: Any, depth: int) -> int:
    if is_array(value):
        return int(value.nbytes)
    if is_frame(value) or is_series(value):
        if library_of(value) == "polars":
            return int(value.estimated_size())
        used = value.memory_usage(deep=value.size <= DEEP_CELLS)
        return int(used if is_series(value) else used.sum())
    size = sys.getsizeof(value, 0)
    if depth and isinstance(value, CONTAINERS) and value:
        held: Iterable[Any] = (
            value if not isinstance(value, dict) else (each for pair in value.items() for each in pair)
        )
        sample = list(islice(held, SAMPLED))
        count = len(value) * (2 if isinstance(value, dict) else 1)
        size += int(sum(_memory(each, depth - 1) for each in sample) * count / len(sample))
    return size


def _outgrows(value: Any, most: int) -> bool:
    """Return whether the repr of a container has more than `most` characters, without making it."""
    left, inside = most, [value]
    while inside:
        each = inside.pop()
        if isinstance(each, (str, bytes, bytearray)):
            left -= len(each) + 2
        elif isinstance(each, dict):
            inside.extend(islice(each.keys(), most))
            inside.extend(islice(each.values(), most))
            left -= 4 * len(each) + 2
        elif isinstance(each, CONTAINERS):
            inside.extend(islice(each, most))
            left -= 2 * len(each) + 2
        else:
            left -= 1 if isinstance(each, GLIMPSE_PLAIN) else 20
        if left < 0:
            return True
    return False


def _what(value: Any) -> str:
    return ", ".join(filter(None, (type_name(value), value_extent(value))))


def _more(count: int, shown: int, what: str) -> list[str]:
    return [f"[{count - shown:,} more {what}]"] if count > shown else []


def _many(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'s' * (count != 1)}"
