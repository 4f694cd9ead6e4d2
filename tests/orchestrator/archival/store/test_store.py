"""The archive store: appends are durable and complete, and readable after damage."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.archival.store import store as module
from orch.archival.store.store import ArchiveRecord, ArchiveStore, StoredMessage
from orch_protocol.core.errors import DamagedError, ForeignFileError, LockedError, StoreError
from orch_protocol.core.messages import Message, assistant, user
from orch_worker.conversation.stubs import stub_text
from orch_worker.session.log.append_log import AppendLog

FILE = "archive-000001.jsonl"


def record(**changes: Any) -> ArchiveRecord:
    """Return a record without id and number."""
    given = ArchiveRecord(
        id="",
        number=0,
        kind="turn",
        task="t",
        count=0,
        prompts=1,
        replaced_messages=2,
        calls=1,
        turns=1,
        tokens=10,
        level=0,
        timestamp="",
        format="orch",
        record="receipt",
        reason="because",
    )
    return msgspec.structs.replace(given, **changes)


def turn(text: str) -> list[StoredMessage]:
    """Return the messages of a turn."""
    return [StoredMessage(user(f"ask {text}")), StoredMessage(assistant(f"say {text}"), {"k": {"x": {"=": 1}}})]


def test_archives_survive_a_restart(tmp_path: Path) -> None:
    """The records, their order, the summary and the messages are the same after a restart."""
    archive = ArchiveStore.open(tmp_path)
    first, second = archive.add(record(), turn("a")), archive.add(record(), turn("b"))
    archive.summarize(second.id, "summary")
    before = archive.records
    archive.close()
    again = ArchiveStore.open(tmp_path)
    assert again.records == before
    assert again.notes == []
    assert [each.number for each in again.records.values()] == [1, 2]
    assert again.messages(first.id) == turn("a")
    assert again.records[second.id].record == "summary"
    again.close()


def test_archive_is_synced_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each archive needs one write, and several need one sync. After a failed sync, no later sync succeeds."""
    archive = ArchiveStore.open(tmp_path)
    archive.add(record(), turn("a"))
    archive.sync()
    synced: list[int] = []
    written: list[int] = []
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(lambda fd: synced.append(fd)))
    monkeypatch.setattr(AppendLog, "_write", staticmethod(lambda fd, data: written.append(fd) or os.write(fd, data)))
    archive.add(record(), turn("b"))
    archive.add(record(), turn("c"))
    archive.sync()
    archive.sync()
    assert (len(written), len(synced)) == (2, 1)

    def broken(_: int) -> None:
        raise OSError(5, "input/output error")

    archive.add(record(), turn("d"))
    with monkeypatch.context() as failing:
        failing.setattr(AppendLog, "_fdatasync", staticmethod(broken))
        with pytest.raises(StoreError, match="disk reports"):
            archive.sync()
    archive.add(record(), turn("d"))
    with pytest.raises(StoreError, match="its content is uncertain"):
        archive.sync()


def test_full_disk_archives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is unchanged, and the next attempt succeeds."""
    archive = ArchiveStore.open(tmp_path)
    archive.add(record(), turn("a"))
    size = (tmp_path / FILE).stat().st_size

    def full(descriptor: int, data: bytes) -> int:
        os.write(descriptor, data[:10])
        raise OSError(28, "no space")

    with monkeypatch.context() as broken:
        broken.setattr(AppendLog, "_write", staticmethod(full))
        with pytest.raises(StoreError, match="disk full"):
            archive.add(record(), turn("b"))
    assert (tmp_path / FILE).stat().st_size == size
    assert len(archive.records) == 1
    archive.add(record(), turn("b"))
    archive.close()


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
def test_torn_archive_does_not_count(tmp_path: Path, kept: float) -> None:
    """The store reports the unfinished write, and earlier archives count."""
    archive = ArchiveStore.open(tmp_path)
    first = archive.add(record(), turn("a"))
    size = (tmp_path / FILE).stat().st_size
    archive.add(record(), turn("b"))
    archive.close()
    data = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(data[: size + int((len(data) - size) * kept)])
    again = ArchiveStore.open(tmp_path)
    assert list(again.records) == [first.id]
    assert "unfinished write" in again.notes[0]
    assert again.messages(first.id) == turn("a")
    again.add(record(), turn("b"))
    again.close()
    assert len(ArchiveStore.open(tmp_path).records) == 2


def test_damage_is_reported_and_hides_no_other_archive(tmp_path: Path) -> None:
    """Reading the damaged archive raises DamagedError, and the other archive can be read."""
    archive = ArchiveStore.open(tmp_path)
    first, second = archive.add(record(), turn("first")), archive.add(record(), turn("second"))
    archive.close()
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes().replace(b"say first", b"say fxrst"))
    again = ArchiveStore.open(tmp_path)
    assert "line 3" in again.notes[0]
    with pytest.raises(DamagedError, match=first.id):
        again.messages(first.id)
    assert again.messages(second.id) == turn("second")
    again.close()


def test_missing_file_is_named(tmp_path: Path) -> None:
    """If a file was removed, the StoreError contains its name."""
    archive = ArchiveStore.open(tmp_path)
    id = archive.add(record(), turn("a")).id
    (tmp_path / FILE).unlink()
    with pytest.raises(StoreError, match=FILE):
        archive.messages(id)


def test_large_file_is_continued_in_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the size limit, the store starts another file. A restart reads all files."""
    monkeypatch.setattr(module, "SEGMENT_BYTES", 1500)
    archive = ArchiveStore.open(tmp_path)
    ids = [archive.add(record(), turn(str(number))).id for number in range(12)]
    archive.summarize(ids[0], "late")
    archive.close()
    assert len(list(tmp_path.glob("archive-*.jsonl"))) > 2
    again = ArchiveStore.open(tmp_path)
    assert list(again.records) == ids
    assert [again.messages(id) for id in ids] == [turn(str(number)) for number in range(12)]
    assert again.records[ids[0]].record == "late"
    again.close()


