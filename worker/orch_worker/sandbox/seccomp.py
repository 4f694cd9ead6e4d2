"""A filter of system calls: no sockets to the outside, no namespaces, none of the doors that Landlock does not guard.

The program is data, made here; the kernel runs it before each call.
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
NUMBER_AT: Final = 0
ARCHITECTURE_AT: Final = 4
ARGUMENTS_AT: Final = 16

X32: Final = 0x40000000
NAMESPACES: Final = 0x7E020000
SOCKET_KIND: Final = 0xF
STREAM: Final = 1
DATAGRAM: Final = 2
INTERNET: Final = 2
INTERNET_6: Final = 10
NETLINK: Final = 16

# Numbers of calls: x86_64, aarch64. Those that are new enough have one number everywhere.
CALLS: Final[dict[str, tuple[int, int]]] = {
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
SPECIAL: Final = frozenset({"socket", "socketpair", "clone", "clone3"})


class _Architecture(NamedTuple):
    column: int
    audit: int


MACHINES: Final = {"x86_64": _Architecture(0, 0xC000003E), "aarch64": _Architecture(1, 0xC00000B7)}

Instruction = tuple[int, int, int, int]


def unavailable_reason(machine: str | None = None) -> str:
    """Return why there can be no filter on this `machine` (this one), "" where there can."""
    name = machine or platform.machine()
    return "" if name in MACHINES else f"no filter of system calls is known for {name} processors"


def build_filter(machine: str | None = None, *, sockets: bool, network: bool) -> bytes:
    """Return the filter, as the kernel takes it.

    With `sockets` they are filtered too: none but those of the internet, and these only with `network`. Without, they
    are left to whoever has made a network of its own.
    """
    here = MACHINES[machine or platform.machine()]
    code = [
        *((LOAD, 0, 0, ARCHITECTURE_AT), (EQUAL, 1, 0, here.audit), _refuse(errno.EPERM)),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    if here.column == 0:  # another table of calls hides behind a bit of the number
        code += [(AT_LEAST, 0, 1, X32), _refuse(errno.EPERM)]

    def number(name: str) -> int:
        return CALLS[name][here.column]

    for name in CALLS:
        if name not in SPECIAL:
            code += _when(number(name), [_refuse(errno.EPERM)])
    # Its arguments are in memory, where no filter can look. Programs then ask for `clone`.
    code += _when(number("clone3"), [_refuse(errno.ENOSYS)])
    code += _when(number("clone"), [_argument(0), (ANY_BIT, 0, 1, NAMESPACES), _refuse(errno.EPERM)])
    if sockets:
        code += _when(number("socket"), _internet_only() if network else [_refuse(errno.EACCES)])
        # A pair of datagram sockets could each be turned to any other by its path.
        datagram: list[Instruction] = [_argument(1), (AND, 0, 0, SOCKET_KIND), (EQUAL, 0, 1, DATAGRAM)]
        code += _when(number("socketpair"), [*datagram, _refuse(errno.EACCES)])
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *each) for each in code)


def apply_filter(code: bytes) -> None:
    """Let the calling thread, and what it starts, be under the filter `code`. Raises OSError.

    It has given up new privileges before.
    """
    held = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    filled = Program(len(code) // 8, ctypes.addressof(held))
    linux.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.addressof(filled))


def memory_file(code: bytes) -> int:
    """Return a descriptor to read `code` from, for a program that applies it. The caller closes it."""
    descriptor = os.memfd_create("filter", os.MFD_CLOEXEC)
    os.write(descriptor, code)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _internet_only() -> list[Instruction]:
    """Return code that refuses sockets but those of the internet, raw ones too; netlink tells of own addresses."""
    return [
        _argument(0),
        *((EQUAL, 8, 0, NETLINK), (EQUAL, 2, 0, INTERNET), (EQUAL, 1, 0, INTERNET_6), _refuse(errno.EACCES)),
        *(_argument(1), (AND, 0, 0, SOCKET_KIND)),
        *((EQUAL, 2, 0, STREAM), (EQUAL, 1, 0, DATAGRAM), _refuse(errno.EACCES)),
    ]


def _argument(index: int) -> Instruction:
    return LOAD, 0, 0, ARGUMENTS_AT + 8 * index


def _refuse(number: int) -> Instruction:
    return RETURN, 0, 0, ERROR | number


def _when(number: int, then: Sequence[Instruction]) -> list[Instruction]:
    """Return code that does `then` for the call `number`, and goes on with the number at hand."""
    if then[-1][0] == RETURN and len(then) == 1:
        return [(EQUAL, 0, 1, number), *then]
    return [(EQUAL, 0, len(then) + 1, number), *then, (LOAD, 0, 0, NUMBER_AT)]
