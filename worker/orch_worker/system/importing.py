"""Imports code from files that are outside the import path."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from operator import attrgetter
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeAlias, TypeVar

from orch_protocol.core.errors import ConfigError

from .threads import describe_exception

__all__ = ["Entry", "Sources", "create_object", "import_error", "load", "load_subclass", "module_at"]

T = TypeVar("T")

Sources: TypeAlias = Mapping[str, bytes]
"""The contents of the files of a folder. Keys are relative paths."""

_exact: dict[str, Sources] = {}
"""The sources that may run. Keys are folders."""


class _PinnedSourceLoader(SourceFileLoader):
    """Compiles the registered source of a file instead of its current content, and ignores bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        for folder, sources in _exact.items():
            if _is_in(path, folder):
                data = sources.get(Path(path).relative_to(folder).as_posix())
                if data is not None:
                    code: CodeType = self.source_to_code(data, path)
                    return code
        raise ImportError(f"{path} did not exist when its folder was read", name=fullname, path=path)


def module_at(path: Path, name: str, *, package: bool = False, only: Sources | None = None) -> ModuleType:
    """Return the module in the `.py` file `path`, imported as `name` even if that name was imported before.

    If `package` is True, the module can use `from . import`. If `only` is given, all imports from the module's folder
    use these sources, and changed files and bytecode are ignored. If the code of the module raises an exception, raise
    this exception without registering the module.
    """
    if only is not None:
        _pin_sources(str(path.parent), only)
    places = [str(path.parent)] if package else None
    loader = _PinnedSourceLoader(name, str(path)) if only is not None else None
    spec = importlib.util.spec_from_file_location(name, path, loader=loader, submodule_search_locations=places)
    assert spec is not None  # The spec exists, because the name ends in .py.
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _pin_sources(folder: str, sources: Sources) -> None:
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
    _exact[folder] = sources
    for place in [place for place in sys.path_importer_cache if _is_in(place, folder)]:
        del sys.path_importer_cache[place]


def _finder(place: str) -> FileFinder:
    """Return the finder for modules in the folder `place`. This function is a path hook.

    Raise ImportError for an unregistered folder.
    """
    if not any(_is_in(place, folder) for folder in _exact):
        raise ImportError(f"{place} is not a registered folder", path=place)
    return FileFinder(place, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_PinnedSourceLoader, SOURCE_SUFFIXES))


def _is_in(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder + os.sep)


# --- Objects named "module:name" ---

Entry = Callable[..., int | None]


def load(entry: str) -> Any:
    """Return the object named by `entry`, in the form "module:name" or "module:Class.name".

    Raise ImportError or AttributeError if the module or function is missing.
    """
    import importlib

    module, _, name = entry.partition(":")
    return attrgetter(name)(importlib.import_module(module))


def load_subclass(path: str, base: type[Any], what: str) -> type[Any]:
    """Return the class with the path `path`, a subclass of `base`. `what` names the class in error messages.

    Raise ConfigError if the class cannot be imported, or is not a subclass of `base`.
    """
    try:
        kind = load(path)
    except (Exception, SystemExit) as error:
        raise import_error(what, error) from error
    if not isinstance(kind, type) or not issubclass(kind, base):
        raise ConfigError(f"{what} must be a subclass of orch.{base.__name__}; it is {kind!r:.80}")
    return kind


def import_error(what: str, error: BaseException) -> ConfigError:
    """Return the error for `what`, a class of the user whose import raised `error`."""
    return ConfigError(
        f"cannot import {what}: {describe_exception(error)}. Install its package beside orch, or put its folder on "
        "PYTHONPATH; the daemon has the PYTHONPATH of its start (`orch daemon stop` ends it)"
    )


def create_object(make: Callable[[], T], what: str) -> T:
    """Return the object created by `make`. Raise ConfigError, with the name `what`, if `make` raises."""
    try:
        return make()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"cannot create {what}: {describe_exception(error)}") from error
