"""What is found wrong with files, and what is done about it without losing a byte."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agent_history import PROFILES, Life, steps
from damaged_lines import spoilt
from orch.cli import run
from orch.sessions.findings import examine, in_session, repair
from orch.tree.journal.entries import RunStarted
from orch.tree.journal.journal import Journal
from orch_protocol.core.messages import assistant
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.log.record_format import seal_lines, unseal_line


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a run and an agent that has archived."""
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
    """Return every file with its content."""
    return {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}


def test_nothing_is_wrong_with_what_is_whole(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is said, nothing is changed, and the command ends with 0; also where there is no home."""
    before = contents(home)
    assert run(["fsck", "--repair"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert contents(home) == before
    assert list(examine(home / "none")) == []


def test_a_write_that_did_not_end_is_cut_off_and_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Looking changes nothing; repairing leaves the file as it was before that write, and the rest beside it."""
    whole = session(home).read_bytes()
    session(home).write_bytes(whole + b'{"type":"mess')
    before = contents(home)
    assert run(["fsck", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["mended"]) == ("torn", "")
    assert f"13 bytes of a write that did not end, from byte {len(whole)} on" in found["what"]
    assert contents(home) == before
    assert run(["fsck", "--repair"]) == 0
    assert "kept in session.jsonl.torn-1" in capsys.readouterr().out
    assert session(home).read_bytes() == whole
    assert session(home).with_name("session.jsonl.torn-1").read_bytes() == b'{"type":"mess'
    assert run(["fsck"]) == 0


def test_what_is_being_written_is_left_alone(home: Path) -> None:
    """Whoever holds the folder may be in the middle of it."""
    torn = session(home).read_bytes() + b"{"
    session(home).write_bytes(torn)
    lock = FolderLock.acquire(session(home).parent)
    (found,) = map(repair, examine(home))
    assert (found.mended, "being written" in found.do) == ("", True)
    assert session(home).read_bytes() == torn
    lock.release()


def test_damage_inside_is_named_and_stays_where_it_is(home: Path) -> None:
    """Line, bytes and reason; the archive that stood on it says so, too; no byte of the file is touched."""
    data = session(home).read_bytes()
    at = data.index(b'"tool_use"')
    session(home).write_bytes(data[:at] + b'"tool_ose"' + data[at + 10 :])
    before = contents(home)
    found = list(map(repair, examine(home)))
    assert {each.kind for each in found} == {"damaged", "archive"}
    line = data[:at].count(b"\n") + 1
    assert any(each.what.startswith(f"line {line} (bytes ") for each in found)
    assert not any(each.mended for each in found)
    assert {path: data for path, data in contents(home).items() if path in before} == before


def test_a_tree_that_is_none_is_named_though_every_line_fits(home: Path) -> None:
    """Ids that are there twice, parents that come later or not at all, circles, entries that say nothing, another's
    file: each with its line. What lost lines explain is not said twice."""
    path = session(home)
    whole = path.read_bytes()
    objects = [sealed.object for line in whole.splitlines() if (sealed := unseal_line(line))]
    said = [place for place, each in enumerate(objects) if each.startswith(b'{"type":"message"')]
    ids = [json.loads(each)["id"].encode() for each in objects]
    parts = {
        "has the id": (said[2], lambda each: each.replace(ids[said[2]], ids[said[0]])),
        "which is not before it": (said[3], lambda each: each.replace(ids[said[2]], ids[said[3] + 1], 1)),
        "follows itself": (said[1], lambda each: each.replace(ids[said[0]], ids[said[1]])),
        "is no entry that can be read": (said[2], lambda each: each.replace(b'"role"', b'"rule"')),
    }
    for what, (place, change) in parts.items():
        changed = [change(each) if number == place else each for number, each in enumerate(objects)]
        path.write_bytes(seal_lines(changed, 0, 0)[0])
        told = [each.what for each in examine(home) if each.kind in ("tree", "entry")]
        assert any(f"line {place + 1} " in each and what in each for each in told), (what, told)
    path.write_bytes(whole)
    assert [each.kind for each in in_session(path, "somebody")] == ["owner"]
    path.write_bytes(whole.replace(objects[said[3]][:-1], b"?" * 20))
    assert not any(each.kind == "tree" for each in examine(home))


def test_a_file_of_somebody_else_is_named(home: Path) -> None:
    """In the place of a journal or a transcript: it is not touched, and the others are looked at."""
    (home / "runs" / "r" / "journal.jsonl").write_bytes(b"dear diary\n")
    session(home).write_bytes(session(home).read_bytes() + b"{")
    assert [each.kind for each in examine(home)] == ["foreign", "torn"]
    list(map(repair, examine(home)))
    assert (home / "runs" / "r" / "journal.jsonl").read_bytes() == b"dear diary\n"


@pytest.mark.parametrize("spoils", ["other", "inside", "empty"])
def test_an_index_that_cannot_be_read_is_set_aside(home: Path, spoils: str) -> None:
    """Nothing of it is thrown away; who searches next makes another and finds what is there."""
    life = Life(session(home).parent, PROFILES["tight"])
    assert life.search("word0")
    life.close()
    index = session(home).with_name("index.sqlite")
    assert list(examine(home)) == []
    whole = index.read_bytes()
    spoilt = {"other": b"dear diary", "inside": whole[:4096] + b"x" * (len(whole) - 4096), "empty": b""}[spoils]
    index.write_bytes(spoilt)
    (found,) = examine(home)
    assert (found.kind, found.path) == ("index", str(index))
    assert index.read_bytes() == spoilt
    assert repair(found).mended == "set aside as index.sqlite.damaged-1"
    assert index.with_name("index.sqlite.damaged-1").read_bytes() == spoilt
    assert list(examine(home)) == []
    life = Life(session(home).parent, PROFILES["tight"])
    assert life.search("word0")
    life.close()


def test_files_that_others_may_read_are_closed(home: Path) -> None:
    """The home itself and whatever is in it."""
    for path in (home, session(home)):
        path.chmod(0o755)
    found = list(map(repair, examine(home)))
    assert [each.path for each in found] == [str(home), str(session(home))]
    assert all(each.mended for each in found)
    assert not any(path.stat().st_mode & 0o077 for path in (home, session(home)))


def test_spoilt_files_are_looked_through_and_lose_nothing(home: Path) -> None:
    """Whatever was done to them: something is found, and each byte is in the file or beside it afterwards."""
    data = session(home).read_bytes()
    for seed in range(0, 60, 2):
        spoiled = spoilt(data, seed)
        session(home).write_bytes(spoiled)
        found = list(map(repair, examine(home)))
        assert found or spoiled == data or data.startswith(spoiled), seed
        kept = b"".join(path.read_bytes() for path in sorted(session(home).parent.glob("session.jsonl.torn-*")))
        assert session(home).read_bytes() + kept == spoiled
        for path in session(home).parent.glob("session.jsonl.torn-*"):
            os.unlink(path)
