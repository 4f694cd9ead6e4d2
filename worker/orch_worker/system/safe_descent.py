"""Opens files below a folder without following links, even if parts of the path are swapped during the call."""

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
    """Open `relative`, a path without links, below the folder `root`, an absolute path without links.

    Raise OSError if opening fails or if one of the paths now contains a link. If the kernel has openat2 (Linux 5.6),
    this function uses openat2. Otherwise the function opens one folder after the other.
    """
    top = os.open(root, FOLDER)
    try:
        if _real_path(top) not in (root, None):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), root)
        if relative == ".":
            return os.dup(top)
        if _has_openat2():
            return _resolved(top, relative, flags)
        return _walked(top, relative, flags)
    finally:
        os.close(top)


def _real_path(descriptor: int) -> str | None:
    """Return the path of the open folder `descriptor`. Return None if the system cannot tell the path."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


def _resolved(top: int, relative: str, flags: int) -> int:
    name = os.fsencode(relative)
    path = ctypes.create_string_buffer(name, len(name) + 1)
    how = _OpenHow(flags | os.O_CLOEXEC, 0, BENEATH | NO_LINKS | NO_MAGIC_LINKS)
    for _ in range(TRIES):
        try:
            return linux.syscall(OPENAT2, top, ctypes.addressof(path), ctypes.addressof(how), ctypes.sizeof(how))
        except OSError as error:
            if error.errno != errno.EAGAIN:  # EAGAIN means that a component was renamed during the call.
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
    """Return whether openat2 works on this machine. The function tries a call.

    The kernel may lack openat2, or a seccomp filter may block it.
    """
    if not linux.LINUX:
        return False
    try:
        top = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(_resolved(top, "proc", os.O_RDONLY | os.O_DIRECTORY))
        finally:
            os.close(top)
    except FileNotFoundError:
        return True  # The call itself works.
    except OSError:
        return False
    return True
