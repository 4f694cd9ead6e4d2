"""Landlock: which files the calling thread, and what it starts, may reach. What is not named is out of reach."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from typing import Final

from ..system import linux

__all__ = ["give_up", "given_up", "landlock_abi", "landlock_gaps", "restrict"]


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


def landlock_abi() -> int:
    """Return which version of Landlock the kernel speaks. Raises OSError where there is none, or it is switched off."""
    return linux.syscall(CREATE_RULESET, 0, 0, ASK_VERSION)


def landlock_gaps(version: int) -> list[str]:
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
    version = landlock_abi()
    files = _files(version)
    net = 0 if network or version < 4 else TCP
    attributes = _Ruleset(files, net, ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 8 if version < 4 else 16 if version < 6 else ctypes.sizeof(_Ruleset)
    ruleset = linux.syscall(CREATE_RULESET, ctypes.addressof(attributes), size, 0)
    try:
        for path in read:
            _allow(ruleset, path, READ)
        for path in write:
            _allow(ruleset, path, files)
        linux.syscall(RESTRICT_SELF, ruleset, 0)
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
        rule = _Beneath(access & _files(landlock_abi()), descriptor)
        linux.syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.addressof(rule), 0)
    finally:
        os.close(descriptor)


# --- Giving up what a process could do beyond an ordinary program of its user ---

PR_CAPBSET_DROP: Final = 24
PR_SET_SECUREBITS: Final = 28
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
CAPABILITY_VERSION: Final = 0x20080522
# The superuser's programs get no rights by being his, and nothing brings that back (NOROOT and its lock).
NO_ROOT: Final = 0b11
LAST_CAPABILITY: Final = 63


def give_up(keep: int | None = None) -> None:
    """Let this thread, and what it starts, have no capability but `keep`, and gain none by any program.

    Raises OSError.
    """
    for capability in range(LAST_CAPABILITY + 1):
        if capability == keep:
            continue
        try:
            linux.prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # there are no more of them, or it never had the right to drop one, nor any other
    no_root = ((PR_SET_SECUREBITS, NO_ROOT),) if keep is None else ()  # a kept one must survive the start of a program
    for option, argument in (*no_root, (PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)):
        try:
            linux.prctl(option, argument)
        except OSError:
            pass  # what it cannot do, it need not do: without new privileges nothing is gained either
    head = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    kept = 0 if keep is None else 1 << keep
    sets = (ctypes.c_uint32 * 6)(kept & 0xFFFFFFFF, kept & 0xFFFFFFFF)  # effective, permitted, inheritable; low half
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(head, sets):
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")
    linux.prctl(PR_SET_NO_NEW_PRIVS, 1)


def given_up() -> bool:
    """Whether the calling thread has no capability, and cannot gain any."""
    with open("/proc/thread-self/status", encoding="ascii", errors="replace") as file:
        said = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    return said.get("NoNewPrivs", "").strip() == "1" and int(said.get("CapEff", "1"), 16) == 0
