"""The code and texts that a project's configuration names: finding, hashing and loading them.

The user trusts the configuration together with these files. After a change of one of them, nothing of them is loaded
until the user trusts the folder again. The bytes that were hashed run, so a later change of the file has no effect.
"""

from __future__ import annotations

import ast
import errno
import hashlib
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Final

from orch_protocol.agent.project import ProjectCode
from orch_protocol.core.errors import ConfigError

from .files import bytes_of
from .folder_digest import MAX_BYTES
from .importing import pin_files
from .trust_file import TrustFile

__all__ = [
    "CONFIG_KEY",
    "FileDigests",
    "changed_files",
    "digest",
    "digests_of",
    "file_list",
    "is_project_file",
    "pin",
    "read_files",
    "use_trusted_code",
]

CONFIG_KEY: Final = ".orch/config.toml"
"""The key of the configuration among the trusted digests. All other keys are absolute paths."""
MISSING: Final = ""
"""The digest of a file that does not exist. If it is created later, it has changed."""
MAX_NAMED: Final = 5
OWN_PACKAGES: Final = frozenset({"orch", "orch_protocol", "orch_worker"})
SKIPPED_FOLDERS: Final = frozenset({"__pycache__", ".git"})
INSTALLED_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})

Files = dict[str, bytes | None]
"""Contents by absolute path. None stands for a file that does not exist."""
FileDigests = dict[str, str]


def use_trusted_code(code: ProjectCode, *, own_process: bool = True) -> None:
    """Let this process load exactly the files that the user trusted.

    If the process runs only code of orch and `code` (`own_process`), the code cannot import other files of the project.
    Raise ConfigError if the folder is not trusted, or if one of the files changed. The message names these files.
    """
    trusted = TrustFile(Path(code.trust)).read().files_of(code.folder)
    if trusted is None:
        raise ConfigError(
            f"{code.folder} is not trusted, and its configuration names code of this agent: read it, then orch config "
            f"trust {code.folder}"
        )
    # The settings of the configuration are part of the agent's spec.
    trusted = {path: hash for path, hash in trusted.items() if path != CONFIG_KEY}
    files = read_files(code, trusted)
    if changed := changed_files(trusted, digests_of(files)):
        raise ConfigError(
            f"{code.folder} is no longer trusted, because these files changed: {file_list(changed, code.folder)}. Read "
            f"them, then: orch config trust {code.folder}"
        )
    pin(code, files, own_process=own_process)


def pin(code: ProjectCode, files: Files, *, own_process: bool = False) -> None:
    """Let imports of `files` in this process use these bytes. See `use_trusted_code` about `own_process`."""
    sources = {path: data for path, data in files.items() if data is not None}
    covered, named = _covered_folders(code), {name for module in code.modules for name in _with_parents(module)}
    own_places = _own_places()

    def is_refused(name: str, file: str, by_pinned: bool) -> bool:
        if name.partition(".")[0] in OWN_PACKAGES:
            # Code of the project may put its folder first on the import path.
            return not any(_is_below(file, place) for place in own_places)
        return (name in named and not _is_installed(file)) or (by_pinned and _is_covered(file, covered))

    pin_files(sources, is_refused if own_process else None)


def read_files(code: ProjectCode, trusted: Iterable[str] = ()) -> Files:
    """Return the files that `code` names, the modules that they import, and the `trusted` files.

    A module belongs to them if it is named, or if it is below the project, beside a named file, or on PYTHONPATH.
    Installed packages and the standard library do not. If a module of a package belongs to them, all modules of the
    package do. Raise ConfigError if they have more than MAX_BYTES.
    """
    importlib.invalidate_caches()
    found = _Reader(code)
    for name in code.files:
        found.add_path(name)
    for name in code.packages:
        for spec in _specs(name):
            for place in () if spec.name != name else spec.submodule_search_locations or ():
                if not _is_installed(place):
                    found.add_path(place)
    for name in code.modules:
        found.add_module(name, named=True)
    found.add_imports()
    known = {_text(path) for path in found.files}
    for path in trusted:
        if path not in known:
            found.read(path)
    return found.files


def digests_of(files: Mapping[str, bytes | None]) -> FileDigests:
    """Return the digest of each file."""
    return {_text(path): MISSING if data is None else digest(data) for path, data in files.items()}


def digest(data: bytes) -> str:
    """Return the digest of the content `data`."""
    return hashlib.sha256(data).hexdigest()


