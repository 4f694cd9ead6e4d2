"""What a confined process may reach: the folder it works in, what programs need to run, and what the user named."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["DEVICES", "Reach", "reach"]

SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt"),
    *("/nix", "/run/current-system"),
)
KERNEL: Final = ("/proc", "/sys")
DEVICES: Final = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))


class Reach(NamedTuple):
    """Absolute paths that may be read and run, and those that may be written too. `home` is one of these.

    What is `hidden` lies below one of them and is kept away where that can be done, but for `home`.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    home: str
    network: bool
    hidden: tuple[str, ...] = ()


def reach(
    cwd: Path,
    home: Path,
    *,
    read: Iterable[str] = (),
    write: Iterable[str] = (),
    network: bool = False,
    hidden: Iterable[Path] = (),
) -> Reach:
    """Return the reach of what works in `cwd`, with `home` for its own files, and beyond that `read` and `write`.

    A path may begin with `~`, which is the user's home; a relative one is below `cwd`.
    """
    readable = (*SYSTEM, *_python(), *_absolute(read, cwd))
    writable = (os.path.realpath(cwd), os.fspath(home), *_absolute(write, cwd))
    seen = [Path(path) for path in (*readable, *writable)]
    kept = {path.resolve() for path in hidden}
    kept = {path for path in kept if not cwd.resolve().is_relative_to(path) and _is_below(path, seen)}
    away = sorted(str(path) for path in kept if not _is_below(path, kept - {path}))
    return Reach(tuple(dict.fromkeys(readable)), tuple(dict.fromkeys(writable)), os.fspath(home), network, tuple(away))


def _is_below(path: Path, others: Iterable[Path]) -> bool:
    return any(path.is_relative_to(other) for other in others)


def _python() -> Iterator[str]:
    """Yield where this interpreter and what is installed for it lie, for scripts are run with it."""
    for prefix in (sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))):
        if prefix != "/":
            yield prefix


def _absolute(paths: Iterable[str], cwd: Path) -> Iterator[str]:
    for path in paths:
        yield os.path.realpath(os.path.join(cwd, os.path.expanduser(path)))
