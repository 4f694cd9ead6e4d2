"""Append-only log files on a disk that is full, fails or syncs slowly."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from append_logs import HEADER, encoded
from orch_protocol.core.errors import StoreError
from orch_worker.session.log import append_log
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.log_reader import load


class Disk:
    """A disk that fails on demand: `room` is the number of free bytes, `error` and `sync_error` are raised."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.error: BaseException | None = None
        self.sync_error: OSError | None = None
        self.syncs = 0
        self.writes = 0

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write the bytes that fit, and then fail like the kernel."""
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
        """Count the call, and raise `sync_error` if it is set."""
        self.syncs += 1
        if self.sync_error:
            raise self.sync_error
        os.fdatasync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk below every log of the test."""
    disk = Disk()
    monkeypatch.setattr(AppendLog, "_write", staticmethod(disk.write))
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(disk.fdatasync))
    return disk


@pytest.mark.parametrize("room", [0, 1, 20, 60])
def test_full_disk_rolls_back_the_write(disk: Disk, log: AppendLog, room: int) -> None:
    """The error names file and cause, and the log accepts appends when there is space again."""
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
    """A failed write is removed from the file, and the error message states the cause."""
    before = log.path.read_bytes()
    disk.error = error
    with pytest.raises(StoreError, match=words):
        log.append(encoded(1))
    disk.error = None
    assert log.path.read_bytes() == before


def test_interrupted_append_is_rolled_back(disk: Disk, log: AppendLog) -> None:
    """After KeyboardInterrupt during an append, the file does not contain the interrupted object."""
    disk.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        log.append(encoded(1))
    disk.error = None
    log.append(encoded(2))
    assert load(log.path, header=HEADER).objects == [encoded(2)]


def test_failed_rollback_closes_the_log(disk: Disk, log: AppendLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rollback fails, the log refuses appends, and opening the file again repairs the file."""
    disk.room = 10

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "x")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(StoreError, match="open it again"):
            log.append(encoded(1))
    disk.room = None
    with pytest.raises(StoreError, match="open it again"):
        log.append(encoded(2))
    log.close()
    reopened, loaded = AppendLog.open(log.path, header=HEADER)
    reopened.close()
    assert loaded.objects == []
    assert len(loaded.torn) == 10


def test_append_of_several_objects_is_one_write(disk: Disk, log: AppendLog) -> None:
    """An append of three objects is one write, and an append of none is no write."""
    disk.writes = 0
    log.append(encoded(1), encoded(2), encoded(3))
    log.append()
    assert disk.writes == 1
    assert load(log.path, header=HEADER).objects == [encoded(1), encoded(2), encoded(3)]


def test_invalid_objects_are_refused_before_writing(log: AppendLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty objects, other values, objects with a newline and oversized objects are refused."""
    before = log.path.read_bytes()
    monkeypatch.setattr(append_log, "MAX_LINE_BYTES", 100)
    for bad in (b"{}", b"[1]", b"", b'{"a":\n1}', b'{"a":"%b"}' % (b"x" * 100)):
        with pytest.raises(StoreError, match="cannot append"):
            log.append(encoded(1), bad)
    assert log.path.read_bytes() == before


def test_unsynced_bytes_are_reported_once_until_sync(disk: Disk, path: Path) -> None:
    """`on_dirty` is called at the first append after a sync, and `sync` resets `dirty`."""
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
    log, _ = AppendLog.open(path, header=HEADER, durability="power")
    for number in range(3):
        log.append(encoded(number))
        assert log.dirty == 0
    assert disk.syncs == 4
    log.close()


def test_close_syncs_pending_bytes(disk: Disk, path: Path) -> None:
    """`close` syncs pending bytes once, and a second `close` has no effect."""
    log, _ = AppendLog.open(path, header=HEADER)
    log.append(encoded(1))
    log.close()
    log.close()
    assert disk.syncs == 1
    with pytest.raises(StoreError, match="is closed"):
        log.append(encoded(2))


def test_failed_sync_is_final(disk: Disk, path: Path) -> None:
    """After a failed sync, the log refuses appends and syncs and does not sync again when it is closed."""
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
