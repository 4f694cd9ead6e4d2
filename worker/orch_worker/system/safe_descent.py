"""Opening what lies below a folder, whatever is swapped on the way meanwhile: no link is followed."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from typing import Final

from . import linux

__all__ = ["FOLDER", "open_below"]

OPENAT2: Final = 437
NO_MAGIC_LINKS: Final = 0x02
NO_LINKS: Final = 0x04
BENEATH: Final = 0x08
TRIES: Final = 32
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_below(root: str, relative: str, flags: int) -> int:
    """Open `relative`, a path without links, below the folder `root`. Raises OSError, also when a link is there now.

    One call where the kernel has it (Linux 5.6), else folder by folder.
    """
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if relative == ".":
            return os.dup(top)
        if _has_openat2():
            return _resolved(top, relative, flags)
        return _walked(top, relative, flags)
    finally:
        os.close(top)


def _resolved(top: int, relative: str, flags: int) -> int:
    name = os.fsencode(relative)
    path = ctypes.create_string_buffer(name, len(name) + 1)
    how = _OpenHow(flags | os.O_CLOEXEC, 0, BENEATH | NO_LINKS | NO_MAGIC_LINKS)
    for _ in range(TRIES):
        try:
            return linux.syscall(OPENAT2, top, ctypes.addressof(path), ctypes.addressof(how), ctypes.sizeof(how))
        except OSError as error:
            if error.errno != errno.EAGAIN:  # something was renamed at that very moment
                raise OSError(error.errno, error.strerror, relative) from None
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), relative)


def _walked(top: int, relative: str, flags: int) -> int:
    *folders, name = relative.split("/")
    if ".." in (*folders, name):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), relative)
    here = top
    try:
        for part in folders:
            below = os.open(part, FOLDER, dir_fd=here)
            if here != top:
                os.close(here)
            here = below
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    finally:
        if here != top:
            os.close(here)


@cache
def _has_openat2() -> bool:
    """Whether the kernel has the call, and what watches over this process lets it through: tried, not guessed."""
    if not linux.LINUX:
        return False
    try:
        top = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(_resolved(top, "proc", os.O_RDONLY | os.O_DIRECTORY))
        finally:
            os.close(top)
    except FileNotFoundError:
        return True  # it was understood
    except OSError:
        return False
    return True
