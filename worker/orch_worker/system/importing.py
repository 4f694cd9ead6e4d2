"""Imports code from files that are outside the import path."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from operator import attrgetter
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, TypeAlias, TypeVar

from orch_protocol.core.errors import ConfigError

from .threads import describe_exception

__all__ = ["Entry", "Sources", "create_object", "import_error", "load", "load_subclass", "module_at", "pin_files"]

T = TypeVar("T")

Sources: TypeAlias = Mapping[str, bytes]
"""The contents of the files of a folder. Keys are relative paths."""
Refused: TypeAlias = Callable[[str, str, bool], bool]

_exact: dict[str, Sources] = {}
"""The sources that may run. Keys are folders."""

_files: dict[str, bytes] = {}
"""The contents of files that may run. Keys are absolute paths."""


class _PinnedSourceLoader(SourceFileLoader):
    """Compiles the registered source of a file instead of its current content, and ignores bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        pinned = _files.get(path)
        if pinned is not None:
            checked: CodeType = self.source_to_code(pinned, path)
            return checked
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
    use these sources, and changed files and bytecode are ignored. The same applies to a file of `pin_files`. If the
    code of the module raises an exception, raise this exception without registering the module.
    """
    if only is not None:
        _pin_sources(str(path.parent), only)
    places = [str(path.parent)] if package else None
    is_pinned = only is not None or os.path.abspath(path) in _files
    loader = _PinnedSourceLoader(name, os.path.abspath(path)) if is_pinned else None
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


def pin_files(sources: Sources, is_refused: Refused | None = None) -> None:
    """Let imports of the files in `sources` use these contents instead of files and bytecode. Keys are absolute paths.

    `is_refused(name, file, by_pinned)` returns whether the file of the module `name`, which is not pinned, must not be
    loaded. `by_pinned` is True if code of pinned files imports the module.
    """
    _files.update(sources)
    if is_refused is not None:
        _pinned_finder.refusals.append(is_refused)
    if _pinned_finder not in sys.meta_path:
        sys.meta_path.insert(0, _pinned_finder)


class _PinnedFinder:
    """Finds modules like the other finders of this process, but pinned files run with their pinned contents."""

    def __init__(self) -> None:
        self.refusals: list[Refused] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module. Raise ImportError for a file that was not pinned and must not be loaded."""
        spec = self._spec_of_others(name, path, target)
        if spec is None or spec.origin is None or not spec.has_location or target is not None:
            return spec
        file = os.path.abspath(spec.origin)
        if any(_is_in(file, folder) for folder in _exact):
            return spec  # The finder of the folder pins its files.
        if file in _files and file.endswith(tuple(SOURCE_SUFFIXES)):
            return importlib.util.spec_from_file_location(
                name,
                file,
                loader=_PinnedSourceLoader(name, file),
                submodule_search_locations=spec.submodule_search_locations,
            )
        if self.refusals:
            by_pinned = _is_imported_by_pinned_code()
            if any(is_refused(name, file, by_pinned) for is_refused in self.refusals):
                problem = "is compiled" if file in _files else "is not among the files that the user trusted"
                raise ImportError(
                    f"{file} {problem}, so code of the project cannot import it: install it in the environment of orch",
                    name=name,
                    path=file,
                )
        return spec

    def _spec_of_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in tuple(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if not isinstance(finder, _PinnedFinder) and find is not None:
                spec: ModuleSpec | None = find(name, path, target)
                if spec is not None:
                    return spec
        return None


_pinned_finder = _PinnedFinder()


def _is_imported_by_pinned_code() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file in _files or any(_is_in(file, folder) for folder in _exact):
            return True
        frame = frame.f_back
    return False


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
