"""Reads tables from files: CSV in any dialect, JSON, JSON lines, and Parquet if a library is installed."""

from __future__ import annotations

import codecs
import csv
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import PurePath
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Struct, field

from ...system.isolated_read import check_reads_safely
from ..api.base import ToolError
from .repr import PANIC, parse_cell, parse_date

__all__ = ["FORMATS", "Table", "read_table", "table_of"]

SNIFFED_BYTES: Final = 64 << 10
SNIFFED_ROWS: Final = 20
MAX_WHOLE: Final = 64 << 20
MAX_PARQUET: Final = 256 << 20
MAX_FIELD: Final = 1 << 20
MAX_LINE: Final = 16 << 20
CHUNK: Final = 256 << 10
SEPARATORS: Final = (",", "\t", ";", "|")
SEPARATOR_NAMES: Final = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
BOMS: Final = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
FRAMES: Final = ("polars", "pandas")

Row = Mapping[str, Any]


class Table(Struct):
    """A table whose rows are read lazily.

    `kind` describes the format of the table. `declared` contains declared column types. `notes` are complete after the
    last row was read.
    """

    kind: str
    rows: Iterator[Row]
    names: list[str] = []
    declared: dict[str, str] = {}
    notes: Callable[[], list[str]] = list


class _RowSample(Struct):
    """Facts that are collected while rows are read."""

    uneven_rows: int = 0
    invalid_lines: int = 0
    first_invalid_line: int = 0
    decoded: list[str] = field(default_factory=list)

    def notes(self) -> list[str]:
        notes = list(self.decoded)
        if self.uneven_rows:
            notes.append(f"{self.uneven_rows:,} rows have more or fewer fields than the first")
        if self.invalid_lines:
            notes.append(
                f"{self.invalid_lines:,} lines are no JSON objects, the first of them line {self.first_invalid_line:,}"
            )
        return notes


def read_table(file: BinaryIO, name: str) -> Table:
    """Return the table in `file`. The extension of `name` determines the format.

    Raise ToolError for an unreadable table.
    """
    extension = PurePath(name).suffix.lower()
    if extension not in FORMATS:
        raise ToolError(
            f"{name!r} is not one of {', '.join(FORMATS)}: use read_file for text, or run_python for other formats."
        )
    return FORMATS[extension](file, name)


