"""Tables from files: CSV in whatever dialect, JSON, JSON lines, and Parquet where something can read it."""

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
NAMED: Final = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
BOMS: Final = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
FRAMES: Final = ("polars", "pandas")

Row = Mapping[str, Any]


class Table(Struct):
    """A table whose rows are read as they are asked for.

    `kind` is what it came in; `declared` the types its columns have by its own word. `notes` are complete when the last
    row was read.
    """

    kind: str
    rows: Iterator[Row]
    names: list[str] = []
    declared: dict[str, str] = {}
    notes: Callable[[], list[str]] = list


class _RowSample(Struct):
    """What was noticed while rows were read."""

    uneven: int = 0
    bad: int = 0
    first_bad: int = 0
    decoded: list[str] = field(default_factory=list)

    def notes(self) -> list[str]:
        notes = list(self.decoded)
        if self.uneven:
            notes.append(f"{self.uneven:,} rows have more or fewer fields than the first")
        if self.bad:
            notes.append(f"{self.bad:,} lines are no JSON objects, the first of them line {self.first_bad:,}")
        return notes


def read_table(file: BinaryIO, name: str) -> Table:
    """Return the table in `file`, which is called `name`: its ending says what it is. Raises ToolError."""
    ending = PurePath(name).suffix.lower()
    if ending not in FORMATS:
        raise ToolError(f"{name!r} is none of {', '.join(FORMATS)}; read_file shows text, run_python reads anything.")
    return FORMATS[ending](file, name)


