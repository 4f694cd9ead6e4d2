"""Landlock: restricts the calling thread and its children to a list of files and folders."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from typing import Final

from ..system import linux

__all__ = ["drop_capabilities", "has_no_capabilities", "landlock_abi", "landlock_gaps", "restrict"]


CREATE_RULESET: Final = 444
ADD_RULE: Final = 445
RESTRICT_SELF: Final = 446
VERSION_FLAG: Final = 1
PATH_BENEATH: Final = 1

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
TRUNCATE: Final = 1 << 14
IOCTL_DEV: Final = 1 << 15
FILE_RIGHTS: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ_RIGHTS: Final = EXECUTE | READ_FILE | READ_DIR
TCP_RIGHTS: Final = 0b11
ABSTRACT_SOCKETS_AND_SIGNALS: Final = 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_abi() -> int:
    """Return the Landlock version of the kernel. Raise OSError if Landlock is missing or disabled."""
    return linux.syscall(CREATE_RULESET, 0, 0, VERSION_FLAG)


def landlock_gaps(version: int) -> list[str]:
    """Return descriptions of the actions that Landlock version `version` cannot prevent."""
    found = []
    if version < 3:
        found.append("emptying files elsewhere (Linux before 6.2)")
    if version < 6:
        found.append("signals to other processes of the user (Linux before 6.12)")
    return found


def restrict(read: Iterable[str], write: Iterable[str], *, network: bool) -> None:
    """Allow this thread to read and execute files in `read`, and to do everything with files in `write`.

    `read` and `write` contain files, and folders with all their contents. Missing paths are skipped. If `network` is
    False, TCP bind and connect are denied. The thread must have set no-new-privileges before (see `drop_capabilities`).
    Raise OSError if a step fails; in this case, nothing has changed.
    """
    version = landlock_abi()
    file_rights = _file_rights(version)
    tcp_rights = 0 if network or version < 4 else TCP_RIGHTS
    attributes = _Ruleset(file_rights, tcp_rights, ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 8 if version < 4 else 16 if version < 6 else ctypes.sizeof(_Ruleset)
    ruleset = linux.syscall(CREATE_RULESET, ctypes.addressof(attributes), size, 0)
    try:
        for path in read:
            _allow(ruleset, path, READ_RIGHTS)
        for path in write:
            _allow(ruleset, path, file_rights)
        linux.syscall(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _file_rights(version: int) -> int:
    """Return the bits of all file rights supported in `version`."""
    return (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= FILE_RIGHTS
        rule = _PathBeneath(access & _file_rights(landlock_abi()), descriptor)
        linux.syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.addressof(rule), 0)
    finally:
        os.close(descriptor)


# --- Dropping privileges ---

PR_CAPBSET_DROP: Final = 24
PR_SET_SECUREBITS: Final = 28
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
CAPABILITY_VERSION: Final = 0x20080522
# SECBIT_NOROOT and its lock: programs of root get no capabilities.
NO_ROOT: Final = 0b11
LAST_CAPABILITY: Final = 63


def drop_capabilities(keep: int | None = None) -> None:
    """Drop all capabilities of this thread except `keep`.

    Prevent the thread and its children from gaining new capabilities.

    Raise OSError if a system call fails.
    """
    for capability in range(LAST_CAPABILITY + 1):
        if capability == keep:
            continue
        try:
            linux.prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # The last capability was passed, or this process may not drop capabilities.
    no_root = ((PR_SET_SECUREBITS, NO_ROOT),) if keep is None else ()  # With NOROOT, `keep` would be lost at exec.
    for option, argument in (*no_root, (PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)):
        try:
            linux.prctl(option, argument)
        except OSError:
            pass  # This step is not essential, because no-new-privileges has the same effect.
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    kept_bits = 0 if keep is None else 1 << keep
    # Effective, permitted, inheritable; low half.
    data = (ctypes.c_uint32 * 6)(kept_bits & 0xFFFFFFFF, kept_bits & 0xFFFFFFFF)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(header, data):
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")
    linux.prctl(PR_SET_NO_NEW_PRIVS, 1)


def has_no_capabilities() -> bool:
    """Return whether the calling thread has no capabilities and cannot gain any capability."""
    with open("/proc/thread-self/status", encoding="ascii", errors="replace") as file:
        fields = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    return fields.get("NoNewPrivs", "").strip() == "1" and int(fields.get("CapEff", "1"), 16) == 0
