"""Files that agents wrote while they held what strangers wrote: which they are, and for how long."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from orch_protocol.core.taint import TaintLabel
from orch_protocol.policy.policy import PolicySpec
from orch_worker.policy import taint
from orch_worker.policy.path_rules import grounds_of, where_of
from orch_worker.policy.rules import ResolvedRules
from orch_worker.policy.taint import changed_below, labels_file, remember_file_taint, with_remembered_taint

U, S = TaintLabel("untrusted", "mail"), TaintLabel("sensitive", "key")


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Where it is kept in mind, and two files."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("x")
    return tmp_path / "record.json"


def grounds(record: Path) -> ResolvedRules:
    """Return what an agent beside the record goes by."""
    return with_remembered_taint(grounds_of(PolicySpec(), where_of(record.parent, {})), record)


def test_a_file_is_what_its_writers_held(record: Path) -> None:
    """All of them, as long as each added to it; deeds are no matter."""
    a, b = str(record.parent / "a"), str(record.parent / "b")
    remember_file_taint(record, [a], [U, TaintLabel("acts")], whole=False)
    remember_file_taint(record, [a, b], [S], whole=False)
    found = grounds(record)
    assert (found.untrusted, found.sensitive) == ((a,), (a, b))
    assert {a, b} <= found.present


def test_what_is_written_whole_by_who_held_nothing_is_clean(record: Path) -> None:
    """As is what is gone; what is added to is not."""
    a, b = record.parent / "a", record.parent / "b"
    remember_file_taint(record, [str(a), str(b)], [U], whole=True)
    remember_file_taint(record, [str(a)], [], whole=False)
    assert set(grounds(record).untrusted) == {str(a), str(b)}
    remember_file_taint(record, [str(a)], [], whole=True)
    b.unlink()
    assert grounds(record).untrusted == ()


def test_nothing_is_kept_where_nobody_holds_anything(record: Path) -> None:
    """Not even a file."""
    remember_file_taint(record, [str(record.parent / "a")], [], whole=True)
    assert sorted(path.name for path in record.parent.iterdir()) == ["a", "b"]


def test_of_a_great_many_the_last_are_kept(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which something was written to them."""
    monkeypatch.setattr(taint, "MOST", 2)
    a, b, c = (record.parent / name for name in "abc")
    c.write_text("x")
    for path in (a, b, a, c):
        remember_file_taint(record, [str(path)], [U], whole=False)
    assert grounds(record).untrusted == (str(a), str(c))


def test_a_record_that_cannot_be_read_makes_all_files_untrusted(record: Path) -> None:
    """Nobody knows then."""
    record.write_text("{")
    assert grounds(record).untrusted == ("/",)


def test_what_code_changed_is_found(record: Path) -> None:
    """Below the folder; neither links nor what is apart."""
    folder = record.parent
    since = time.time_ns() + taint.TICK + 1
    assert changed_below(folder, since + 10**12) == []
    for name in ("in", "apart", ".git"):
        (folder / name).mkdir()
        (folder / name / "new").write_text("x")
    (folder / "link").symlink_to("a")
    found = changed_below(folder, 0, [folder / "apart"])
    assert sorted(Path(path).relative_to(folder).as_posix() for path in found) == ["a", "b", "in/new"]


def test_what_is_in_a_folder_that_was_moved_has_changed(record: Path) -> None:
    """Its files say nothing of that; a folder in which something is new is no other than before."""
    folder = record.parent
    long_ago = time.time() - 3600
    for name in ("old/in", "stays"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("x")
    for path in (folder / "old", folder / "old" / "in"):
        os.utime(path, (long_ago, long_ago))
    while (since := time.time_ns()) <= (folder / "stays" / "file").stat().st_ctime_ns + 2 * taint.TICK:
        pass
    (folder / "old").rename(folder / "new")
    (folder / "stays" / "more").write_text("x")
    found = changed_below(folder, since)
    assert sorted(Path(path).relative_to(folder).as_posix() for path in found) == ["new/in/file", "stays/more"]


def test_a_record_written_beside_the_sessions_before_is_moved(tmp_path: Path) -> None:
    """Its labels still hold; the record is in a folder of its own now."""
    (tmp_path / ".written.json").write_text('{"/a": ["untrusted"]}')
    record = labels_file(tmp_path / "session")
    assert record == tmp_path / ".written" / ".written.json"
    assert record.read_text() == '{"/a": ["untrusted"]}'
    assert not (tmp_path / ".written.json").exists()
    assert labels_file(tmp_path / "other") == record
