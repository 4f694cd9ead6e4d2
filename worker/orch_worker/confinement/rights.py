"""Giving up what a process could do beyond an ordinary program of its user. For the calling thread, and for good."""

from __future__ import annotations

import ctypes
import os
from typing import Final

from .. import kernel

__all__ = ["give_up", "given_up"]

PR_CAPBSET_DROP: Final = 24
PR_SET_SECUREBITS: Final = 28
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
CAPABILITY_VERSION: Final = 0x20080522
# The superuser's programs get no rights by being his, and nothing brings that back (NOROOT and its lock).
NO_ROOT: Final = 0b11
LAST_CAPABILITY: Final = 63


def give_up() -> None:
    """Let this thread, and what it starts, have no capability and gain none by any program. Raises OSError."""
    for capability in range(LAST_CAPABILITY + 1):
        try:
            kernel.prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # there are no more of them, or it never had the right to drop one, nor any other
    for option, argument in ((PR_SET_SECUREBITS, NO_ROOT), (PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)):
        try:
            kernel.prctl(option, argument)
        except OSError:
            pass  # what it cannot do, it need not do: without new privileges nothing is gained either
    head = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(head, sets):
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")
    kernel.prctl(PR_SET_NO_NEW_PRIVS, 1)


def given_up() -> bool:
    """Whether the calling thread has no capability, and cannot gain any."""
    with open("/proc/thread-self/status", encoding="ascii", errors="replace") as file:
        said = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    return said.get("NoNewPrivs", "").strip() == "1" and int(said.get("CapEff", "1"), 16) == 0
