"""Removes the features of Linux from each Python that imports this module. The result resembles macOS.

For the processes at the ends of a socket, the module returns values as macOS does.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import os
import select
import signal
import socket
import struct
import sys
import sysconfig
from collections.abc import Callable
from types import ModuleType
from typing import Any

OF_OS = """
pidfd_open sched_getaffinity memfd_create fdatasync posix_fadvise posix_fallocate P_PIDFD setns unshare eventfd waitid
pipe2 copy_file_range splice getrandom O_TMPFILE O_PATH O_DIRECT
"""
OF_SOCKET = """
MSG_CMSG_CLOEXEC SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK SOCK_SEQPACKET MSG_NOSIGNAL AF_NETLINK AF_VSOCK AF_PACKET
TCP_KEEPIDLE
"""
OF_SIGNAL = "pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT"
OF_FCNTL = "F_ADD_SEALS F_SETSIG F_SETPIPE_SZ F_OFD_SETLK"
MISSING = ((os, OF_OS), (socket, OF_SOCKET), (signal, OF_SIGNAL), (select, "epoll"), (fcntl, OF_FCNTL))
LOOKING = ("open", "listdir", "stat", "lstat", "scandir", "readlink", "access", "statvfs")
SO_PEERCRED = (1, 17, 12)
LOCAL_PEERCRED, LOCAL_PEERPID = (0, 1), (0, 2)


def blind(look: Callable[..., Any]) -> Callable[..., Any]:
    """Return `look` without access to /proc and /sys."""

    def looking(path: Any, *more: Any, **named: Any) -> Any:
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if f"{text}/".startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", text)
        return look(path, *more, **named)

    return looking


class Socket(socket.socket):
    """A socket that describes the process at its other end as macOS does."""

    def getsockopt(self, level: int, option: int, *size: int) -> Any:
        if (level, option) not in (LOCAL_PEERCRED, LOCAL_PEERPID):
            return super().getsockopt(level, option, *size)
        pid, uid, gid = struct.unpack("3i", super().getsockopt(*SO_PEERCRED))
        said = (0, uid, 1, gid, *[0] * 15)
        return struct.pack("Iihxx16i", *said) if option == LOCAL_PEERCRED[1] else struct.pack("i", pid)


sysconfig.get_config_vars()  # load the values of this system now, because there is no such file for another system
sys.platform = "darwin"
proxies: Any = ModuleType("_scproxy")  # the module for the proxies that the system sets
proxies._get_proxies = proxies._get_proxy_settings = dict
sys.modules["_scproxy"] = proxies
for module, names in MISSING:
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
os.process_cpu_count = os.cpu_count  # exists from Python 3.13 on; on such systems, processes have no set of CPUs
for name in LOOKING:
    setattr(os, name, blind(getattr(os, name)))
builtins.open = io.open = blind(open)  # type: ignore[assignment]
socket.socket = Socket  # type: ignore[misc]
