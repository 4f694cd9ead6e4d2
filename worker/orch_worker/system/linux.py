"""What we ask of the kernel beyond the standard library: ties between processes, and signs of their end.

Linux does it all; elsewhere each function does what the platform can, which its docstring names. Imports stay few:
the shim loads this module.
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

SIGKILL: Final = 9  # by number: Windows, where this is imported too, has no name for it
LAST_DESCRIPTOR: Final = (1 << 32) - 1
MADV_COLLAPSE: Final = 25
HUGE_BYTES: Final = 2 << 20
LARGE_BYTES: Final = 8 << 20
LINUX: Final = sys.platform == "linux"
# Python ignores these two in every process it starts, and its libraries count on it.
PYTHONS_OWN: Final = {"SIGPIPE", "SIGXFSZ"}


def prctl(option: int, argument: int, more: int = 0) -> None:
    """Call prctl with `option` for the calling thread. Raises OSError. Nothing happens elsewhere than on Linux."""
    if LINUX and _libc.prctl(option, argument, more, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def syscall(number: int, *arguments: int) -> int:
    """Make the system call `number` and return its result. Raises OSError. Linux.

    An argument that is an address stays its owner's, who keeps it until the call is over.
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
    _close_range: Any = getattr(_libc, "close_range", None)  # the C library may be older than it
    if _close_range is not None:
        _close_range.argtypes = [ctypes.c_uint] * 3


def reset_signals(*, ignore: tuple[signal.Signals, ...] = ()) -> None:
    """Unblock every signal and give each its default, or ignore it: both states pass through exec otherwise."""
    for number in signal.valid_signals():
        if isinstance(number, signal.Signals) and number.name in PYTHONS_OWN:
            continue
        wanted = signal.SIG_IGN if number in ignore else signal.SIG_DFL
        if signal.getsignal(number) not in (wanted, None):
            try:
                signal.signal(number, wanted)
            except (OSError, ValueError):
                pass  # KILL, STOP and the C library's own cannot be set, nor need to be
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def default_signals(numbers: tuple[signal.Signals, ...]) -> None:
    """Give each signal of `numbers` its default: what a fork does whose parent changed no other."""
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child has ended; the caller reads it empty."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def die_with_parent(parent: int) -> None:
    """End with the process `parent`, or now if it has ended. Linux.

    The signal follows the *thread* that forked, so a parent with threads must not be tied to like this.
    """
    if LINUX:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


@contextmanager
def keep_parent_death_signal() -> Iterator[None]:
    """Restore the signal that the parent's end sends after the block, which changes this process's credentials. Linux.

    A change of credentials clears it. Ends this process if the parent has ended meanwhile and the signal was SIGKILL.
    """
    number, parent = ctypes.c_int(0), os.getppid()
    prctl(PR_GET_PDEATHSIG, ctypes.addressof(number))
    yield
    prctl(PR_SET_PDEATHSIG, number.value)
    if number.value == SIGKILL and os.getppid() != parent:
        os._exit(1)


def start_tied(argv: list[bytes], descriptors: list[int]) -> int:
    """Start `argv`, followed by the numbers of the `descriptors` it inherits, and return its pid.

    It ends with this process, which must have no threads. Raises BlockingIOError when the system has no process left.
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
    """Adopt descendants whose own parents have ended. Linux."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Keep this process's memory and descriptors from its own user's other processes, and out of core dumps."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl(PR_SET_DUMPABLE, 0)


def huge_pages(maps: str = "/proc/self/maps") -> int:
    """Put this process's large areas of memory on huge pages and return how many bytes that are at most. Linux.

    A fork copies one entry of the page table for each, not 512; one that is written to falls apart for the writer
    alone. Where the kernel knows nothing of it (before 6.1) or has no such pages free, all stays as it is.
    """
    total = 0
    with open(maps) as file:
        for line in file:
            bounds, rights, _, _, inode, *name = line.split()
            begin, end = (int(bound, 16) for bound in bounds.split("-"))
            first, last = -(-begin // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES
            ours = rights == "rw-p" and inode == "0" and name in ([], ["[heap]"])
            if ours and last - first >= LARGE_BYTES and _libc.madvise(first, last - first, MADV_COLLAPSE) == 0:
                total += last - first
    return total


def arm_lifeline(descriptor: int) -> None:
    """End this process when the last write end of the pipe `descriptor` closes, or now if it has closed.

    On Linux the kernel does it, whatever this process is busy with or even when it is stopped; a byte in the pipe
    counts too. The owner belongs to the open file description, so two processes never share one lifeline. Elsewhere a
    thread watches, which a call that never lets go of the interpreter can hold up.
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
    """Return the pids of this single-threaded process's children, zombies included. Linux.

    A child that ends during the call may hide another: ask again before relying on an empty answer.
    """
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb") as file:
            return set(map(int, file.read().split()))
    except FileNotFoundError:
        return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent_of(pid) == me}


def _parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b") ")[2].split()[1])
    except OSError:
        return None


def kill(pidfd: int, number: int = SIGKILL) -> None:
    """Send signal `number` to the process behind `pidfd`; nothing happens if it is gone. Linux."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass


def reap(pidfd: int) -> int | None:
    """Bury our ended child behind `pidfd` and return its exit code (or minus the signal). Linux.

    None when it was buried by another (the program may ignore or serve SIGCHLD) and the kernel does not tell.
    """
    try:
        dead = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    except ChildProcessError:
        return exit_status(pidfd)
    assert dead is not None
    return dead.si_status if dead.si_code == os.CLD_EXITED else -dead.si_status


def reap_if_ended(pidfd: int) -> None:
    """See to it that the ended process behind `pidfd` is no zombie, if it is our child. Linux."""
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        pass  # its parent does that


def close_from(first: int) -> None:
    """Close every descriptor of this process from the number `first` on.

    By one call, or else by the list of what is open: counting up to the limit can take minutes where that is "none".
    """
    if LINUX and _close_range is not None and _close_range(first, LAST_DESCRIPTOR, 0) == 0:
        return
    for name in os.listdir("/proc/self/fd" if LINUX else "/dev/fd"):
        if int(name) >= first:
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own


def exit_status(pidfd: int) -> int | None:
    """Return the exit code (or minus the signal) of the reaped process behind `pidfd`; None if nobody knows.

    The kernel keeps it for holders of a pidfd since Linux 6.15.
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
