"""Values of libraries that a user's code has imported, told by their types: nothing is imported to look at them."""

from __future__ import annotations

import sys
from typing import Any, Final

__all__ = ["PANIC", "is_array", "is_frame", "is_series", "library_of", "type_name"]

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
