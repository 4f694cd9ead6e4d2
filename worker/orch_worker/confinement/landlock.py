"""Landlock: which files the calling thread, and what it starts, may reach. What is not named is out of reach."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from typing import Final

from .. import kernel

__all__ = ["abi", "gaps", "restrict"]

CREATE_RULESET: Final = 444
ADD_RULE: Final = 445
RESTRICT_SELF: Final = 446
ASK_VERSION: Final = 1
PATH_BENEATH: Final = 1

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
TRUNCATE: Final = 1 << 14
IOCTL_DEV: Final = 1 << 15
OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ: Final = EXECUTE | READ_FILE | READ_DIR
TCP: Final = 0b11
ABSTRACT_SOCKETS_AND_SIGNALS: Final = 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """Return which version of Landlock the kernel speaks. Raises OSError where there is none, or it is switched off."""
    return kernel.syscall(CREATE_RULESET, 0, 0, ASK_VERSION)


def gaps(version: int) -> list[str]:
    """Return what Landlock of that `version` cannot keep a program from, in words."""
    found = []
    if version < 3:
        found.append("emptying files elsewhere (Linux before 6.2)")
    if version < 6:
        found.append("signals to other processes of the user (Linux before 6.12)")
    return found


def restrict(read: Iterable[str], write: Iterable[str], *, network: bool) -> None:
    """Let this thread read and run what is at or below `read`, and do anything with what is at or below `write`.

    What is not there is left out. Without `network` no TCP port is bound or connected to. It has given up new
    privileges before. Raises OSError, and then nothing has changed.
    """
    version = abi()
    files = _files(version)
    net = 0 if network or version < 4 else TCP
    attributes = _Ruleset(files, net, ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 8 if version < 4 else 16 if version < 6 else ctypes.sizeof(_Ruleset)
    ruleset = kernel.syscall(CREATE_RULESET, ctypes.addressof(attributes), size, 0)
    try:
        for path in read:
            _allow(ruleset, path, READ)
        for path in write:
            _allow(ruleset, path, files)
        kernel.syscall(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _files(version: int) -> int:
    """Return every right over files that this `version` knows."""
    return (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= OF_FILES
        rule = _Beneath(access & _files(abi()), descriptor)
        kernel.syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.addressof(rule), 0)
    finally:
        os.close(descriptor)
