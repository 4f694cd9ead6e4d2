"""The tools describe_data, for tables in files, and describe_variables, for variables of run_python."""

from __future__ import annotations

import time
from collections.abc import Mapping
from reprlib import Repr
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Annotated, Any, Final

from msgspec import Meta

from ..api.base import ToolContext, ToolError, tool
from ..files.read import open_inside
from ..values.repr import Columns, type_name
from ..values.tables import Table, read_table, table_of
from .namespace import Namespace

__all__ = ["describe_data", "describe_variables"]

CHECKED_ROWS: Final = 1_000
MAX_SHORT: Final = 60
SCALARS: Final = (bool, int, float, complex, str, bytes, type(None))
CODE_TYPES: Final = (FunctionType, BuiltinFunctionType, type)

_brief = Repr()
_brief.maxlevel, _brief.maxother, _brief.maxstring = 8, 20_000, 20_000
_brief.maxdict = _brief.maxlist = _brief.maxtuple = _brief.maxset = 100

Rows = Annotated[int, Meta(ge=0, le=100)]


@tool
def describe_data(context: ToolContext, path: str, rows: Rows = 5) -> str:
    """Describe a table in a file: type, missing and distinct values and range of each column, and the first rows.

    Reads CSV, TSV, JSON and JSON lines, and Parquet if polars or pandas is installed.

    Args:
        path: The file, relative to the working folder.
        rows: Number of first rows to show.
    """
    stop_at = time.monotonic() + context.seconds * 0.8
    with open_inside(context, path) as file:
        return f"{path}: {_describe_table(read_table(file, path), rows, stop_at)}"


@tool
def describe_variables(context: ToolContext, name: str | None = None, rows: Rows = 5) -> str:
    """List the variables of run_python with types and sizes, or describe one of them; tables as in describe_data.

    Args:
        name: The variable to describe. Without a name, all are listed.
        rows: Number of first rows of a table to show.
    """
    bound = context.agent_object(Namespace).bound()
    if name is None:
        return _list_variables(bound)
    if name not in bound:
        bound_names = f"bound are {', '.join(bound)}" if bound else "run_python has bound nothing"
        raise ToolError(f"No variable {name!r}: {bound_names}.")
    value = bound[name]
    if (table := table_of(value)) is not None:
        return f"{name}: {_describe_table(table, rows, time.monotonic() + context.seconds * 0.8)}"
    return f"{name}: {type_name(value)}{_size_text(value)}\n{_brief.repr(value)}"


def _describe_table(table: Table, shown_rows: int, stop_at: float) -> str:
    columns = Columns(table.names, table.declared, shown_rows)
    notes = []
    for row in table.rows:
        columns.add(row)
        if columns.rows % CHECKED_ROWS == 0 and time.monotonic() > stop_at:
            notes.append("time was up: there are more rows, and all this holds for those before")
            break
    size = f"{columns.rows:,} row{'s' * (columns.rows != 1)}, {len(columns):,} column{'s' * (len(columns) != 1)}"
    notes_shown = [f"[{note}]" for note in (*notes, *table.notes())]
    return "\n".join([f"{table.kind}, {size}", *notes_shown, "", columns.text()])


def _list_variables(bound: Mapping[str, Any]) -> str:
    modules = [name for name, value in bound.items() if isinstance(value, ModuleType)]
    code = [name for name, value in bound.items() if isinstance(value, CODE_TYPES)]
    lines = [
        f"{name}: {type_name(value)}{_size_text(value)}{_value_text(value)}"
        for name, value in bound.items()
        if name not in modules and name not in code
    ]
    lines += [f"functions and classes: {', '.join(code)}"] * bool(code)
    lines += [f"modules: {', '.join(modules)}"] * bool(modules)
    return "\n".join(lines) or "Nothing is bound: run_python binds names."


def _size_text(value: Any) -> str:
    try:
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            return f", {' x '.join(map(str, shape))}{f' {value.dtype}' if hasattr(value, 'dtype') else ''}"
        return "" if isinstance(value, SCALARS[:-3]) else f", {len(value):,} long"
    except Exception:  # The value has no length, or the code of its type fails.
        return ""


def _value_text(value: Any) -> str:
    if not isinstance(value, SCALARS):
        return ""
    try:
        text = repr(value[: MAX_SHORT + 1] if isinstance(value, (str, bytes)) else value)
    except ValueError:  # The value is an integer with thousands of digits.
        return ""
    return f" = {text if len(text) <= MAX_SHORT else f'{text[:MAX_SHORT]}...'}"
