"""`o.sessions`: sessions without an agent in the run, and sessions of the run's agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_protocol.core.errors import (
    AgentNotFoundError,
    ConfigError,
    EntryNotFoundError,
    LockedError,
)
from orch_protocol.core.messages import Message, text_of
from orch_worker.conversation.framing import is_project
from orch_worker.session.log.lock import FolderLock
from orchestrator.root_double import opened


async def session_of_another_run(home: Path) -> str:
    """Return the id of an agent that has answered two queries in a run that is closed."""
    async with opened(home) as o:
        agent = await o.scripted("one", "two", name="old")
        await agent.query("first")
        await agent.query("second")
        return agent.id


def words(messages: list[Message]) -> list[str]:
    """Return the last word of each message, without the description of the project."""
    return [text_of(message).split()[-1] for message in messages if not is_project(message)]


async def test_stored_session_is_listed_opened_and_read_without_an_agent(tmp_path: Path) -> None:
    """A session is given by its id, an id prefix, its folder or its file, and no agent is created."""
    id = await session_of_another_run(tmp_path)
    async with opened(tmp_path) as o:
        (stored,) = await o.sessions.list()
        assert stored.id == id
        assert stored.bytes > 0
        for named in (id, id[:8], stored.folder, Path(stored.folder) / "session.jsonl"):
            tree = await o.sessions.open(named)
            assert (tree.id, tree.count) == (id, len(tree.entries))
            assert words(await o.sessions.read(named)) == ["first", "one", "second", "two"]
        assert len((await o.sessions.open(id, limit=1)).entries) == 1
        assert words(await o.sessions.read(id, 1)) == ["first", "one"]
        assert await o.agents(all=True) == []


async def test_label_of_a_stored_session_is_an_entry(tmp_path: Path) -> None:
    """`read` accepts the label, None removes it, and `root` is reserved."""
    id = await session_of_another_run(tmp_path)
    async with opened(tmp_path) as o:
        await o.sessions.label(id, 1, "start")
        assert words(await o.sessions.read(id, "start")) == ["first", "one"]
        assert list((await o.sessions.open(id)).labels.values()) == ["start"]
        await o.sessions.label(id, "start", None)
        assert (await o.sessions.open(id)).labels == {}
        with pytest.raises(ConfigError, match="means the beginning"):
            await o.sessions.label(id, 1, "root")


async def test_session_written_by_another_process_cannot_be_labeled(tmp_path: Path) -> None:
    """A session that another process has locked can still be read."""
    id = await session_of_another_run(tmp_path)
    async with opened(tmp_path) as o:
        folder = (await o.sessions.open(id)).folder
        lock = FolderLock.acquire(Path(folder))
        try:
            with pytest.raises(LockedError):
                await o.sessions.label(id, 1, "start")
            assert len(words(await o.sessions.read(id))) == 4
        finally:
            lock.release()


async def test_fork_of_a_stored_session_copies_a_path_or_all_branches(tmp_path: Path) -> None:
    """The copy has no process, and its entries have the same ids as in the source."""
    id = await session_of_another_run(tmp_path)
    async with opened(tmp_path) as o:
        path = await o.sessions.fork(id, 1, name="path")
        whole = await o.sessions.fork(id, 1, all=True, name="whole")
        assert path.pid is whole.pid is None
        assert words(await o.sessions.read(path.id)) == words(await o.sessions.read(whole.id)) == ["first", "one"]
        assert len(await path.session.branches()) == 1
        assert sorted(branch.current for branch in await whole.session.branches()) == [False, True]
        ids = {row.id for row in (await o.sessions.open(id)).entries}
        assert {row.id for row in (await whole.session.tree()).entries} > ids
        await whole.session.checkout((await o.sessions.open(id)).leaf)
        assert words(await o.sessions.read(whole.id)) == ["first", "one", "second", "two"]


async def test_sessions_of_agents_are_changed_by_their_owner(tmp_path: Path) -> None:
    """The path of an agent's folder names the agent, whose process writes the label."""
    async with opened(tmp_path) as o:
        agent = await o.scripted("one", "two", name="now")
        await agent.query("first")
        folder = (await agent.session.tree()).folder
        await o.sessions.label(folder, -1, "start")
        assert list((await agent.session.tree()).labels.values()) == ["start"]
        assert (await o.sessions.open("now")).name == "now"
        assert words(await o.sessions.read("now")) == ["first", "one"]
        copy = await o.sessions.fork(Path(folder), "start")
        assert (await copy.query("again")).text == "two"


async def test_unknown_sessions_turns_and_entries_are_refused(tmp_path: Path) -> None:
    """Unknown ids, folders without a session, and missing turns and entries raise errors."""
    id = await session_of_another_run(tmp_path)
    async with opened(tmp_path) as o:
        with pytest.raises(AgentNotFoundError, match="no session 'nobody'"):
            await o.sessions.open("nobody")
        with pytest.raises(ConfigError, match="not an orch session"):
            await o.sessions.read(tmp_path)
        for entry in (3, -3, 0, "nowhere"):
            with pytest.raises(EntryNotFoundError):
                await o.sessions.read(id, entry)


async def test_turn_numbers_name_turns_of_the_current_conversation(tmp_path: Path) -> None:
    """`checkout` and `fork` keep the given turn; `branch` removes it and returns its prompt."""
    async with opened(tmp_path) as o:
        agent = await o.scripted("one", "two", "three", "four")
        for prompt in ("first", "second", "third"):
            await agent.query(prompt)
        copy = await agent.session.fork(-2)
        assert words(await o.sessions.read(copy.id)) == ["first", "one", "second", "two"]
        assert await agent.session.branch(3) == "third"
        assert words(await o.sessions.read(agent.id)) == ["first", "one", "second", "two"]
        await agent.session.checkout(1)
        assert words(await o.sessions.read(agent.id)) == ["first", "one"]
        await agent.query("other")
        assert await agent.session.branch(-1) == "other"
        with pytest.raises(EntryNotFoundError, match="no turn 2: the conversation has 1 turns"):
            await agent.session.checkout(2)


async def test_fork_with_all_copies_every_branch(tmp_path: Path) -> None:
    """With `all=True`, the copy has every branch and continues at the current entry of the source."""
    async with opened(tmp_path) as o:
        agent = await o.scripted("one", "two", "three")
        await agent.query("first")
        await agent.query("second")
        await agent.session.checkout(1)
        await agent.query("third")
        assert len(await (await agent.session.fork()).session.branches()) == 1
        copy = await agent.session.fork(all=True)
        assert words(await o.sessions.read(copy.id)) == ["first", "one", "third", "three"]
        assert len(await copy.session.branches()) == 2
