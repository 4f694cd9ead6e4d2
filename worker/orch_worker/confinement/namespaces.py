"""A world of its own for a command, by bubblewrap: no other processes, no network, no files but those named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Final

from .reach import Reach

__all__ = ["PROGRAM", "arguments", "missing"]

PROGRAM: Final = "bwrap"
SCRATCH_BYTES: Final = 1 << 30


def missing() -> str:
    """Return why there can be no namespaces here before they are tried, "" where they can be tried."""
    return "" if shutil.which(PROGRAM) else "bubblewrap (the program bwrap) is not installed"


def arguments(reach: Reach, cwd: str, filter: int, argv: Sequence[str]) -> list[str]:
    """Return `argv` in namespaces of its own with `cwd` as its folder.

    `filter` is a descriptor that the program inherits and reads the filter of system calls from.
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
    return [*made, "--remount-ro", "/", "--chdir", cwd, "--", *argv]
