"""System calls that the standard library lacks: calls that tie processes together, and calls that detect the end of
processes.

All functions work on Linux. Each docstring states the behavior on other systems. The module has few imports, because
the shim loads it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

__all__ = [
    "arm_lifeline",
    "become_subreaper",
    "children",
    "close_from",
    "default_signals",
    "die_with_parent",
    "exit_status",
    "hide_memory",
    "huge_pages",
    "keep_parent_death_signal",
    "kill",
    "parent_of",
    "prctl",
    "reap",
    "reset_signals",
    "start_tied",
    "syscall",
    "wake_on_child",
]

PR_SET_PDEATHSIG: Final = 1
PR_GET_PDEATHSIG: Final = 2
PR_SET_DUMPABLE: Final = 4
PR_SET_CHILD_SUBREAPER: Final = 36
PIDFD_GET_INFO: Final = 0xC040FF0B
PIDFD_INFO_EXIT: Final = 1 << 3
PIDFD_INFO_BYTES: Final = 64

SIGKILL: Final = 9  # The number is used because Windows, which imports this module too, does not define the name.
LAST_DESCRIPTOR: Final = (1 << 32) - 1
MADV_COLLAPSE: Final = 25
HUGE_BYTES: Final = 2 << 20
LARGE_BYTES: Final = 8 << 20
LINUX: Final = sys.platform == "linux"
# Python ignores these two signals in every process, and its libraries rely on that.
PYTHONS_OWN: Final = {"SIGPIPE", "SIGXFSZ"}


def prctl(option: int, argument: int, more: int = 0) -> None:
    """Call prctl with `option` for the calling thread. Raise OSError if the call fails.

    Do nothing on systems other than Linux.
    """
    if LINUX and _libc.prctl(option, argument, more, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def syscall(number: int, *arguments: int) -> int:
    """Make the system call `number` and return its result. Raise OSError if the call fails. Linux only.

    If an argument is an address, the caller must keep the memory at this address alive.
    """
    result: int = _libc.syscall(number, *map(ctypes.c_long, arguments))
    if result < 0:
        reason = ctypes.get_errno()
        raise OSError(reason, os.strerror(reason))
    return result


if LINUX:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    _libc.syscall.restype = ctypes.c_long
    _libc.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    _close_range: Any = getattr(_libc, "close_range", None)  # Older C libraries do not have this function.
    if _close_range is not None:
        _close_range.argtypes = [ctypes.c_uint] * 3


def reset_signals(*, ignore: tuple[signal.Signals, ...] = ()) -> None:
    """Unblock all signals, ignore the signals in `ignore`, and reset the other signals.

    Without this function, blocked and ignored signals would stay blocked and ignored after exec.
    """
    for number in signal.valid_signals():
        if isinstance(number, signal.Signals) and number.name in PYTHONS_OWN:
            continue
        wanted = signal.SIG_IGN if number in ignore else signal.SIG_DFL
        if signal.getsignal(number) not in (wanted, None):
            try:
                signal.signal(number, wanted)
            except (OSError, ValueError):
                pass  # SIGKILL, SIGSTOP and signals of the C library cannot be changed.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def default_signals(numbers: tuple[signal.Signals, ...]) -> None:
    """Set the signals `numbers` to their defaults.

    After a fork, this function is sufficient instead of `reset_signals` if the parent changed no other signal.
    """
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child has ended.

    The caller must read all bytes from the descriptor.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when `parent` ends. Exit now if `parent` has already ended. Linux only.

    The kernel watches the *thread* that forked, so the parent must not have threads that end.
    """
    if LINUX:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


@contextmanager
def keep_parent_death_signal() -> Iterator[None]:
    """Restore the parent-death signal after a block that changes the credentials of this process. Linux only.

    A change of credentials clears the signal. If the signal was SIGKILL and the parent ended during the block, this
    process also ends.
    """
    number, parent = ctypes.c_int(0), os.getppid()
    prctl(PR_GET_PDEATHSIG, ctypes.addressof(number))
    yield
    prctl(PR_SET_PDEATHSIG, number.value)
    if number.value == SIGKILL and os.getppid() != parent:
        os._exit(1)


