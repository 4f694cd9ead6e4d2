"""Findings in damaged files of a home, and repairs that lose no byte."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agent_history import PROFILES, Life, steps
from damaged_lines import spoilt
from orch.cli import run
from orch.sessions.findings import check_home, check_session_file, repair
from orch.tree.journal.entries import RunStarted
from orch.tree.journal.journal import Journal
from orch_protocol.core.messages import assistant
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.log.record_format import seal_lines, unseal_line


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a run, and with an agent that has an archive."""
    home = tmp_path / "home"
    FolderLock.acquire(home / "runs" / "r").release()
    journal = Journal.open(home / "runs" / "r" / "journal.jsonl")
    journal.append([RunStarted(at=1.0, pid=1)])
    journal.append([RunStarted(at=2.0, pid=2)])
    journal.close()
    FolderLock.acquire(home / "sessions" / "a").release()
    life = Life(home / "sessions" / "a", PROFILES["tight"])
    life.begin("ask")
    life.say(*steps(3, "t", 60), assistant("answer"))
    life.end()
    assert life.archive()
    life.close()
    monkeypatch.setenv("ORCH_HOME", str(home))
    return home


def session(home: Path) -> Path:
    return home / "sessions" / "a" / "session.jsonl"


def contents(home: Path) -> dict[Path, bytes]:
    """Return the content of every file."""
    return {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}


