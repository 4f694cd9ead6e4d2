"""Checking damaged session files, and writing repaired copies of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent_history import EAGER, PROFILES, Life, steps
from damaged_lines import spoilt
from orch import Config
from orch.cli import run
from orch.sessions.formats.detect import read_file
from orch.sessions.repair import findings_of, write_repaired_copy
from orch_protocol.core.errors import AgentBusyError, ForeignFileError, LockedError, StoreError
from orch_protocol.core.messages import text_of
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import Gate, opened

AT_ONCE = Config(archival=replace(EAGER, async_=False))
FILES = 120


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(lambda _: None))
    monkeypatch.setattr(AppendLog, "_sync_folder", staticmethod(lambda _: None))


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    """The file of a session with archives and a checkout of an earlier entry."""
    life = Life(tmp_path / "life", PROFILES["tight"])
    for turn in range(4):
        life.turn(*steps(2, f"t{turn}", 40))
        life.archive()
        if turn == 1:
            life.go(life.entries()[-1].id, "it led nowhere")
    life.close()
    return (tmp_path / "life" / "session.jsonl").read_bytes()


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def contents(path: Path) -> bytes:
    return path.read_bytes()


def names(path: Path) -> set[str]:
    """Return the names of the file, and of files whose name begins with its name."""
    return {each.name for each in path.parent.glob(f"{path.name}*")}


def test_repaired_copy_of_any_damaged_file_is_valid(data: bytes, tmp_path: Path) -> None:
    """The damaged file is unchanged, and the copy has no findings."""
    source = tmp_path / "source.jsonl"
    for seed in range(FILES):
        damaged = spoilt(data, seed)
        source.write_bytes(damaged)
        target = tmp_path / f"{seed}.jsonl"
        found = findings_of(source)
        done = write_repaired_copy(source, target)
        assert source.read_bytes() == damaged
        assert findings_of(target) == [], seed
        assert bool(done) <= bool(found), seed
        (here,), (there,) = read_file(source, repair=True), read_file(target)
        listed = [each.message for each in here.entries if hasattr(each, "message")]
        assert [each.message for each in there.entries if hasattr(each, "message")] == listed


@pytest.mark.usefixtures("data")
def test_valid_file_is_copied_unchanged(tmp_path: Path) -> None:
    """The copy has the same messages and archives."""
    source, target = tmp_path / "life" / "session.jsonl", tmp_path / "again" / "session.jsonl"
    FolderLock.acquire(target.parent).release()
    assert (findings_of(source), write_repaired_copy(source, target)) == ([], [])
    assert read_session(target.parent).messages == read_session(source.parent).messages
    one, other = Life(source.parent, PROFILES["tight"]), Life(target.parent, PROFILES["tight"])
    assert [one.read(each.id) for each in one.records()] == [other.read(each.id) for each in other.records()]
    one.close(), other.close()


def test_foreign_session_is_checked_but_not_repaired(tmp_path: Path) -> None:
    """The finding names the import command that repairs the file, and existing files are not overwritten."""
    file = tmp_path / "talk.jsonl"
    file.write_text('{"role":"user","content":"a"}\n{"role":"assistant","content":"b"}\n{"role":"us')
    (found,) = findings_of(file)
    assert "never finished" in found.what
    assert f"orch session import {file} --repair" in found.do
    with pytest.raises(ForeignFileError, match="import --repair"):
        write_repaired_copy(file, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    with pytest.raises(StoreError, match="already exists"):
        write_repaired_copy(file, file)
    with pytest.raises(StoreError, match="No such file"):
        findings_of(tmp_path / "none")


async def test_agent_continues_with_the_repaired_copy(tmp_path: Path) -> None:
    """The damaged file is kept under another name. The agent answers queries, and its archives can be read."""
    async with opened(tmp_path, config=AT_ONCE) as o:
        agent = await o.scripted("one", "two", "three", "four", context="none")
        for asked in ("first", "second", "third"):
            await agent.query(asked)
        assert (await agent.session.fsck(repair=True)).found == ()
        path = Path((await agent.state()).folder, "session.jsonl")
        await agent.kill()
        await agent.resume()
        whole = contents(path)
        at = whole.index(b'"second"')
        damaged = whole[:at] + b'"sec?nd"' + whole[at + 8 :] + b'{"type":"mess'
        put(path, damaged)
        looked = await agent.session.fsck()
        assert {each.kind for each in looked.found} >= {"damaged", "torn"}
        assert (looked.kept, contents(path)) == ("", damaged)
        checked = await agent.session.fsck(repair=True)
        assert contents(Path(checked.kept)) == damaged
        assert any("it is left out" in each for each in checked.repaired)
        assert (await agent.session.fsck()).found == ()
        assert [text_of(each) for each in read_session(path.parent).messages][-1].endswith("three")
        assert (await agent.query("fourth")).text
        for row in await o.archives.list(agent.id):
            assert await o.archives.read(row.id)


async def test_session_in_use_is_not_repaired(tmp_path: Path) -> None:
    """The session has a running turn, or is locked by another program. Its file is not changed."""
    gate = Gate()
    async with opened(tmp_path) as o:
        agent = await o.scripted({"tool": "gate"}, "one", tools=[gate.tool()])
        asked = agent.submit("first")
        await gate.called.wait()
        path = Path((await agent.state()).folder, "session.jsonl")
        put(path, contents(path) + b"{")
        with pytest.raises(AgentBusyError, match="is at work: first"):
            await agent.session.fsck(repair=True)
        assert contents(path).endswith(b"}\n{")
        put(path, contents(path)[:-1])
        gate.open.set()
        await asked
        await agent.kill()
        put(path, contents(path) + b"{")
        lock = FolderLock.acquire(path.parent)
        with pytest.raises(LockedError):
            await agent.session.fsck(repair=True)
        lock.release()
        assert names(path) == {"session.jsonl"}


async def test_pruning_deletes_kept_damaged_files(tmp_path: Path) -> None:
    """`prune` also deletes damaged files that a repair kept, because they contain the pruned messages."""
    async with opened(tmp_path, config=AT_ONCE) as o:
        agent = await o.scripted("one", "two", "three", context="none")
        for asked in ("first", "second", "third"):
            await agent.query(asked)
        path = Path((await agent.state()).folder, "session.jsonl")
        await agent.kill()
        put(path, contents(path) + b"{")
        kept = Path((await agent.session.fsck(repair=True)).kept)
        assert names(path) == {"session.jsonl", kept.name}
        await o.archives.prune(older=0)
        assert names(path) == {"session.jsonl"}


def test_fsck_command_reports_and_repairs(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage exits with 1, and a repair with 0."""
    file = tmp_path / "mine.jsonl"
    file.write_bytes(data)
    assert run(["session", "fsck", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: no damage found\n"
    file.write_bytes(data + b"{")
    assert run(["session", "fsck", str(file)]) == 1
    assert "a write that did not finish" in capsys.readouterr().out
    assert run(["session", "fsck", str(file), "--repair", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["repaired_file"], reported["kept"], len(reported["found"])) == (f"{file}.repaired", str(file), 1)
    assert run(["session", "fsck", reported["repaired_file"]]) == 0
    assert run(["session", "fsck", str(file), "--output", "x"]) == 2
