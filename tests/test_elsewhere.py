"""Where a system lacks what Linux has, everything can be imported: what is missing is found out where it is needed."""

from __future__ import annotations

import subprocess
import sys

ELSEWHERE = """
import fcntl, importlib, os, pkgutil, select, signal, socket, sys

sys.platform = "darwin"
for module, names in (
    (os, "pidfd_open sched_getaffinity memfd_create fdatasync posix_fadvise P_PIDFD setns unshare eventfd waitid"),
    (socket, "MSG_CMSG_CLOEXEC SO_PEERCRED SOCK_CLOEXEC SOCK_SEQPACKET MSG_NOSIGNAL"),
    (signal, "pidfd_send_signal sigtimedwait"),
    (select, "epoll"),
    (fcntl, "F_ADD_SEALS F_SETSIG F_SETPIPE_SZ"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
imported = 0
for package in ("orch_protocol", "orch_worker", "orch"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
            imported += 1
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith(("_scproxy", "_sysconfigdata")):  # that system's own
                raise
print(imported)
"""


def test_everything_is_imported_without_what_linux_alone_has() -> None:
    """No function, constant or system call of Linux is taken for granted by a module."""
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200
