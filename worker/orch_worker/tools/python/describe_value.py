"""Describes a Python value in one line: type, size and first items.

Only values of known types are inspected. The methods of other types are not called, because they may block or have side
effects.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

from orch_protocol.core.values import MAX_BOUND_NAMES, BoundName, ValueDescription

__all__ = ["created_by_agent", "describe_names", "describe_value"]

MAX_ITEMS: Final = 6
MAX_TEXT: Final = 80
MAX_COLUMNS: Final = 12
SCALARS: Final = (bool, int, float, complex, str, bytes, type(None))
_NUMPY_NUMBER: Final = re.compile(r"(?:u?int|float|complex)\d+|bool_?")
CONTAINERS: Final = (list, tuple, set, frozenset)
SIZED: Final = (*SCALARS, *CONTAINERS, dict)
MODULE_OF: Final[Callable[[type], object]] = type.__dict__["__module__"].__get__
NAME_OF: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__


def describe_names(bound: Mapping[str, Any]) -> dict[str, BoundName]:
    """Return the descriptions of the first MAX_BOUND_NAMES of the variables `bound`."""
    return {
        name: BoundName(id(value), describe_value(value), created_by_agent(value))
        for name, value in islice(bound.items(), MAX_BOUND_NAMES)
    }


def created_by_agent(value: Any) -> bool:
    """Return whether the agent's code created `value`.

    Modules, and functions and classes from modules, do not count.
    """
    kind = type(value)  # isinstance is not used, because a value can override `__class__` with code.
    if issubclass(kind, ModuleType):
        return False
    if kind is FunctionType:
        return bool(value.__module__ == "__main__")
    if issubclass(kind, type):
        return _module(value) == "__main__"
    return kind is not BuiltinFunctionType


def describe_value(value: Any) -> ValueDescription:
    """Return the description of `value`. Never raise an exception."""
    kind = type(value)
    package = _module(kind).partition(".")[0]
    type_name = NAME_OF(kind)
    name = type_name if package in ("builtins", "__main__") else f"{package}.{type_name}"
    try:
        describe = _describer_of(kind, package)
        text = describe(value) if describe is not None else ""
        return ValueDescription(name, _size_in_bytes(value, package), text)
    except Exception:  # The value is broken, or the version of its library is unknown.
        return ValueDescription(name)


def _module(kind: type) -> str:
    """Return the module name of `kind` without calling code of its metaclass."""
    module = MODULE_OF(kind)
    return module if type(module) is str else ""


def _describer_of(kind: type, package: str) -> Callable[[Any], str] | None:
    if kind in SCALARS:
        return _describe_scalar
    if kind in CONTAINERS:
        return _describe_container
    if kind is dict:
        return _describe_mapping
    if issubclass(kind, FunctionType):
        return _describe_function
    if kind is type:
        return _describe_class
    if package == "numpy" and _NUMPY_NUMBER.fullmatch(NAME_OF(kind)):
        return lambda value: _describe_scalar(value.item())
    return DESCRIBERS.get((package, NAME_OF(kind)))


def _size_in_bytes(value: Any, package: str) -> int:
    if package in ("numpy", "pandas"):
        size = value.nbytes if hasattr(value, "nbytes") else value.memory_usage(deep=False)
        return int(size.sum() if hasattr(size, "sum") else size)
    if package == "polars" and hasattr(value, "estimated_size"):
        return int(value.estimated_size())
    if type(value) in (*CONTAINERS, dict):
        item_sizes = (sys.getsizeof(each) for each in islice(value, 100) if type(each) in SIZED)
        return sys.getsizeof(value) + sum(item_sizes) * max(1, len(value) // 100)
    return sys.getsizeof(value) if type(value) in SCALARS else 0


def _describe_scalar(value: Any) -> str:
    if isinstance(value, str | bytes):
        is_long = len(value) > MAX_TEXT
        return f"{value[:MAX_TEXT]!r}{f'... ({len(value):,} long)' if is_long else ''}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"about 2 ** {value.bit_length() - 1}"
    return repr(value)


def _describe_item(value: Any) -> str:
    if type(value) in SCALARS:
        return _describe_scalar(value)
    size = f" of {len(value):,}" if type(value) in (*CONTAINERS, dict) else ""
    return f"{NAME_OF(type(value))}{size}"


def _list_items(values: Iterable[Any], count: int) -> str:
    shown = ", ".join(map(_describe_item, islice(values, MAX_ITEMS)))
    return f"{shown}, ..." if count > MAX_ITEMS else shown


def _describe_container(value: Any) -> str:
    return f"{len(value):,} long: {_list_items(value, len(value))}" if value else "empty"


def _describe_mapping(value: Mapping[Any, Any]) -> str:
    shown = ", ".join(
        f"{_describe_item(key)}: {_describe_item(each)}" for key, each in islice(value.items(), MAX_ITEMS)
    )
    more = ", ..." if len(value) > MAX_ITEMS else ""
    return f"{len(value):,} keys: {shown}{more}" if value else "empty"


def _describe_function(value: FunctionType) -> str:
    code = value.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    summary = (value.__doc__ or "").strip().partition("\n")[0]
    return f"({', '.join(names)}){f' {summary}' if summary else ''}"


def _describe_class(value: type) -> str:
    names = [name for name, each in vars(value).items() if isinstance(each, FunctionType) and name[:1] != "_"]
    return f"methods: {', '.join(names[:MAX_COLUMNS])}" if names else ""


def _describe_frame(value: Any) -> str:
    rows, columns = value.shape
    shown = ", ".join(f"{name} {kind}" for name, kind in islice(zip(value.columns, value.dtypes, strict=True), 12))
    more = f", and {columns - MAX_COLUMNS} more" if columns > MAX_COLUMNS else ""
    return f"{rows:,} x {columns:,}: {shown}{more}"


def _describe_series(value: Any) -> str:
    first_items = value.head(MAX_ITEMS)
    first_items = first_items.tolist() if hasattr(first_items, "tolist") else first_items
    return f"{len(value):,} long, {value.dtype}: {_list_items(first_items, 0)}"


def _describe_array(value: Any) -> str:
    shape = " x ".join(map(str, value.shape)) or "a single number"
    first_items = value.flat[:MAX_ITEMS].tolist() if value.dtype.kind in "biufc" else []
    return f"{shape} {value.dtype}{f': {_list_items(first_items, value.size)}' if first_items else ''}"


DESCRIBERS: Final[dict[tuple[str, str], Callable[[Any], str]]] = {
    ("pandas", "DataFrame"): _describe_frame,
    ("pandas", "Series"): _describe_series,
    ("polars", "DataFrame"): _describe_frame,
    ("polars", "Series"): _describe_series,
    ("numpy", "ndarray"): _describe_array,
}