def test_same_messages_have_the_same_archive_id(tmp_path: Path) -> None:
    """The id is the same after a restart. Another kind of archive has another id."""
    archive = ArchiveStore.open(tmp_path)
    first = archive.add(record(), turn("a"))
    assert archive.add(record(), turn("a")) == first
    assert archive.add(record(kind="phase"), turn("a")) != first
    archive.close()
    again = ArchiveStore.open(tmp_path)
    assert again.add(record(), turn("a")).id == first.id
    assert len(again.records) == 2
    again.close()


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    """The stored message contains a replacement character, because UTF-8 cannot encode a lone surrogate."""
    archive = ArchiveStore.open(tmp_path)
    id = archive.add(record(), [StoredMessage(user("a\ud800b"))]).id
    assert archive.messages(id)[0].message == user("a\ufffdb")
    archive.close()
    again = ArchiveStore.open(tmp_path)
    assert again.messages(id)[0].message == user("a\ufffdb")
    again.close()


def test_foreign_file_is_refused_untouched(tmp_path: Path) -> None:
    """The refused file keeps its content, and the store releases the lock of the folder."""
    (tmp_path / FILE).write_text("my diary\n")
    with pytest.raises(ForeignFileError):
        ArchiveStore.open(tmp_path)
    assert (tmp_path / FILE).read_text() == "my diary\n"
    (tmp_path / FILE).unlink()
    ArchiveStore.open(tmp_path).close()


def test_folder_has_one_owner(tmp_path: Path) -> None:
    """A second store of the same folder raises LockedError."""
    archive = ArchiveStore.open(tmp_path)
    with pytest.raises(LockedError):
        ArchiveStore.open(tmp_path)
    archive.close()
    archive.close()


def test_unknown_record_types_are_reported_and_skipped(tmp_path: Path) -> None:
    """A record of an unknown type is reported and does not affect other records."""
    archive = ArchiveStore.open(tmp_path)
    first = archive.add(record(), turn("a"))
    log = archive._log
    assert log is not None
    log.append(b'{"type":"custom","id":"x","parentId":null,"timestamp":"","customType":"archive","data":{"new":1}}')
    log.append(b'{"type":"custom","id":"y","parentId":null,"timestamp":"","customType":"elsewhere","data":7}')
    archive.close()
    again = ArchiveStore.open(tmp_path)
    assert list(again.records) == [first.id]
    assert len(again.notes) == 1
    again.close()


def test_records_are_recognized_by_role_and_text(tmp_path: Path) -> None:
    """The record of a turn is an assistant message, and the record of a phase is a user message.

    A record of before a late summary stays one.
    """
    archive = ArchiveStore.open(tmp_path)
    turn_id = archive.add(record(), turn("a")).id
    phase_id = archive.add(record(kind="phase"), turn("b")).id

    def stub(id: str) -> str:
        stored = archive.records.get(id, archive.records[turn_id])
        return stub_text(stored.kind, id, stored.record, stored.answer)

    assert archive.holders(assistant(stub(turn_id))) == (turn_id,)
    assert archive.holders(user(stub(phase_id))) == (phase_id,)
    assert archive.holders(user(stub(turn_id))) == archive.holders(assistant(stub(phase_id))) == ()
    assert archive.holders(assistant(stub("a" * 12))) == ()
    assert archive.holders(Message("system", assistant(stub(turn_id)).content)) == ()
    assert archive.holders(assistant(stub(turn_id) + " and more")) == ()
    receipt = stub(turn_id)
    archive.summarize(turn_id, "a summary")
    assert archive.holders(assistant(receipt)) == archive.holders(assistant(stub(turn_id))) == (turn_id,)
    archive.close()


def test_store_that_is_no_longer_open_archives_no_repeated_turn(tmp_path: Path) -> None:
    """A turn whose archive exists is refused like any other after the folder was closed or removed."""
    closed, removed = ArchiveStore.open(tmp_path / "a"), ArchiveStore.open(tmp_path / "b")
    closed.add(record(), turn("a"))
    removed.add(record(), turn("a"))
    removed.sync()
    closed.close()
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(StoreError, match="is closed"):
        closed.add(record(), turn("a"))
    with pytest.raises(StoreError, match="was removed"):
        removed.add(record(), turn("a"))
    removed.close()
