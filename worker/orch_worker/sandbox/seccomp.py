"""A seccomp filter that denies network sockets, namespaces and the system calls that Landlock does not cover.

This module builds the BPF program. The kernel runs the program before each system call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ..system import linux

__all__ = ["apply_filter", "build_filter", "memory_file", "unavailable_reason"]

PR_SET_SECCOMP: Final = 22
MODE_FILTER: Final = 2

LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN: Final = 0x06
ALLOW: Final = 0x7FFF0000
ERROR: Final = 0x00050000
NUMBER_OFFSET: Final = 0
ARCHITECTURE_OFFSET: Final = 4
ARGUMENTS_OFFSET: Final = 16

X32: Final = 0x40000000
NAMESPACES: Final = 0x7E020000
SOCKET_KIND: Final = 0xF
STREAM: Final = 1
DATAGRAM: Final = 2
INTERNET: Final = 2
INTERNET_6: Final = 10
NETLINK: Final = 16

# System call numbers on x86_64 and aarch64. Newer system calls have the same number on both.
CALL_NUMBERS: Final[dict[str, tuple[int, int]]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "open_by_handle_at": (304, 265),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
}
CALLS_WITH_ARGUMENT_CHECKS: Final = frozenset({"socket", "socketpair", "clone", "clone3"})


class _Architecture(NamedTuple):
    column: int
    audit: int


MACHINES: Final = {"x86_64": _Architecture(0, 0xC000003E), "aarch64": _Architecture(1, 0xC00000B7)}

Instruction = tuple[int, int, int, int]


def unavailable_reason(machine: str | None = None) -> str:
    """Return why seccomp cannot be used on `machine` (default: this machine), or "" if it can be used."""
    name = machine or platform.machine()
    return "" if name in MACHINES else f"no filter of system calls is known for {name} processors"


def build_filter(machine: str | None = None, *, sockets: bool, network: bool) -> bytes:
    """Return the filter in the kernel's format.

    If `sockets` is True, the filter denies sockets, except internet sockets if `network` is True. If `sockets` is
    False, all sockets are allowed, for a process in its own network namespace.
    """
    architecture = MACHINES[machine or platform.machine()]
    code = [
        *((LOAD, 0, 0, ARCHITECTURE_OFFSET), (EQUAL, 1, 0, architecture.audit), _deny(errno.EPERM)),
        (LOAD, 0, 0, NUMBER_OFFSET),
    ]
    if architecture.column == 0:  # The x32 ABI uses other numbers, which have this bit set.
        code += [(AT_LEAST, 0, 1, X32), _deny(errno.EPERM)]

    def call_number(name: str) -> int:
        return CALL_NUMBERS[name][architecture.column]

    for name in CALL_NUMBERS:
        if name not in CALLS_WITH_ARGUMENT_CHECKS:
            code += _for_call(call_number(name), [_deny(errno.EPERM)])
    # The filter cannot read the arguments of clone3, which are in memory. After ENOSYS, programs use clone instead.
    code += _for_call(call_number("clone3"), [_deny(errno.ENOSYS)])
    code += _for_call(call_number("clone"), [_load_argument(0), (ANY_BIT, 0, 1, NAMESPACES), _deny(errno.EPERM)])
    if sockets:
        code += _for_call(call_number("socket"), _internet_only() if network else [_deny(errno.EACCES)])
        # A datagram socket of a socket pair could send to any other socket by path.
        datagram: list[Instruction] = [_load_argument(1), (AND, 0, 0, SOCKET_KIND), (EQUAL, 0, 1, DATAGRAM)]
        code += _for_call(call_number("socketpair"), [*datagram, _deny(errno.EACCES)])
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *each) for each in code)


def apply_filter(code: bytes) -> None:
    """Apply the filter `code` to the calling thread and its children. Raise OSError if the kernel refuses the filter.

    The thread must have set no-new-privileges before.
    """
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    program = Program(len(code) // 8, ctypes.addressof(buffer))
    linux.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.addressof(program))


def memory_file(code: bytes) -> int:
    """Return a descriptor from which another program can read `code`. The caller closes the descriptor."""
    descriptor = os.memfd_create("filter", os.MFD_CLOEXEC)
    os.write(descriptor, code)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _internet_only() -> list[Instruction]:
    """Return code that allows internet stream and datagram sockets, and netlink sockets, which list network addresses.

    The code denies all other sockets.
    """
    return [
        _load_argument(0),
        *((EQUAL, 8, 0, NETLINK), (EQUAL, 2, 0, INTERNET), (EQUAL, 1, 0, INTERNET_6), _deny(errno.EACCES)),
        *(_load_argument(1), (AND, 0, 0, SOCKET_KIND)),
        *((EQUAL, 2, 0, STREAM), (EQUAL, 1, 0, DATAGRAM), _deny(errno.EACCES)),
    ]


def _load_argument(index: int) -> Instruction:
    return LOAD, 0, 0, ARGUMENTS_OFFSET + 8 * index


def _deny(error_number: int) -> Instruction:
    return RETURN, 0, 0, ERROR | error_number


def _for_call(call_number: int, instructions: Sequence[Instruction]) -> list[Instruction]:
    """Return code that runs `instructions` for the system call `call_number`.

    For other calls, continue with the number loaded.
    """
    if instructions[-1][0] == RETURN and len(instructions) == 1:
        return [(EQUAL, 0, 1, call_number), *instructions]
    return [(EQUAL, 0, len(instructions) + 1, call_number), *instructions, (LOAD, 0, 0, NUMBER_OFFSET)]
