"""Importing code that somebody put in a file, and that no package path leads to."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["module_at"]


def module_at(path: Path, name: str, *, package: bool = False) -> ModuleType:
    """Return the module in the file `path`, which must end in `.py`, imported as `name` whether it was before or not.

    As a `package` it may import its neighbours by `from . import`. Raises what its code raises; then it is not there.
    """
    places = [str(path.parent)] if package else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=places)
    assert spec is not None  # its name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
