"""Importing code that somebody put in a file, and that no package path leads to."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TypeAlias

__all__ = ["Entry", "Sources", "load", "module_at"]


Sources: TypeAlias = Mapping[str, bytes]
"""The files of a folder, by path below it."""

_exact: dict[str, Sources] = {}
"""What may run of which folders."""


class _PinnedSourceLoader(SourceFileLoader):
    """Compiles what the file held when somebody looked at it, and knows of no bytecode, which nobody looks at."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        for folder, sources in _exact.items():
            if _is_in(path, folder):
                data = sources.get(Path(path).relative_to(folder).as_posix())
                if data is not None:
                    code: CodeType = self.source_to_code(data, path)
                    return code
        raise ImportError(f"{path} was not there when its folder was looked at", name=fullname, path=path)


def module_at(path: Path, name: str, *, package: bool = False, only: Sources | None = None) -> ModuleType:
    """Return the module in the file `path`, which must end in `.py`, imported as `name` whether it was before or not.

    As a `package` it may import its neighbours by `from . import`. With `only` nothing else runs of its folder, also by
    other ways of importing: no file that was changed since, and no bytecode. Raises what its code raises; then it is
    not there.
    """
    if only is not None:
        _look_at(str(path.parent), only)
    places = [str(path.parent)] if package else None
    loader = _PinnedSourceLoader(name, str(path)) if only is not None else None
    spec = importlib.util.spec_from_file_location(name, path, loader=loader, submodule_search_locations=places)
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


def _look_at(folder: str, sources: Sources) -> None:
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
    _exact[folder] = sources
    for place in [place for place in sys.path_importer_cache if _is_in(place, folder)]:
        del sys.path_importer_cache[place]


def _finder(place: str) -> FileFinder:
    """Return what finds modules in `place`, a path hook of Python's. Raises ImportError for any other folder."""
    if not any(_is_in(place, folder) for folder in _exact):
        raise ImportError(f"{place} is not a registered folder", path=place)
    return FileFinder(place, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_PinnedSourceLoader, SOURCE_SUFFIXES))


def _is_in(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder + os.sep)


# --- The function that a worker runs, named as "module:name" ---

Entry = Callable[..., int | None]


def load(entry: str) -> Entry:
    """Return the function that `entry`, "module:name", names. Raises ImportError or AttributeError."""
    import importlib

    module, _, name = entry.partition(":")
    function: Entry = getattr(importlib.import_module(module), name)
    return function