def changed_files(trusted: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """Return the paths of files that are new, changed or removed, in order."""
    return sorted(path for path in {**trusted, **current} if trusted.get(path) != current.get(path))


def file_list(paths: Sequence[str], folder: str | os.PathLike[str]) -> str:
    """Return the names of changed files for a message. Files in `folder` are relative to it."""
    start = os.path.join(os.fspath(folder), "")
    names = [path.removeprefix(start) for path in paths]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


class _Reader:
    """Reads files once, and follows the imports of modules."""

    def __init__(self, code: ProjectCode) -> None:
        self.files: Files = {}
        self._folder = code.folder
        self._covered = _covered_folders(code)
        self._waiting: list[str] = []
        self._packages: set[str] = set()
        self._left = MAX_BYTES

    def add_path(self, name: str) -> None:
        """Add the file `name`, or all files below the folder `name`."""
        for path in _files_below(name) if os.path.isdir(name) else (name,):
            self._add_code(path)

    def add_module(self, name: str, places: Sequence[str] | None = None, *, named: bool = False) -> None:
        """Add the module `name` and the packages above it, as far as `places` contain them.

        With None, search the import path. A `named` module may be in any folder except those of installed packages.
        """
        if name.partition(".")[0] in OWN_PACKAGES:
            return
        for spec in _specs(name, places):
            file = spec.origin if spec.has_location else None
            if file is None or (_is_installed(file) if named else not _is_covered(file, self._covered)):
                continue
            self._add_code(os.path.abspath(file))
            if spec.parent == spec.name and "." not in spec.name and file not in self._packages:
                self._packages.add(file)
                for place in spec.submodule_search_locations or ():
                    for path in _files_below(place):
                        if path.endswith(".py"):
                            self.read(path)

    def add_imports(self) -> None:
        """Add the modules that the code imports, and those that they import."""
        done: set[str] = set()
        while self._waiting:
            path = self._waiting.pop()
            if path in done:
                continue
            done.add(path)
            own, folder = os.path.dirname(path), self._folder
            # Code often adds its own folder, or one above it, to the import path.
            above = [own, *(str(each) for each in Path(own).parents if _is_below(str(each), folder))]
            for level, name in _imports(self.files.get(path) or b""):
                if level:
                    self.add_module(name, [str(Path(own, *[".."] * (level - 1)).resolve())])
                    continue
                self.add_module(name)
                if name.partition(".")[0] not in sys.stdlib_module_names:
                    for place in dict.fromkeys((*above, folder)):
                        self.add_module(name, [place])

    def read(self, path: str) -> None:
        """Add the file at `path`, without the modules that it imports."""
        if path in self.files:
            return
        try:
            data = bytes_of(Path(path), self._left)
        except (FileNotFoundError, NotADirectoryError):
            self.files[path] = None
            return
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise ConfigError(
                    f"the code that the configuration of {self._folder} names has more than {MAX_BYTES >> 20} MiB with "
                    f"{path}: put it into a package of its own"
                ) from error
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        self._left -= len(data)
        self.files[path] = data

    def _add_code(self, path: str) -> None:
        self.read(path)
        if path.endswith(".py"):
            self._waiting.append(path)


def _imports(source: bytes) -> Iterator[tuple[int, str]]:
    """Yield the level and the name of each module that `source` may import.

    Code with a syntax error imports nothing.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            yield from ((node.level, f"{base}{alias.name}") for alias in node.names if alias.name != "*")
            if node.module:
                yield node.level, node.module


def _specs(name: str, places: Sequence[str] | None = None) -> Iterator[ModuleSpec]:
    """Yield the specs of the packages above the module `name`, and of the module. Nothing is imported.

    If `places` is None, search the import path.
    """
    first, *others = name.split(".")
    spec = PathFinder.find_spec(first, _search_path() if places is None else list(places))
    if spec is None and places is None:
        spec = _editable(first)
    full = first
    for part in (*others, ""):
        if spec is None:
            return
        yield spec
        if not part or spec.submodule_search_locations is None:
            return
        full = f"{full}.{part}"
        spec = PathFinder.find_spec(full, list(spec.submodule_search_locations))


def _editable(name: str) -> ModuleSpec | None:
    """Return the spec of a package that was installed in editable mode: such an installation can have a finder."""
    for finder in sys.meta_path:
        if getattr(finder, "__module__", "").startswith("__editable__"):
            spec: ModuleSpec | None = finder.find_spec(name, None)
            if spec is not None:
                return spec
    return None


def _own_places() -> tuple[str, ...]:
    """Return the folders of orch's packages. Nothing is imported."""
    specs = (importlib.util.find_spec(name) for name in sorted(OWN_PACKAGES))
    return tuple(os.path.dirname(spec.origin) for spec in specs if spec is not None and spec.origin is not None)


def _with_parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _files_below(folder: str) -> Iterator[str]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        yield from (os.path.join(root, name) for name in sorted(files))


def _search_path() -> list[str]:
    """Return the import path of workers: that of this process without the folder of the program that it runs."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    own = None if sys.flags.safe_path or main is None else os.path.dirname(os.path.abspath(main))
    return [place for place in sys.path if place and place != own]


def _covered_folders(code: ProjectCode) -> tuple[str, ...]:
    path = (place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place)
    named = (os.path.dirname(name) for name in code.files if name.endswith(".py"))
    return tuple(dict.fromkeys(os.path.abspath(place) for place in (code.folder, *named, *path)))


def is_project_file(file: str, folder: Path) -> bool:
    """Return whether `file` is below the project's `folder` and belongs to no installed package."""
    return _is_covered(file, (str(folder),))


def _is_covered(file: str, folders: Iterable[str]) -> bool:
    places = {os.path.abspath(file), os.path.realpath(file)}
    starts = {start for folder in folders for start in (folder, os.path.realpath(folder))}
    return not _is_installed(file) and any(_is_below(place, start) for place in places for start in starts)


def _is_installed(file: str) -> bool:
    real = os.path.realpath(file)
    if not INSTALLED_FOLDERS.isdisjoint(real.split(os.sep)):
        return True
    return any(_is_below(real, folder) for folder in _installed())


@cache
def _installed() -> frozenset[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    places = (*(sysconfig.get_path(name) for name in names), site.getusersitepackages())
    return frozenset(os.path.realpath(place) for place in places)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _text(path: str) -> str:
    # JSON cannot contain undecodable bytes.
    return os.fsencode(path).decode("utf-8", "backslashreplace")