def table_of(value: Any) -> Table | None:
    """Return the table that `value` is: a data frame, a list of objects or of equally long lists, lists by name.

    None when it is none of these.
    """
    kind = type(value).__name__
    if isinstance(value, dict):
        if not value or not all(map(_is_list, value.values())) or len(set(map(len, value.values()))) != 1:
            return None
        names = list(map(str, value))
        return Table(f"{kind} of columns", _rows(names, zip(*value.values(), strict=True)), names)
    if not _is_list(value):
        return _frame(value)
    if value and all(isinstance(each, Mapping) for each in value):
        rows = ({str(key): _dated(cell) for key, cell in each.items()} for each in value)
        return Table(f"{kind} of objects", rows)
    if value and all(_is_list(each) and each and len(each) == len(value[0]) for each in value):
        names = [f"column_{number}" for number in range(1, len(value[0]) + 1)]
        return Table(f"{kind} of rows", _rows(names, value), names)
    return None


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _rows(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> Iterator[Row]:
    return (dict(zip(names, map(_dated, row), strict=False)) for row in rows)


def _frame(value: Any) -> Table | None:
    """Return the table that a data frame is, of whichever library; None for anything else."""
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
    except (AttributeError, TypeError, ValueError):  # it only looks like one
        return None
    return Table(kind, _rows(names, rows), names, declared)


def _csv(file: BinaryIO, name: str) -> Table:
    sample = file.read(SNIFFED_BYTES)
    encoding, seen = _encoding(sample), _RowSample()
    if b"\0" in sample and encoding != "utf-16":
        raise ToolError(f"{name!r} is a binary file.")
    if encoding == "latin-1":
        seen.decoded.append("it is not UTF-8: read as Latin-1")
    file.seek(0)
    start = sample.decode(encoding, errors="replace")
    separator = _separator(start if len(sample) < SNIFFED_BYTES else start.rpartition("\n")[0], name)
    csv.field_size_limit(MAX_FIELD)
    rows = filter(None, csv.reader(_lines(file, name, encoding), delimiter=separator))
    first = next(rows, [])
    headed = not any(isinstance(parse_cell(cell), (int, float)) for cell in first)
    names = _unique(first if headed else [""] * len(first))

    def read() -> Iterator[Row]:
        if not headed:
            yield dict(zip(names, map(parse_cell, first), strict=True))
        try:
            for row in rows:
                seen.uneven += len(row) != len(names)
                yield dict(zip(names, map(parse_cell, row), strict=False))
        except csv.Error as error:
            raise ToolError(f"Cannot read {name!r} as a table: {error}.") from error

    kind = f"separated by {NAMED[separator]}{'' if headed or not first else ', without a header'}"
    return Table(kind, read(), names, notes=seen.notes)


def _lines(file: BinaryIO, name: str, encoding: str) -> Iterator[str]:
    """Yield the lines of `file` with their ends, of whichever kind."""
    decoder, rest = codecs.getincrementaldecoder(encoding)("replace"), ""
    while chunk := file.read(CHUNK):
        *lines, rest = io.StringIO(rest + decoder.decode(chunk), newline="").readlines() or [""]
        yield from lines
        if len(rest) > MAX_LINE:
            raise ToolError(f"{name!r} has a line of more than {MAX_LINE:,} characters.")
    yield from io.StringIO(rest + decoder.decode(b"", final=True), newline="").readlines()


def _encoding(sample: bytes) -> str:
    for bom, encoding in BOMS.items():
        if sample.startswith(bom):
            return encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _separator(sample: str, name: str) -> str:
    """Return what parts the most fields of the sample's rows, equally many in each."""
    usual = "\t" if PurePath(name).suffix.lower() in (".tsv", ".tab") else ","
    lines = io.StringIO(sample, newline="").readlines()[: 4 * SNIFFED_ROWS]
    found: dict[str, tuple[float, int]] = {}
    for separator in (usual, *SEPARATORS):
        try:
            rows = [row for row in csv.reader(lines, delimiter=separator) if row][:SNIFFED_ROWS]
        except csv.Error:
            continue
        width, times = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        if width > 1:
            found.setdefault(separator, (times / len(rows), width))
    return max(found, key=lambda each: found[each], default=usual)


def _unique(cells: list[str]) -> list[str]:
    """Return names for columns: those in the header, numbered where it has none, or one twice."""
    taken: Counter[str] = Counter()
    names = []
    for number, cell in enumerate(cells, 1):
        name = cell.strip() or f"column_{number}"
        taken[name] += 1
        names.append(name if taken[name] == 1 else f"{name}_{taken[name]}")
    return names


def _json(file: BinaryIO, name: str) -> Table:
    if (size := os.fstat(file.fileno()).st_size) > MAX_WHOLE:
        raise ToolError(f"{name!r} has {size:,} bytes; as JSON it is read whole, and {MAX_WHOLE:,} are the most.")
    try:
        value = msgspec.json.decode(file.read().removeprefix(codecs.BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ToolError(f"{name!r} is not valid JSON: {error}.") from error
    if (table := table_of(value)) is not None:
        return table
    if isinstance(value, dict):
        # What a service answers with: the table under some name, beside what is said about it.
        tables = {key: each for key, each in value.items() if _is_list(each) and table_of(each) is not None}
        if len(tables) != 1:
            return Table("one object", iter([value]))
        ((key, listed),) = tables.items()
        if (table := table_of(listed)) is not None:
            return msgspec.structs.replace(table, kind=f"{table.kind}, under {key!r}")
    raise ToolError(f"{name!r} holds no table but {_what(value)}: read_file shows it, run_python reads it.")


def _what(value: Any) -> str:
    return f"a list of {len(value):,} values" if isinstance(value, list) else f"the value {str(value)[:80]!r}"


def _json_lines(file: BinaryIO, name: str) -> Table:  # noqa: ARG001
    seen = _RowSample()

    def read() -> Iterator[Row]:
        for number, line in enumerate(iter(lambda: file.readline(MAX_WHOLE), b""), 1):
            if not line.strip():
                continue
            try:
                row = msgspec.json.decode(line.removeprefix(codecs.BOM_UTF8))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                row = None
            if isinstance(row, dict):
                yield {key: _dated(value) for key, value in row.items()}
            else:
                seen.bad, seen.first_bad = seen.bad + 1, seen.first_bad or number

    return Table("JSON lines", read(), notes=seen.notes)


def _dated(value: Any) -> Any:
    return parse_date(value) if isinstance(value, str) else value


def _parquet(file: BinaryIO, name: str) -> Table:
    for library in FRAMES:
        try:
            read = import_module(library).read_parquet
        except ImportError:
            continue
        data = file.read(MAX_PARQUET + 1)
        if len(data) > MAX_PARQUET:
            raise ToolError(f"{name!r} is over {MAX_PARQUET >> 20} MiB: Parquet is read whole, and that is the most.")
        try:
            check_reads_safely(library, "read_parquet", data)
            table = _frame(read(io.BytesIO(data)))
        except BaseException as error:  # whatever that library says of a file that it does not understand
            if not isinstance(error, Exception) and type(error).__name__ != PANIC:
                raise
            raise ToolError(f"{name!r} cannot be read by {library}: {error}.") from error
        if table is not None:
            return table
    raise ToolError(f"{name!r}: to read Parquet, {' or '.join(FRAMES)} must be installed where orch is.")


FORMATS: Final[dict[str, Callable[[BinaryIO, str], Table]]] = {
    **dict.fromkeys((".csv", ".tsv", ".tab", ".psv"), _csv),
    ".json": _json,
    **dict.fromkeys((".jsonl", ".ndjson"), _json_lines),
    ".parquet": _parquet,
}