def table_of(value: Any) -> Table | None:
    """Return `value` as a table, or None if `value` is not a table.

    A table is a data frame, a list of objects, a list of lists with equal length, or a dict of lists.
    """
    kind = type(value).__name__
    if isinstance(value, dict):
        if not value or not all(map(_is_list, value.values())) or len(set(map(len, value.values()))) != 1:
            return None
        names = list(map(str, value))
        return Table(f"{kind} of columns", _named_rows(names, zip(*value.values(), strict=True)), names)
    if not _is_list(value):
        return _frame_table(value)
    if value and all(isinstance(each, Mapping) for each in value):
        rows = ({str(key): _parse_dates(cell) for key, cell in each.items()} for each in value)
        return Table(f"{kind} of objects", rows)
    if value and all(_is_list(each) and each and len(each) == len(value[0]) for each in value):
        names = [f"column_{number}" for number in range(1, len(value[0]) + 1)]
        return Table(f"{kind} of rows", _named_rows(names, value), names)
    return None


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _named_rows(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> Iterator[Row]:
    return (dict(zip(names, map(_parse_dates, row), strict=False)) for row in rows)


def _frame_table(value: Any) -> Table | None:
    """Return a data frame of any library as a table. Return None for any other value."""
    kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    try:
        if hasattr(value, "iter_rows"):
            rows, types = value.iter_rows(), value.schema.values()
            names = list(map(str, value.columns))
        elif hasattr(value, "itertuples"):
            rows, types = value.itertuples(index=False, name=None), value.dtypes
            names = list(map(str, value.columns))
        else:
            return None
        declared = dict(zip(names, map(str, types), strict=False))
    except (AttributeError, TypeError, ValueError):  # The object is not a real data frame.
        return None
    return Table(kind, _named_rows(names, rows), names, declared)


def _read_csv(file: BinaryIO, name: str) -> Table:
    sample = file.read(SNIFFED_BYTES)
    encoding, facts = _detect_encoding(sample), _RowSample()
    if b"\0" in sample and encoding != "utf-16":
        raise ToolError(f"{name!r} is a binary file.")
    if encoding == "latin-1":
        facts.decoded.append("it is not UTF-8: read as Latin-1")
    file.seek(0)
    decoded_sample = sample.decode(encoding, errors="replace")
    separator = _detect_separator(
        decoded_sample if len(sample) < SNIFFED_BYTES else decoded_sample.rpartition("\n")[0], name
    )
    csv.field_size_limit(MAX_FIELD)
    rows = filter(None, csv.reader(_decode_lines(file, name, encoding), delimiter=separator))
    first = next(rows, [])
    has_header = not any(isinstance(parse_cell(cell), (int, float)) for cell in first)
    names = _unique_names(first if has_header else [""] * len(first))

    def read() -> Iterator[Row]:
        if not has_header:
            yield dict(zip(names, map(parse_cell, first), strict=True))
        try:
            for row in rows:
                facts.uneven_rows += len(row) != len(names)
                yield dict(zip(names, map(parse_cell, row), strict=False))
        except csv.Error as error:
            raise ToolError(f"Cannot read {name!r} as a table: {error}.") from error

    kind = f"separated by {SEPARATOR_NAMES[separator]}{'' if has_header or not first else ', without a header'}"
    return Table(kind, read(), names, notes=facts.notes)


def _decode_lines(file: BinaryIO, name: str, encoding: str) -> Iterator[str]:
    """Yield the lines of `file` with their line endings. Any kind of line ending is recognized."""
    decoder, rest = codecs.getincrementaldecoder(encoding)("replace"), ""
    while chunk := file.read(CHUNK):
        *lines, rest = io.StringIO(rest + decoder.decode(chunk), newline="").readlines() or [""]
        yield from lines
        if len(rest) > MAX_LINE:
            raise ToolError(f"{name!r} has a line of more than {MAX_LINE:,} characters.")
    yield from io.StringIO(rest + decoder.decode(b"", final=True), newline="").readlines()


def _detect_encoding(sample: bytes) -> str:
    for bom, encoding in BOMS.items():
        if sample.startswith(bom):
            return encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _detect_separator(sample: str, name: str) -> str:
    """Return the separator that splits the largest number of rows of `sample` into the same number of fields.

    If several separators are equally good, the separator with the most fields is chosen.
    """
    default = "\t" if PurePath(name).suffix.lower() in (".tsv", ".tab") else ","
    lines = io.StringIO(sample, newline="").readlines()[: 4 * SNIFFED_ROWS]
    found: dict[str, tuple[float, int]] = {}
    for separator in (default, *SEPARATORS):
        try:
            rows = [row for row in csv.reader(lines, delimiter=separator) if row][:SNIFFED_ROWS]
        except csv.Error:
            continue
        width, times = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        if width > 1:
            found.setdefault(separator, (times / len(rows), width))
    return max(found, key=lambda each: found[each], default=default)


def _unique_names(cells: list[str]) -> list[str]:
    """Return unique column names for the header `cells`. Empty and duplicate names get a number."""
    counts: Counter[str] = Counter()
    names = []
    for number, cell in enumerate(cells, 1):
        name = cell.strip() or f"column_{number}"
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return names


def _read_json(file: BinaryIO, name: str) -> Table:
    if (size := os.fstat(file.fileno()).st_size) > MAX_WHOLE:
        raise ToolError(
            f"{name!r} has {size:,} bytes: a JSON file is read completely and may have at most {MAX_WHOLE:,} bytes."
        )
    try:
        value = msgspec.json.decode(file.read().removeprefix(codecs.BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ToolError(f"{name!r} is not valid JSON: {error}.") from error
    if (table := table_of(value)) is not None:
        return table
    if isinstance(value, dict):
        # The response of a typical service is an object in which one field contains the table.
        tables = {key: each for key, each in value.items() if _is_list(each) and table_of(each) is not None}
        if len(tables) != 1:
            return Table("one object", iter([value]))
        ((key, rows),) = tables.items()
        if (table := table_of(rows)) is not None:
            return msgspec.structs.replace(table, kind=f"{table.kind}, under {key!r}")
    raise ToolError(f"{name!r} contains no table but {_describe_value(value)}: use read_file or run_python.")


def _describe_value(value: Any) -> str:
    return f"a list of {len(value):,} values" if isinstance(value, list) else f"the value {str(value)[:80]!r}"


def _read_json_lines(file: BinaryIO, name: str) -> Table:  # noqa: ARG001
    facts = _RowSample()

    def read() -> Iterator[Row]:
        for number, line in enumerate(iter(lambda: file.readline(MAX_WHOLE), b""), 1):
            if not line.strip():
                continue
            try:
                row = msgspec.json.decode(line.removeprefix(codecs.BOM_UTF8))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                row = None
            if isinstance(row, dict):
                yield {key: _parse_dates(value) for key, value in row.items()}
            else:
                facts.invalid_lines, facts.first_invalid_line = (
                    facts.invalid_lines + 1,
                    facts.first_invalid_line or number,
                )

    return Table("JSON lines", read(), notes=facts.notes)


def _parse_dates(value: Any) -> Any:
    return parse_date(value) if isinstance(value, str) else value


def _read_parquet(file: BinaryIO, name: str) -> Table:
    for library in FRAMES:
        try:
            read = import_module(library).read_parquet
        except ImportError:
            continue
        data = file.read(MAX_PARQUET + 1)
        if len(data) > MAX_PARQUET:
            raise ToolError(f"{name!r} has more than {MAX_PARQUET >> 20} MiB, the maximum for Parquet files.")
        try:
            check_reads_safely(library, "read_parquet", data)
            table = _frame_table(read(io.BytesIO(data)))
        except BaseException as error:  # The library may raise various exceptions for an invalid file.
            if not isinstance(error, Exception) and type(error).__name__ != PANIC:
                raise
            raise ToolError(f"{name!r} cannot be read by {library}: {error}.") from error
        if table is not None:
            return table
    raise ToolError(f"{name!r}: to read Parquet, install {' or '.join(FRAMES)} in the environment of orch.")


FORMATS: Final[dict[str, Callable[[BinaryIO, str], Table]]] = {
    **dict.fromkeys((".csv", ".tsv", ".tab", ".psv"), _read_csv),
    ".json": _read_json,
    **dict.fromkeys((".jsonl", ".ndjson"), _read_json_lines),
    ".parquet": _read_parquet,
}
