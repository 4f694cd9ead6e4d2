"""The record of files that tainted agents wrote: the labels of each file, and when a file loses them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from orch_protocol.core.taint import TaintLabel
from orch_protocol.policy.policy import PolicySpec
from orch_worker.policy import taint
from orch_worker.policy.path_rules import resolve_rules, shell_context
from orch_worker.policy.rules import ResolvedRules
from orch_worker.policy.taint import (
    changed_below,
    copy_file_taint,
    remember_file_taint,
    with_remembered_taint,
)

U, S = TaintLabel("untrusted", "mail"), TaintLabel("sensitive", "key")


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """The path of the record, next to two files."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("x")
    return tmp_path / "record.json"


def grounds(record: Path) -> ResolvedRules:
    """Return the resolved rules of an agent that works in the folder of the record."""
    return with_remembered_taint(resolve_rules(PolicySpec(), shell_context(record.parent, {})), record)


def test_file_taint_is_the_union_of_its_writers(record: Path) -> None:
    """A file has the content labels of all agents that wrote it. The label for actions is not recorded."""
    a, b = str(record.parent / "a"), str(record.parent / "b")
    remember_file_taint(record, [a], [U, TaintLabel("acts")], replace_labels=False)
    remember_file_taint(record, [a, b], [S], replace_labels=False)
    found = grounds(record)
    assert (found.untrusted, found.sensitive) == ((a,), (a, b))
    assert {a, b} <= found.present


def test_file_rewritten_by_an_untainted_agent_is_clean(record: Path) -> None:
    """A rewrite or a deletion removes the labels of a file, but an append does not."""
    a, b = record.parent / "a", record.parent / "b"
    remember_file_taint(record, [str(a), str(b)], [U], replace_labels=True)
    remember_file_taint(record, [str(a)], [], replace_labels=False)
    assert set(grounds(record).untrusted) == {str(a), str(b)}
    remember_file_taint(record, [str(a)], [], replace_labels=True)
    b.unlink()
    assert grounds(record).untrusted == ()


def test_untainted_agents_write_no_record(record: Path) -> None:
    """A write without labels does not create the record file."""
    remember_file_taint(record, [str(record.parent / "a")], [], replace_labels=True)
    assert sorted(path.name for path in record.parent.iterdir()) == ["a", "b"]


def test_labels_of_a_folder_are_copied(record: Path) -> None:
    """The same files below the other folder get the labels in addition to the labels that they have."""
    folder = record.parent
    for name in ("one/x", "one/y", "two/x", "two/y", "one-more/x"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    copy_file_taint(record, f"{folder}/one", f"{folder}/two")
    assert not record.exists()
    remember_file_taint(record, [f"{folder}/one/x", f"{folder}/one-more/x"], [U], replace_labels=True)
    remember_file_taint(record, [f"{folder}/two/x"], [S], replace_labels=True)
    copy_file_taint(record, f"{folder}/one", f"{folder}/two")
    found = grounds(record)
    assert set(found.untrusted) == {f"{folder}/{name}" for name in ("one/x", "two/x", "one-more/x")}
    assert found.sensitive == (f"{folder}/two/x",)


def test_bounded_record_keeps_the_latest_writes(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full record drops the file whose last write is the oldest."""
    monkeypatch.setattr(taint, "MAX_RECORDED_FILES", 2)
    a, b, c = (record.parent / name for name in "abc")
    c.write_text("x")
    for path in (a, b, a, c):
        remember_file_taint(record, [str(path)], [U], replace_labels=False)
    assert grounds(record).untrusted == (str(a), str(c))


def test_unreadable_record_makes_all_files_untrusted(record: Path) -> None:
    """If the record cannot be read, the labels are unknown, so the whole disk is untrusted."""
    record.write_text("{")
    assert grounds(record).untrusted == ("/",)


def test_files_changed_by_code_are_found(record: Path) -> None:
    """The search leaves out links, given separate folders and `.git`."""
    folder = record.parent
    since = time.time_ns() + taint.CLOCK_TOLERANCE_NS + 1
    assert changed_below(folder, since + 10**12) == []
    for name in ("in", "apart", ".git"):
        (folder / name).mkdir()
        (folder / name / "new").write_text("x")
    (folder / "link").symlink_to("a")
    found = changed_below(folder, 0, [folder / "apart"])
    assert sorted(Path(path).relative_to(folder).as_posix() for path in found) == ["a", "b", "in/new"]


def test_moved_folder_counts_as_changed(record: Path) -> None:
    """All files of a moved folder count as changed. A new entry in a folder does not make its other files count."""
    folder = record.parent
    long_ago = time.time() - 3600
    for name in ("old/in", "stays"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("x")
    for path in (folder / "old", folder / "old" / "in"):
        os.utime(path, (long_ago, long_ago))
    while (since := time.time_ns()) <= (folder / "stays" / "file").stat().st_ctime_ns + 2 * taint.CLOCK_TOLERANCE_NS:
        pass
    (folder / "old").rename(folder / "new")
    (folder / "stays" / "more").write_text("x")
    found = changed_below(folder, since)
    assert sorted(Path(path).relative_to(folder).as_posix() for path in found) == ["new/in/file", "stays/more"]
