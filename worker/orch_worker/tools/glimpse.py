"""What a value is, in a few lines: type, extent, size in memory, and its first part. Imports nothing to look at it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import islice
from reprlib import Repr
from typing import Any, Final

from msgspec import Struct

from .columns import cell
from .library import is_array, is_frame, is_series, library_of, type_name

__all__ = ["Glimpse", "brief", "extent", "glimpse", "is_large", "memory", "schema"]

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
PLAIN: Final = (bool, int, float, complex, type(None))
UNITS: Final[dict[type, str]] = {str: "character", bytes: "byte", bytearray: "byte"}
CONTAINERS: Final = (list, tuple, set, frozenset, dict)

_brief = Repr()
_brief.maxlevel, _brief.maxstring, _brief.maxother, _brief.maxlong = 4, 200, 200, 60
_brief.maxlist = _brief.maxtuple = _brief.maxdict = _brief.maxset = _brief.maxfrozenset = 12
_brief.maxdeque = _brief.maxarray = 12


class Glimpse(Struct, frozen=True):
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


def glimpse(value: Any) -> Glimpse:
    """Return what is to be said of `value`. Never raises: code of somebody else's may, and then less is said."""
    return Glimpse(type_name(value), extent(value), memory(value), tuple(_lines(value)))


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


def extent(value: Any) -> str:
    """Return how much `value` is: rows and columns, items, characters; "" for what has no extent."""
    try:
        if is_frame(value):
            return f"{_many(len(value), 'row')} x {_many(value.shape[1], 'column')}"
        if is_series(value):
            return f"{_many(len(value), 'value')} of {value.dtype}"
        if is_array(value):
            return f"{' x '.join(map(str, value.shape)) or 'one value'} of {value.dtype}"
        if isinstance(value, (*PLAIN, type)):
            return ""
        return _many(len(value), UNITS.get(type(value), "item"))
    except Exception:
        return ""


def memory(value: Any) -> int:
    """Return about how many bytes `value` takes in memory; of what holds much, a part is looked at."""
    try:
        return _memory(value, DEPTH)
    except Exception:
        return sys.getsizeof(value, 0)


def schema(value: Any) -> list[str]:
    """Return what `value` is made of: columns with types and missing values, keys, types of items."""
    try:
        if is_frame(value):
            return _columns(value)
        if is_series(value) or is_array(value):
            return [_numbers(value)]
        if isinstance(value, Mapping):
            keys = [f"{brief(key)}: {_what(each)}" for key, each in islice(value.items(), SHOWN_KEYS)]
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


def brief(value: Any) -> str:
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
    yield from schema(value)
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
            yield f"{_many(lines, 'line')}; begins: {brief(value[:180])}"
        elif isinstance(value, Mapping):
            return
        elif isinstance(value, (Sequence, Set)):
            yield f"begins: {', '.join(brief(each) for each in islice(value, SHOWN_ITEMS))}"
        else:
            yield brief(value)
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
            left -= 1 if isinstance(each, PLAIN) else 20
        if left < 0:
            return True
    return False


def _what(value: Any) -> str:
    return ", ".join(filter(None, (type_name(value), extent(value))))


def _more(count: int, shown: int, what: str) -> list[str]:
    return [f"[{count - shown:,} more {what}]"] if count > shown else []


def _many(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'s' * (count != 1)}"