def test_healthy_home_has_no_findings(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`fsck --repair` exits with 0 and changes no file. A missing home has no findings."""
    before = contents(home)
    assert run(["fsck", "--repair"]) == 0
    assert "no damage found" in capsys.readouterr().out
    assert contents(home) == before
    assert list(check_home(home / "none")) == []


def test_torn_append_is_cut_off_by_repair_and_saved(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`fsck` changes no file. `fsck --repair` stores the removed bytes in another file."""
    whole = session(home).read_bytes()
    session(home).write_bytes(whole + b'{"type":"mess')
    before = contents(home)
    assert run(["fsck", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["repaired"]) == ("torn", "")
    assert f"13 bytes of a write that did not finish, from byte {len(whole)} on" in found["what"]
    assert contents(home) == before
    assert run(["fsck", "--repair"]) == 0
    assert "kept in session.jsonl.torn-1" in capsys.readouterr().out
    assert session(home).read_bytes() == whole
    assert session(home).with_name("session.jsonl.torn-1").read_bytes() == b'{"type":"mess'
    assert run(["fsck"]) == 0


def test_locked_folder_is_skipped(home: Path) -> None:
    """The owner of the lock may be writing."""
    torn = session(home).read_bytes() + b"{"
    session(home).write_bytes(torn)
    lock = FolderLock.acquire(session(home).parent)
    (found,) = map(repair, check_home(home))
    assert (found.repaired, "is writing" in found.do) == ("", True)
    assert session(home).read_bytes() == torn
    lock.release()


def test_damaged_line_is_reported_and_left_in_place(home: Path) -> None:
    """The finding has the line, its bytes and the reason. The archive with this line is reported, too."""
    data = session(home).read_bytes()
    at = data.index(b'"tool_use"')
    session(home).write_bytes(data[:at] + b'"tool_ose"' + data[at + 10 :])
    before = contents(home)
    found = list(map(repair, check_home(home)))
    assert {each.kind for each in found} == {"damaged", "archive"}
    line = data[:at].count(b"\n") + 1
    assert any(each.what.startswith(f"line {line} (bytes ") for each in found)
    assert not any(each.repaired for each in found)
    assert {path: data for path, data in contents(home).items() if path in before} == before


def test_invalid_tree_is_reported_with_lines(home: Path) -> None:
    """A missing parent is no separate finding if its line is damaged."""
    path = session(home)
    whole = path.read_bytes()
    objects = [sealed.object for line in whole.splitlines() if (sealed := unseal_line(line))]
    listed = [place for place, each in enumerate(objects) if each.startswith(b'{"type":"message"')]
    ids = [json.loads(each)["id"].encode() for each in objects]
    parts = {
        "has the id": (listed[2], lambda each: each.replace(ids[listed[2]], ids[listed[0]])),
        "which is not before it": (listed[3], lambda each: each.replace(ids[listed[2]], ids[listed[3] + 1], 1)),
        "follows itself": (listed[1], lambda each: each.replace(ids[listed[0]], ids[listed[1]])),
        "is not a readable entry": (listed[2], lambda each: each.replace(b'"role"', b'"rule"')),
    }
    for what, (place, change) in parts.items():
        changed = [change(each) if number == place else each for number, each in enumerate(objects)]
        path.write_bytes(seal_lines(changed, 0, 0)[0])
        found_texts = [each.what for each in check_home(home) if each.kind in ("tree", "entry")]
        assert any(f"line {place + 1} " in each and what in each for each in found_texts), (what, found_texts)
    path.write_bytes(whole)
    assert [each.kind for each in check_session_file(path, "other")] == ["owner"]
    path.write_bytes(whole.replace(objects[listed[3]][:-1], b"?" * 20))
    assert not any(each.kind == "tree" for each in check_home(home))


def test_foreign_file_is_reported_and_untouched(home: Path) -> None:
    """A journal that orch did not write is not changed, and the other files are examined."""
    (home / "runs" / "r" / "journal.jsonl").write_bytes(b"dear diary\n")
    session(home).write_bytes(session(home).read_bytes() + b"{")
    assert [each.kind for each in check_home(home)] == ["foreign", "torn"]
    list(map(repair, check_home(home)))
    assert (home / "runs" / "r" / "journal.jsonl").read_bytes() == b"dear diary\n"


@pytest.mark.parametrize("spoils", ["other", "inside", "empty"])
def test_unreadable_index_is_set_aside(home: Path, spoils: str) -> None:
    """The index is renamed, and the next search builds a new one."""
    life = Life(session(home).parent, PROFILES["tight"])
    assert life.search("word0")
    life.close()
    index = session(home).with_name("index.sqlite")
    assert list(check_home(home)) == []
    whole = index.read_bytes()
    spoilt = {"other": b"dear diary", "inside": whole[:4096] + b"x" * (len(whole) - 4096), "empty": b""}[spoils]
    index.write_bytes(spoilt)
    (found,) = check_home(home)
    assert (found.kind, found.path) == ("index", str(index))
    assert index.read_bytes() == spoilt
    assert repair(found).repaired == "renamed to index.sqlite.damaged-1"
    assert index.with_name("index.sqlite.damaged-1").read_bytes() == spoilt
    assert list(check_home(home)) == []
    life = Life(session(home).parent, PROFILES["tight"])
    assert life.search("word0")
    life.close()


def test_permissions_open_to_others_are_closed(home: Path) -> None:
    """The home and the files in it are closed to other users."""
    for path in (home, session(home)):
        path.chmod(0o755)
    found = list(map(repair, check_home(home)))
    assert [each.path for each in found] == [str(home), str(session(home))]
    assert all(each.repaired for each in found)
    assert not any(path.stat().st_mode & 0o077 for path in (home, session(home)))


def test_repair_of_damaged_files_loses_no_byte(home: Path) -> None:
    """The bytes of the repaired file and of the file with removed bytes are the bytes of the damaged file."""
    data = session(home).read_bytes()
    for seed in range(0, 60, 2):
        spoiled = spoilt(data, seed)
        session(home).write_bytes(spoiled)
        found = list(map(repair, check_home(home)))
        assert found or spoiled == data or data.startswith(spoiled), seed
        kept = b"".join(path.read_bytes() for path in sorted(session(home).parent.glob("session.jsonl.torn-*")))
        assert session(home).read_bytes() + kept == spoiled
        for path in session(home).parent.glob("session.jsonl.torn-*"):
            os.unlink(path)
