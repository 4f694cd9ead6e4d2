"""A world of its own for a command, by bubblewrap: no other processes, no network, no files but those named."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .launcher import Cover

__all__ = [
    "DEVICES",
    "PROGRAM",
    "SandboxPaths",
    "bubblewrap_command",
    "python_folders",
    "sandbox_paths",
    "unavailable_reason",
]


# --- What a confined process may reach ---

SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt"),
    *("/nix", "/run/current-system"),
)
KERNEL: Final = ("/proc", "/sys")
DEVICES: Final = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))


class SandboxPaths(NamedTuple):
    """Absolute paths that may be read and run, and those that may be written too. `home` is one of these.

    What is `hidden` lies below one of them and is kept away where that can be done, but for `home`.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    home: str
    network: bool
    hidden: tuple[str, ...] = ()


def sandbox_paths(
    cwd: Path,
    home: Path,
    *,
    read: Iterable[str] = (),
    write: Iterable[str] = (),
    network: bool = False,
    hidden: Iterable[Path] = (),
) -> SandboxPaths:
    """Return the reach of what works in `cwd`, with `home` for its own files, and beyond that `read` and `write`.

    A path may begin with `~`, which is the user's home; a relative one is below `cwd`.
    """
    readable = (*SYSTEM, *python_folders(), *_absolute(read, cwd))
    writable = (os.path.realpath(cwd), os.fspath(home), *_absolute(write, cwd))
    seen = [Path(path) for path in (*readable, *writable)]
    kept = {path.resolve() for path in hidden}
    kept = {path for path in kept if not cwd.resolve().is_relative_to(path) and _is_below(path, seen)}
    away = sorted(str(path) for path in kept if not _is_below(path, kept - {path}))
    return SandboxPaths(
        tuple(dict.fromkeys(readable)), tuple(dict.fromkeys(writable)), os.fspath(home), network, tuple(away)
    )


def _is_below(path: Path, others: Iterable[Path]) -> bool:
    return any(path.is_relative_to(other) for other in others)


def python_folders() -> Iterator[str]:
    """Yield where this interpreter and what is installed for it lie, for scripts are run with it."""
    for prefix in (sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))):
        if prefix != "/":
            yield prefix


def _absolute(paths: Iterable[str], cwd: Path) -> Iterator[str]:
    for path in paths:
        yield os.path.realpath(os.path.join(cwd, os.path.expanduser(path)))


PROGRAM: Final = "bwrap"
SCRATCH_BYTES: Final = 1 << 30


def unavailable_reason() -> str:
    """Return why there can be no namespaces here before they are tried, "" where they can be tried."""
    return "" if shutil.which(PROGRAM) else "bubblewrap (the program bwrap) is not installed"


def bubblewrap_command(
    reach: SandboxPaths, cwd: str, filter: int, argv: Sequence[str], covers: Iterable[Cover] = ()
) -> list[str]:
    """Return `argv` in namespaces of its own with `cwd` as its folder.

    `filter` is a descriptor that the program inherits and reads the filter of system calls from. What is at or below
    `covers` cannot be read, except for what these leave visible.
    """
    made = [
        *(
            shutil.which(PROGRAM) or PROGRAM,
            "--unshare-all",
            "--die-with-parent",
            "--cap-drop",
            "ALL",
            "--seccomp",
            str(filter),
        ),
        *(("--share-net",) if reach.network else ()),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp"),
    ]
    for path in reach.read:
        if os.path.islink(path) and path.count("/") == 1:
            made += ("--symlink", os.readlink(path), path)  # /bin and its kin, where they are parts of /usr
        else:
            made += ("--ro-bind-try", path, path)
    for path in reach.write:
        if path != reach.home:
            made += ("--bind-try", path, path)
    for path in reach.hidden:
        made += ("--tmpfs", path)
    made += ("--bind", reach.home, reach.home)
    shown = [Path(path) for path in (*reach.read, *reach.write)]
    for cover in covers:
        if cover.path in reach.hidden or not _is_below(Path(cover.path), shown):
            continue
        if os.path.isdir(cover.path):
            made += ("--tmpfs", cover.path)
            made += [part for path in cover.writable for part in ("--bind-try", path, path)]
            made += [part for path in cover.readable for part in ("--ro-bind-try", path, path)]
            made += ("--remount-ro", cover.path)
        else:
            made += ("--ro-bind", "/dev/null", cover.path)  # a device, which cannot be opened in the namespace
    return [*made, "--remount-ro", "/", "--chdir", cwd, "--", *argv]
