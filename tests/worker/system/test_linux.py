"""Functions that use the kernel: processes, signals, descriptors and memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orch_worker.system import linux


def test_exit_status_of_a_running_process_is_unknown() -> None:
    """The exit status is also None for a descriptor that is not a pidfd."""
    pidfd = os.pidfd_open(os.getpid())
    with open(os.devnull) as other:
        assert linux.exit_status(pidfd) is None
        assert linux.exit_status(other.fileno()) is None
    os.close(pidfd)


def test_children_are_found_without_the_kernels_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the kernel has no list of children, the parent of each process is read."""
    me, parent = os.getpid(), os.getppid()
    real_open = open

    def without_list(path: str | Path, *arguments: Any) -> Any:
        if str(path).endswith("/children"):
            raise FileNotFoundError(path)
        return real_open(path, *arguments)

    monkeypatch.setattr("builtins.open", without_list)
    monkeypatch.setattr(os, "getpid", lambda: parent)
    assert me in linux.children()


def test_signals_are_reset_to_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals are unblocked and set to default or ignored as requested. Handlers that Python sets are kept."""
    set_to: dict[int, Any] = {}
    masks: list[Any] = []
    ignored = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGPIPE, signal.SIGINT}
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    monkeypatch.setattr(signal, "signal", set_to.__setitem__)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda how, mask: masks.append((how, mask)))
    linux.reset_signals(ignore=(signal.SIGINT, signal.SIGHUP))
    assert set_to == {
        signal.SIGCHLD: signal.SIG_DFL,
        signal.SIGUSR1: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_IGN,
    }
    assert masks == [(signal.SIG_SETMASK, ())]


@pytest.mark.parametrize("one_call", [True, False])
def test_descriptors_are_closed_one_by_one_without_close_range(monkeypatch: pytest.MonkeyPatch, one_call: bool) -> None:
    """If one call cannot close all descriptors, the open ones from the given number on are closed one by one."""
    closed: list[int] = []
    many: list[int] = []
    refused = lambda first, *_: many.append(first) or (0 if one_call else -1)  # noqa: E731
    monkeypatch.setattr(linux, "_close_range", refused)
    monkeypatch.setattr(os, "listdir", lambda _: ["0", "7", "8", "9"])
    monkeypatch.setattr(os, "close", closed.append)
    linux.close_from(8)
    assert (many, closed) == ([8], [] if one_call else [8, 9])


def test_only_signals_changed_by_the_parent_are_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the signals in the argument are set to their defaults."""
    set_to: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", set_to.__setitem__)
    linux.default_signals((signal.SIGINT, signal.SIGCHLD))
    assert set_to == {signal.SIGINT: signal.SIG_DFL, signal.SIGCHLD: signal.SIG_DFL}


def test_large_private_memory_is_advised_for_huge_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped files, stacks, read-only memory and small areas are left out."""
    mib = 1 << 20
    asked: list[tuple[int, int]] = []

    class Kernel:
        @staticmethod
        def madvise(begin: int, length: int, _: int) -> int:
            asked.append((begin // mib, length // mib))
            return 0 if begin < 256 * mib else -1

    areas = [
        (1, 13, "rw-p", "0", "[heap]"),
        (32, 48, "rw-p", "0", ""),
        (64, 128, "r--p", "0", ""),
        (128, 192, "rw-p", "4711", "/usr/lib/libpython3.11.so"),
        (192, 200, "rw-p", "0", "[stack]"),
        (201, 209, "rw-p", "0", ""),
        (256, 264, "rw-p", "0", ""),
    ]
    maps = tmp_path / "maps"
    lines = [f"{a * mib:x}-{b * mib:x} {rights} 00000000 00:00 {inode} {name}\n" for a, b, rights, inode, name in areas]
    maps.write_text("".join(lines))
    monkeypatch.setattr(linux, "_libc", Kernel)
    assert linux.huge_pages(str(maps)) == 26 * mib
    assert asked == [(2, 10), (32, 16), (256, 8)]
