"""The function that a worker runs, named as "module:name"."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Entry", "load"]

Entry = Callable[..., int | None]


def load(entry: str) -> Entry:
    """Return the function that `entry`, "module:name", names. Raises ImportError or AttributeError."""
    import importlib

    module, _, name = entry.partition(":")
    function: Entry = getattr(importlib.import_module(module), name)
    return function
