"""Append-only files on a disk that is full, fails, or is slow to sync: nothing half-written stays."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from append_logs import HEADER, encoded
from orch_protocol.core.errors import StoreError
from orch_worker.session.log import append_log
from orch_worker.session.log.append_log import AppendLog, load


class Disk:
    """A disk that fails on demand: `room` bytes left, or `error` for every write; counts and fails syncs."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.error: BaseException | None = None
        self.sync_error: OSError | None = None
        self.syncs = 0
        self.writes = 0

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write what there is room for, then fail as the kernel does."""
        self.writes += 1
        if self.room is None:
            written = os.write(descriptor, data)
        elif self.room:
            written = os.write(descriptor, data[: self.room])
            self.room -= written
        else:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.error:
            raise self.error
        return written

    def fdatasync(self, descriptor: int) -> None:
        """Count, and fail if told to."""
        self.syncs += 1
        if self.sync_error:
            raise self.sync_error
        os.fdatasync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Return the disk under every log of the test."""
    disk = Disk()
    monkeypatch.setattr(AppendLog, "_write", staticmethod(disk.write))
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(disk.fdatasync))
    return disk


@pytest.mark.parametrize("room", [0, 1, 20, 60])
def test_full_disk_leaves_nothing_behind(disk: Disk, log: AppendLog, room: int) -> None:
    """A short write is taken back, the error names file and cause, and the log works on once there is room."""
    log.append(encoded(1))
    before = log.path.read_bytes()
    disk.room = room
    for _ in range(3):
        disk.room = room
        with pytest.raises(StoreError, match=r"cannot append to .*log\.jsonl: disk full"):
            log.append(encoded(2), encoded(3))
        assert log.path.read_bytes() == before
        assert (log.end, log.seq) == (len(before), 2)
    disk.room = None
    log.append(encoded(4))
    loaded = load(log.path, header=HEADER)
    assert (loaded.objects, loaded.report) == ([encoded(1), encoded(4)], "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EIO, "x"), "input/output error"),
        (OSError(errno.EDQUOT, "x"), "quota"),
        (OSError(errno.EFBIG, "x"), "as large as"),
        (OSError(errno.EROFS, "x"), "read-only"),
        (OSError(errno.ENOLCK, "strange"), "strange"),
    ],
)
def test_write_errors_name_their_cause(disk: Disk, log: AppendLog, error: OSError, words: str) -> None:
    """Whatever keeps a write from happening is said in words, and the bytes it left are taken back."""
    before = log.path.read_bytes()
    disk.error = error
    with pytest.raises(StoreError, match=words):
        log.append(encoded(1))
    disk.error = None
    assert log.path.read_bytes() == before


def test_interrupted_append_is_taken_back(disk: Disk, log: AppendLog) -> None:
    """Ctrl-C between the write and its bookkeeping leaves file and memory of one mind."""
    disk.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        log.append(encoded(1))
    disk.error = None
    log.append(encoded(2))
    assert load(log.path, header=HEADER).objects == [encoded(2)]


def test_failed_roll_back_ends_the_log(disk: Disk, log: AppendLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the half line cannot be taken back, the log refuses to go on behind it; opening anew repairs it."""
    disk.room = 10

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "x")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(StoreError, match="open it anew"):
            log.append(encoded(1))
    disk.room = None
    with pytest.raises(StoreError, match="open it anew"):
        log.append(encoded(2))
    log.close()
    reopened, loaded = AppendLog.open(log.path, header=HEADER)
    reopened.close()
    assert loaded.objects == []
    assert len(loaded.torn) == 10


def test_several_objects_are_one_write(disk: Disk, log: AppendLog) -> None:
    """All objects of an append go to the kernel together; an append of none does nothing."""
    disk.writes = 0
    log.append(encoded(1), encoded(2), encoded(3))
    log.append()
    assert disk.writes == 1
    assert load(log.path, header=HEADER).objects == [encoded(1), encoded(2), encoded(3)]


def test_objects_that_would_break_lines_are_refused(log: AppendLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no object, holds a newline, or is beyond the cap is refused before anything is written."""
    before = log.path.read_bytes()
    monkeypatch.setattr(append_log, "MAX_LINE_BYTES", 100)
    for bad in (b"{}", b"[1]", b"", b'{"a":\n1}', b'{"a":"%b"}' % (b"x" * 100)):
        with pytest.raises(StoreError, match="cannot append"):
            log.append(encoded(1), bad)
    assert log.path.read_bytes() == before


def test_dirty_bytes_are_announced_once(disk: Disk, path: Path) -> None:
    """The owner hears of unsynced bytes at the first append after a sync, and `sync` makes them durable."""
    log, _ = AppendLog.open(path, header=HEADER)
    heard: list[int] = []
    log.on_dirty = lambda: heard.append(log.dirty)
    for round in (1, 2):
        log.append(encoded(1))
        log.append(encoded(2))
        assert len(heard) == round
        assert log.dirty > 0
        log.sync()
        assert (log.dirty, disk.syncs) == (0, round)
    log.append(encoded(3), sync=True)
    assert (len(heard), log.dirty, disk.syncs) == (2, 0, 3)
    log.close()
    assert disk.syncs == 3


def test_power_durability_syncs_each_append(disk: Disk, path: Path) -> None:
    """With durability "power" nothing is ever dirty."""
    log, _ = AppendLog.open(path, header=HEADER, durability="power")
    for number in range(3):
        log.append(encoded(number))
        assert log.dirty == 0
    assert disk.syncs == 4
    log.close()


def test_close_syncs_the_rest(disk: Disk, path: Path) -> None:
    """Closing makes durable what no group sync has reached, and closing twice is nothing."""
    log, _ = AppendLog.open(path, header=HEADER)
    log.append(encoded(1))
    log.close()
    log.close()
    assert disk.syncs == 1
    with pytest.raises(StoreError, match="is closed"):
        log.append(encoded(2))


def test_failed_sync_is_final(disk: Disk, path: Path) -> None:
    """After a failed sync the log refuses everything and never tries again on that descriptor."""
    log, _ = AppendLog.open(path, header=HEADER)
    disk.sync_error = OSError(errno.EIO, "x")
    with pytest.raises(StoreError, match=r"cannot sync .*input/output error"):
        log.append(encoded(1), sync=True)
    disk.sync_error = None
    for attempt in (lambda: log.append(encoded(2)), log.sync):
        with pytest.raises(StoreError, match="uncertain"):
            attempt()
    log.close()
    assert disk.syncs == 1