def start_tied(argv: list[bytes], descriptors: list[int]) -> int:
    """Start `argv`, and return the pid. The numbers of the inherited `descriptors` are the last arguments.

    The new process ends when this process ends. This process must have no threads. Raise BlockingIOError if the process
    limit is reached.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(parent)
            for descriptor in descriptors:
                os.set_inheritable(descriptor, True)
            os.execv(argv[0], argv + [b"%d" % descriptor for descriptor in descriptors])
        except OSError as error:
            os.write(2, b"%s: %s\n" % (argv[0], str(error).encode()))
        finally:
            os._exit(127)
    return pid


def become_subreaper() -> None:
    """Become the parent of orphaned descendants of this process. Linux only."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Protect the memory and descriptors of this process from other processes of the user. Also disable core dumps."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl(PR_SET_DUMPABLE, 0)


def huge_pages(maps: str = "/proc/self/maps") -> int:
    """Move large memory areas of this process to huge pages. Return an upper bound of the moved bytes. Linux only.

    A fork then copies one page-table entry instead of 512. A written page is split only in the process that writes.
    Nothing changes on kernels before 6.1 or if no huge pages are free.
    """
    total = 0
    with open(maps) as file:
        for line in file:
            bounds, rights, _, _, inode, *name = line.split()
            begin, end = (int(bound, 16) for bound in bounds.split("-"))
            first, last = -(-begin // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES
            is_private_memory = rights == "rw-p" and inode == "0" and name in ([], ["[heap]"])
            if (
                is_private_memory
                and last - first >= LARGE_BYTES
                and _libc.madvise(first, last - first, MADV_COLLAPSE) == 0
            ):
                total += last - first
    return total


def arm_lifeline(descriptor: int) -> None:
    """Kill this process when the last write end of the pipe `descriptor` closes.

    Kill the process now if all write ends are closed.

    On Linux, the kernel kills the process even if it is busy or stopped. A byte in the pipe has the same effect. The
    setting belongs to the open file description, so two processes must not share a lifeline. On other systems, a thread
    watches the pipe, and a call that never releases the GIL can block this thread.
    """
    if LINUX:
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if poller.poll(0):
            os._exit(1)
    else:
        import threading

        def watch() -> None:
            os.read(descriptor, 1)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=watch, name="lifeline", daemon=True).start()


def children() -> set[int]:
    """Return the pids of the children of this single-threaded process, including zombies. Linux only.

    A child that ends during the call may hide another child. Call this function again before you rely on an empty
    result.
    """
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb") as file:
            return set(map(int, file.read().split()))
    except FileNotFoundError:
        return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(pid) == me}


def parent_of(pid: int) -> int | None:
    """Return the pid of the parent of the process `pid`. Return None if the process has ended. Linux only."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b") ")[2].split()[1])
    except OSError:
        return None


def kill(pidfd: int, number: int = SIGKILL) -> None:
    """Send the signal `number` to the process of `pidfd` if the process still exists. Linux only."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass


def reap(pidfd: int) -> int | None:
    """Reap the ended child process of the descriptor `pidfd`. Linux only.

    Return the exit code of the child, or the negative number of the signal. Return None if the child was reaped
    elsewhere, for example because SIGCHLD is ignored, and the kernel does not keep the status.
    """
    try:
        dead = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    except ChildProcessError:
        return exit_status(pidfd)
    assert dead is not None
    return dead.si_status if dead.si_code == os.CLD_EXITED else -dead.si_status


def reap_if_ended(pidfd: int) -> None:
    """Reap the process of `pidfd` if it has ended and is a child of this process. Linux only."""
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        pass  # The process is not a child of this process. Its parent reaps it.


def close_from(first: int) -> None:
    """Close all descriptors of this process whose number is at least `first`.

    This function uses one system call or the list of open descriptors. A loop over all possible numbers could take
    minutes if there is no limit.
    """
    if LINUX and _close_range is not None and _close_range(first, LAST_DESCRIPTOR, 0) == 0:
        return
    for name in os.listdir("/proc/self/fd" if LINUX else "/dev/fd"):
        if int(name) >= first:
            try:
                os.close(int(name))
            except OSError:
                pass  # This is the descriptor of the listing itself.


def exit_status(pidfd: int) -> int | None:
    """Return the exit code of the reaped process of `pidfd`, or the negative number of the signal.

    Return None if the status is unknown. Since Linux 6.15, the kernel keeps the status for holders of a pidfd.
    """
    if not LINUX:
        return None
    import fcntl

    info = bytearray(PIDFD_INFO_BYTES)
    info[:8] = PIDFD_INFO_EXIT.to_bytes(8, sys.byteorder)
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
    except OSError:
        return None
    if not int.from_bytes(info[:8], sys.byteorder) & PIDFD_INFO_EXIT:
        return None
    return os.waitstatus_to_exitcode(int.from_bytes(info[-4:], sys.byteorder))
