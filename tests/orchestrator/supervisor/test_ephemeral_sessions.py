"""Sessions that are on no disk, and sessions that are on another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch import ArchivalConfig, AsyncOrchestrator, Config, MemoryConfig, ScriptedBackend
from orch.config.paths import sessions_of
from orch.sessions.findings import examine
from orch.supervisor import ephemeral_sessions
from orch.supervisor.ephemeral_sessions import EphemeralSessions
from orch.testing import FakeLauncher, fake_world
from orch.tree.journal.entries import AgentKilled, AgentSpawned
from orch.tree.journal.journal import Journal
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import AgentGoneError, ConfigError, SpawnError
from orch_worker.session.log.lock import FolderLock


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as one in memory."""
    monkeypatch.setattr(ephemeral_sessions, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(ephemeral_sessions, "file_system", lambda _: "tmpfs")
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


def spec(id: str, *, persist: bool) -> AgentSpec:
    """Return an agent."""
    return AgentSpec(
        id=id,
        seq=1,
        name=id,
        task="the secret",
        backend=BackendSpec("extractive"),
        folder="/f",
        cwd="/",
        persist=persist,
    )


def files(folder: Path) -> list[Path]:
    """Return every file below `folder`."""
    return [path for path in folder.rglob("*") if path.is_file()]


class TestFolders:
    """Where such sessions are."""

    def test_nothing_is_made_before_it_is_needed(self, memory: Path) -> None:
        """And nothing is left."""
        folders = EphemeralSessions(memory)
        folders.close()
        assert list(memory.iterdir()) == []
        folder = folders.folder("a")
        folder.mkdir()
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        folders.close()
        assert files(memory) == []
        folders.close()

    def test_what_a_root_left_that_was_killed_is_removed_by_the_next(self, memory: Path) -> None:
        """What belongs to one that lives stays."""
        living, dead = EphemeralSessions(memory), EphemeralSessions(memory)
        for folders in (living, dead):
            folders.folder("a").mkdir()
        left = dead.folder("a")
        assert isinstance(dead._lock, FolderLock)
        dead._lock.release()
        third = EphemeralSessions(memory)
        third.folder("b")
        assert not left.exists()
        assert living.folder("a").exists()
        living.close()
        third.close()

    def test_where_there_is_no_such_memory_it_is_refused(self, tmp_path: Path) -> None:
        """Rather than kept after all."""
        for place in (tmp_path / "none", tmp_path):
            if place.exists() and ephemeral_sessions.file_system(place) in ephemeral_sessions.KINDS:
                continue
            with pytest.raises(SpawnError, match="persist=False needs a file system in memory"):
                EphemeralSessions(place).folder("a")


def test_the_journal_holds_no_word_of_it(tmp_path: Path) -> None:
    """Of others it holds everything."""
    journal = Journal.open(tmp_path / "j.jsonl")
    journal.append([AgentSpawned(at=1.0, id="kept", spec=spec("kept", persist=True))])
    journal.append([AgentSpawned(at=2.0, id="gone", spec=spec("gone", persist=False))])
    journal.record([AgentKilled(at=3.0, id="gone", by="me"), AgentKilled(at=4.0, id="kept", by="me")])
    journal.close()
    again = Journal.open(tmp_path / "j.jsonl")
    assert [(type(entry).__name__, getattr(entry, "id", "")) for entry in again.entries] == [
        ("AgentSpawned", "kept"),
        ("AgentKilled", "kept"),
    ]
    again.close()
    assert b"gone" not in (tmp_path / "j.jsonl").read_bytes()


async def test_nothing_of_it_is_on_the_disk(memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It answers, is shown, forked and killed as any other; then nothing brings it back, and that is said."""
    config = Config(archival=ArchivalConfig(enabled=True), memory=MemoryConfig(enabled=True))
    home = tmp_path / "home"
    async with AsyncOrchestrator(home=home, env={}, run="r", config=config, **fake_world(FakeLauncher())) as o:
        script = ScriptedBackend(["a secret answer", "another"])
        agent = await o.spawn("a secret task", tools=[], backend=script, cwd=tmp_path, persist=False)
        assert (await agent.query("a secret question")).text == "a secret answer"
        assert len((await agent.show()).messages) == 2
        copy = await agent.session.fork()
        assert (await copy.query("and?")).text == "another"
        folders = [Path((await each.state()).folder) for each in (agent, copy)]
        assert all(folder.is_relative_to(memory) and folder.exists() for folder in folders)
        assert not any(b"secret" in path.read_bytes() for path in files(home))
        assert "archived" in capsys.readouterr().err
        tree = o.supervisor.tree.agents
        assert (tree[agent.id].spec.archival, tree[agent.id].spec.memory) == (None, None)
        with pytest.raises(ConfigError, match="has no archives, because it was spawned with persist=False"):
            await o.archives.list(agent.id)
        await agent.kill()
        assert not folders[0].exists()
        for wanted in (agent.query("?"), o.resume(agent.id)):
            with pytest.raises(AgentGoneError, match=r"nothing of it was kept .* cannot be brought back"):
                await wanted
    assert files(memory) == []
    async with AsyncOrchestrator(home=home, env={}, run="r", config=config, **fake_world(FakeLauncher())) as o:
        assert await o.agents() == []


async def test_sessions_are_where_the_configuration_says(tmp_path: Path) -> None:
    """Private, found again by the run, and looked through for damage."""
    home, other = tmp_path / "home", tmp_path / "other" / "sessions"
    config = Config(session_dir=str(other))
    async with AsyncOrchestrator(home=home, env={}, run="r", config=config, **fake_world(FakeLauncher())) as o:
        agent = await o.spawn("t", tools=[], backend=ScriptedBackend(["one", "two"]), cwd=tmp_path)
        await agent.query("?")
        folder = Path((await agent.state()).folder)
    assert folder.parent == other
    assert other.stat().st_mode & 0o777 == 0o700
    async with AsyncOrchestrator(home=home, env={}, run="r", config=config, **fake_world(FakeLauncher())) as o:
        again = await o.get(agent.id)
        assert (await again.query("?")).text == "two"
    mine = other / "mine"
    mine.mkdir(mode=0o755)
    (mine / "session.jsonl").write_text("what I wrote")
    assert [found for found in examine(home, other) if not found.path.startswith(str(home))] == []
    with (folder / "session.jsonl").open("ab") as file:
        file.write(b'{"half')
    (folder / "index.sqlite").write_bytes(b"no index")
    (folder / "index.sqlite").chmod(0o644)
    found = {(each.kind, each.path) for each in examine(home, sessions_of(home, str(other)))}
    index, session = (str(folder / name) for name in ("index.sqlite", "session.jsonl"))
    there = {each for each in found if not each[1].startswith(str(home))}
    assert there == {("torn", session), ("open", index), ("index", index)}
