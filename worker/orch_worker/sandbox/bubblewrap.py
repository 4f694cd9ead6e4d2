"""Runs a command in namespaces with bubblewrap.

The command sees no other processes, no network, and only listed files.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from ..system.programs import PROGRAM_PATH
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


# --- Paths available in the sandbox ---

SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt"),
    *("/nix", "/run/current-system"),
)
KERNEL: Final = ("/proc", "/sys")
DEVICES: Final = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))


class SandboxPaths(NamedTuple):
    """Absolute paths that can be read and executed, and absolute paths that can also be written. `home` can be written.

    `hidden` are paths below these paths. They are hidden where possible, but `home` stays visible.
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
    """Return the paths for a command that works in `cwd`, including the paths `read` and `write`.

    The command's own files are in `home`. A path may start with `~` for the user's home. A relative path is resolved
    against `cwd`.
    """
    readable = (*SYSTEM, *python_folders(), *_absolute_paths(read, cwd))
    writable = (os.path.realpath(cwd), os.fspath(home), *_absolute_paths(write, cwd))
    visible = [Path(path) for path in (*readable, *writable)]
    hidden_paths = {path.resolve() for path in hidden}
    hidden_paths = {
        path for path in hidden_paths if not cwd.resolve().is_relative_to(path) and _is_below(path, visible)
    }
    outermost = sorted(str(path) for path in hidden_paths if not _is_below(path, hidden_paths - {path}))
    return SandboxPaths(
        tuple(dict.fromkeys(readable)), tuple(dict.fromkeys(writable)), os.fspath(home), network, tuple(outermost)
    )


def _is_below(path: Path, others: Iterable[Path]) -> bool:
    return any(path.is_relative_to(other) for other in others)


def python_folders() -> Iterator[str]:
    """Yield the folders of this Python interpreter and its packages."""
    for prefix in (sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))):
        if prefix != "/":
            yield prefix


def _absolute_paths(paths: Iterable[str], cwd: Path) -> Iterator[str]:
    for path in paths:
        yield os.path.realpath(os.path.join(cwd, os.path.expanduser(path)))


PROGRAM: Final = "bwrap"
SCRATCH_BYTES: Final = 1 << 30


def unavailable_reason() -> str:
    """Return why bubblewrap cannot be used, or "" if it is installed."""
    return "" if shutil.which(PROGRAM, path=PROGRAM_PATH) else "bubblewrap (the program bwrap) is not installed"


def bubblewrap_command(
    paths: SandboxPaths, cwd: str, filter_fd: int, argv: Sequence[str], covers: Iterable[Cover] = ()
) -> list[str]:
    """Return the command line that runs `argv` in new namespaces with the working folder `cwd`.

    `filter_fd` is an inherited descriptor from which bubblewrap reads the seccomp filter. The command cannot read the
    paths in `covers` and below, except for their visible exceptions.
    """
    command = [
        *(
            shutil.which(PROGRAM, path=PROGRAM_PATH) or PROGRAM,
            "--unshare-all",
            "--die-with-parent",
            "--cap-drop",
            "ALL",
            "--seccomp",
            str(filter_fd),
        ),
        *(("--share-net",) if paths.network else ()),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp"),
    ]
    for path in paths.read:
        if os.path.islink(path) and path.count("/") == 1:
            command += ("--symlink", os.readlink(path), path)  # These are links such as /bin, if they point into /usr.
        else:
            command += ("--ro-bind-try", path, path)
    for path in paths.write:
        if path != paths.home:
            command += ("--bind-try", path, path)
    visible = [Path(path) for path in (*paths.read, *paths.write)]
    covers = [cover for cover in covers if cover.path not in paths.hidden and _is_below(Path(cover.path), visible)]
    # A mount point cannot be renamed. See `launcher.hide`.
    for folder in sorted({parent for cover in covers for parent in Path(cover.path).parents}):
        if any(Path(path) in folder.parents for path in paths.write):
            command += ("--bind-try", os.fspath(folder), os.fspath(folder))
    for path in paths.hidden:
        command += ("--tmpfs", path)
    command += ("--bind", paths.home, paths.home)
    for cover in covers:
        if os.path.isdir(cover.path):
            command += ("--tmpfs", cover.path)
            exceptions = [("--ro-bind-try", path) for path in cover.readable]
            exceptions += [("--bind-try", path) for path in cover.writable]
            # A folder comes before paths in it, because its mount would hide theirs.
            for option, path in sorted(exceptions, key=itemgetter(1)):
                command += (option, path, path)
            command += ("--remount-ro", cover.path)
        else:
            command += ("--ro-bind", "/dev/null", cover.path)  # Device files cannot be opened in the namespace.
    return [*command, "--remount-ro", "/", "--chdir", cwd, "--", *argv]
