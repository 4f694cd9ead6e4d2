"""What a Python value is, in a line: its type, size and beginning. No code of its own is run, but of known types.

A value may be anybody's: asking it for its length or its text may take for ever, or change something.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

from msgspec import Struct

__all__ = ["ValueDescription", "describe_value", "is_ours"]

MOST_ITEMS: Final = 6
MOST_TEXT: Final = 80
MOST_COLUMNS: Final = 12
SCALARS: Final = (bool, int, float, complex, str, bytes, type(None))
_NUMBER: Final = re.compile(r"(?:u?int|float|complex)\d+|bool_?")
BOXES: Final = (list, tuple, set, frozenset)
SIZED: Final = (*SCALARS, *BOXES, dict)
MODULE_OF: Final[Callable[[type], object]] = type.__dict__["__module__"].__get__
NAME_OF: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__


class ValueDescription(Struct, frozen=True):
    """What a value is: the name of its type, about how many bytes it takes, and what is to be said of it."""

    kind: str
    size: int = 0
    text: str = ""


def is_ours(value: Any) -> bool:
    """Return whether a name that is bound to `value` was bound to something of the code's own: no module, and no
    function or class from one."""
    kind = type(value)  # not isinstance: a value may say of itself that it is something else, by code
    if issubclass(kind, ModuleType):
        return False
    if kind is FunctionType:
        return bool(value.__module__ == "__main__")
    if issubclass(kind, type):
        return _module(value) == "__main__"
    return kind is not BuiltinFunctionType


def describe_value(value: Any) -> ValueDescription:
    """Return what `value` is. Never raises."""
    kind = type(value)
    package = _module(kind).partition(".")[0]
    own = NAME_OF(kind)
    name = own if package in ("builtins", "__main__") else f"{package}.{own}"
    try:
        describe = _known(kind, package)
        text = describe(value) if describe is not None else ""
        return ValueDescription(name, _bytes(value, package), text)
    except Exception:  # one that is broken, or of a version that is not known
        return ValueDescription(name)


def _module(kind: type) -> str:
    """Return which module `kind` says it is of, without asking its own type, which may be somebody's."""
    said = MODULE_OF(kind)
    return said if type(said) is str else ""


def _known(kind: type, package: str) -> Callable[[Any], str] | None:
    if kind in SCALARS:
        return _scalar
    if kind in BOXES:
        return _box
    if kind is dict:
        return _mapping
    if issubclass(kind, FunctionType):
        return _function
    if kind is type:
        return _class
    if package == "numpy" and _NUMBER.fullmatch(NAME_OF(kind)):
        return lambda value: _scalar(value.item())
    return TABLES.get((package, NAME_OF(kind)))


def _bytes(value: Any, package: str) -> int:
    if package in ("numpy", "pandas"):
        size = value.nbytes if hasattr(value, "nbytes") else value.memory_usage(deep=False)
        return int(size.sum() if hasattr(size, "sum") else size)
    if package == "polars" and hasattr(value, "estimated_size"):
        return int(value.estimated_size())
    if type(value) in (*BOXES, dict):
        known = (sys.getsizeof(each) for each in islice(value, 100) if type(each) in SIZED)
        return sys.getsizeof(value) + sum(known) * max(1, len(value) // 100)
    return sys.getsizeof(value) if type(value) in SCALARS else 0


def _scalar(value: Any) -> str:
    if isinstance(value, str | bytes):
        long = len(value) > MOST_TEXT
        return f"{value[:MOST_TEXT]!r}{f'... ({len(value):,} long)' if long else ''}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"about 2 ** {value.bit_length() - 1}"
    return repr(value)


def _short(value: Any) -> str:
    if type(value) in SCALARS:
        return _scalar(value)
    size = f" of {len(value):,}" if type(value) in (*BOXES, dict) else ""
    return f"{NAME_OF(type(value))}{size}"


def _listed(values: Iterable[Any], count: int) -> str:
    shown = ", ".join(map(_short, islice(values, MOST_ITEMS)))
    return f"{shown}, ..." if count > MOST_ITEMS else shown


def _box(value: Any) -> str:
    return f"{len(value):,} long: {_listed(value, len(value))}" if value else "empty"


def _mapping(value: Mapping[Any, Any]) -> str:
    shown = ", ".join(f"{_short(key)}: {_short(each)}" for key, each in islice(value.items(), MOST_ITEMS))
    more = ", ..." if len(value) > MOST_ITEMS else ""
    return f"{len(value):,} keys: {shown}{more}" if value else "empty"


def _function(value: FunctionType) -> str:
    code = value.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    said = (value.__doc__ or "").strip().partition("\n")[0]
    return f"({', '.join(names)}){f' {said}' if said else ''}"


def _class(value: type) -> str:
    names = [name for name, each in vars(value).items() if isinstance(each, FunctionType) and name[:1] != "_"]
    return f"methods: {', '.join(names[:MOST_COLUMNS])}" if names else ""


def _frame(value: Any) -> str:
    rows, columns = value.shape
    shown = ", ".join(f"{name} {kind}" for name, kind in islice(zip(value.columns, value.dtypes, strict=True), 12))
    more = f", and {columns - MOST_COLUMNS} more" if columns > MOST_COLUMNS else ""
    return f"{rows:,} x {columns:,}: {shown}{more}"


def _series(value: Any) -> str:
    begin = value.head(MOST_ITEMS)
    return f"{len(value):,} long, {value.dtype}: {_listed(begin.tolist() if hasattr(begin, 'tolist') else begin, 0)}"


def _array(value: Any) -> str:
    shape = " x ".join(map(str, value.shape)) or "a single number"
    begin = value.flat[:MOST_ITEMS].tolist() if value.dtype.kind in "biufc" else []
    return f"{shape} {value.dtype}{f': {_listed(begin, value.size)}' if begin else ''}"


TABLES: Final[dict[tuple[str, str], Callable[[Any], str]]] = {
    ("pandas", "DataFrame"): _frame,
    ("pandas", "Series"): _series,
    ("polars", "DataFrame"): _frame,
    ("polars", "Series"): _series,
    ("numpy", "ndarray"): _array,
}
