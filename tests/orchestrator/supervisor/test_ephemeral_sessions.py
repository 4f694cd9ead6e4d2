"""Sessions that are only in memory, and sessions in a configured folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch import ArchivalConfig, AsyncOrchestrator, Config, MemoryConfig, ScriptedBackend
from orch.config.paths import sessions_of
from orch.sessions.findings import check_home
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
    """A folder that counts as an in-memory file system."""
    monkeypatch.setattr(ephemeral_sessions, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(ephemeral_sessions, "file_system", lambda _: "tmpfs")
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


def spec(id: str, *, persist: bool) -> AgentSpec:
    """Return the spec of an agent with the task "the secret" and the persistence `persist`."""
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
    """The folders of sessions in memory."""

    def test_memory_folder_is_created_on_demand_and_removed(self, memory: Path) -> None:
        """The folder is private. Closing removes its files, and closing twice has no effect."""
        folders = EphemeralSessions(memory)
        folders.close()
        assert list(memory.iterdir()) == []
        folder = folders.folder("a")
        folder.mkdir()
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        folders.close()
        assert files(memory) == []
        folders.close()

    def test_memory_folder_of_a_killed_root_is_removed(self, memory: Path) -> None:
        """Folders of running roots stay."""
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

    def test_missing_memory_file_system_refuses_ephemeral_agents(self, tmp_path: Path) -> None:
        """The session is not stored on a disk instead."""
        for place in (tmp_path / "none", tmp_path):
            if place.exists() and ephemeral_sessions.file_system(place) in ephemeral_sessions.KINDS:
                continue
            with pytest.raises(SpawnError, match="persist=False needs an in-memory file system"):
                EphemeralSessions(place).folder("a")


def test_journal_has_no_content_of_ephemeral_agents(tmp_path: Path) -> None:
    """The journal contains the entries of other agents only."""
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


async def test_ephemeral_agent_leaves_nothing_on_disk(
    memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent can be shown, forked and killed, but not resumed."""
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
        assert "archival is off for this agent" in capsys.readouterr().err
        tree = o.supervisor.tree.agents
        assert (tree[agent.id].spec.archival, tree[agent.id].spec.memory) == (None, None)
        with pytest.raises(ConfigError, match="has no archives, because it was spawned with persist=False"):
            await o.archives.list(agent.id)
        await agent.kill()
        assert not folders[0].exists()
        for wanted in (agent.query("?"), o.resume(agent.id)):
            with pytest.raises(AgentGoneError, match=r"session was not stored .* spawn another agent"):
                await wanted
    assert files(memory) == []
    async with AsyncOrchestrator(home=home, env={}, run="r", config=config, **fake_world(FakeLauncher())) as o:
        assert await o.agents() == []


async def test_sessions_are_stored_in_the_configured_folder(tmp_path: Path) -> None:
    """The folder is private, the next root of the run finds it, and its sessions are checked for damage."""
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
    assert [found for found in check_home(home, other) if not found.path.startswith(str(home))] == []
    with (folder / "session.jsonl").open("ab") as file:
        file.write(b'{"half')
    (folder / "index.sqlite").write_bytes(b"no index")
    (folder / "index.sqlite").chmod(0o644)
    found = {(each.kind, each.path) for each in check_home(home, sessions_of(home, str(other)))}
    index, session = (str(folder / name) for name in ("index.sqlite", "session.jsonl"))
    there = {each for each in found if not each[1].startswith(str(home))}
    assert there == {("torn", session), ("open", index), ("index", index)}
