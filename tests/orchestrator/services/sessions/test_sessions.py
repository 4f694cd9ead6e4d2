"""Changes of sessions between turns: checkout, labels, titles, notes and metadata, and who may make them."""

from __future__ import annotations

import asyncio
import math
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent_history import EAGER
from orch import AsyncSubagent, Config
from orch.services import serve_worker
from orch.services.agents.processes import request_worker
from orch.services.sessions import sessions
from orch.tree.interface.events import StopIfIdle
from orch.tree.interface.topics import ExitTopic
from orch_protocol.core.errors import AgentBusyError, ConfigError, EntryNotFoundError, StoreError, ToolNotGrantedError
from orch_protocol.core.messages import text_of
from orch_protocol.services.agents.status import SHOW_STATE
from orch_protocol.services.service import AgentRef
from orch_protocol.services.sessions.sessions import SHOW_SESSION, ChangeSession, EntryRow, ShowSession
from orch_protocol.session.tree import MoveLeaf, SessionEdit
from orch_protocol.wire.frames import encode_body
from orch_protocol.wire.worker_messages import RootCall
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import Gate, World, opened
from virtual_clock import until


async def spawned(o: World, *said: Any, **options: Any) -> AsyncSubagent:
    """Return an agent with the answers `said` and without a project description."""
    return await o.scripted(*said, context="none", **options)


async def all_messages(agent: AsyncSubagent) -> list[EntryRow]:
    """Return the messages on all branches of a session."""
    return [row for row in (await agent.session.tree()).entries if row.type == "message"]


def texts(o: World, agent: AsyncSubagent) -> list[str]:
    """Return the texts of the messages that the model is shown, as read from the session file."""
    folder = Path(o.supervisor.tree.agents[agent.id].spec.folder)
    return [text_of(message).removeprefix("Task: work\n\nQuery: ") for message in read_session(folder).messages]


async def rest(o: World, agent: AsyncSubagent) -> None:
    """End the process of an idle agent."""
    node = o.supervisor.tree.agents[agent.id]
    gone = o.supervisor.waiters.watch(ExitTopic(agent.id, node.incarnation))
    o.supervisor.handle(StopIfIdle(agent.id))
    await gone
    assert o.status(agent) == "cold"


async def test_next_answer_follows_the_entry_gone_back_to(tmp_path: Path) -> None:
    """Later messages stay on their branch, and a checkout shows them again."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two", "three", "four")
        await agent.query("first")
        await agent.query("second")
        *_, question, answer = await all_messages(agent)
        first_end = next(row.id for row in (await agent.session.tree()).entries if row.type == "turn_end")
        await agent.session.checkout(first_end)
        assert texts(o, agent) == ["first", "one"]
        assert (await agent.query("another")).text == "three"
        assert texts(o, agent) == ["first", "one", "another", "three"]
        left, here = await agent.session.branches()
        assert (left.current, left.head, left.from_id) == (False, "second", first_end)
        assert (here.current, here.head) == (True, "another")
        await agent.session.checkout(left.id)
        assert texts(o, agent) == ["first", "one", "second", "two"]
        assert {question.id, answer.id} <= {row.id for row in await all_messages(agent) if row.on_path}
        assert (await agent.query("again")).text == "four"


async def test_going_back_before_a_question_returns_it(tmp_path: Path) -> None:
    """After the removal of the first question, the next question contains the task again."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two", "three")
        await agent.query("first")
        await agent.query("second")
        first, answer, second, _ = await all_messages(agent)
        assert await agent.session.branch(second.id) == "second"
        assert texts(o, agent) == ["first", "one"]
        assert await agent.session.branch(answer.id, summary="It was a try.") is None
        assert "It was a try." in texts(o, agent)[-1]
        assert await agent.session.branch(first.id) == "first"
        assert texts(o, agent) == []
        await agent.query("asked anew")
        assert (await all_messages(agent))[-2].head == "Task: work Query: asked anew"
        await agent.session.checkout(None)
        assert texts(o, agent) == []


async def test_cold_agent_goes_back_without_a_process(tmp_path: Path) -> None:
    """The root itself writes a checkout or a label of a cold agent to the session file."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two")
        await agent.query("first")
        await rest(o, agent)
        await agent.session.checkout(None)
        await agent.session.label((await all_messages(agent))[0].id, "start")
        assert (o.status(agent), agent.pid, texts(o, agent)) == ("cold", None, [])
        assert (await agent.session.tree()).labels == {(await all_messages(agent))[0].id: "start"}
        assert (await agent.query("anew")).text == "two"
        assert texts(o, agent) == ["anew", "two"]
        await agent.kill()
        await agent.session.checkout("start")
        assert texts(o, agent) == ["first"]


async def test_query_during_the_roots_write_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query waits even if the caller of the change is cancelled, and its process reads the changed session."""
    edited, begun, go_on = sessions._write_edit, asyncio.Event(), asyncio.Event()

    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two")
        await agent.query("first")
        await rest(o, agent)
        loop = asyncio.get_running_loop()

        def slowly(*arguments: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            edited(*arguments)

        monkeypatch.setattr(sessions, "_write_edit", slowly)
        going = asyncio.create_task(agent.session.checkout(None))
        await begun.wait()
        asking = agent.submit("anew")
        going.cancel()  # a cancelled caller does not stop the write
        go_on.set()
        assert (await asking).text == "two"
        assert texts(o, agent) == ["anew", "two"]


async def test_session_changes_during_a_turn_are_refused(tmp_path: Path) -> None:
    """The error states what the agent does; after the turn, the change is possible."""
    gate = Gate()
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", {"tool": "gate"}, "two", tools=[gate.tool()])
        await agent.query("first")
        first, _ = await all_messages(agent)
        asking = agent.submit("work on")
        await gate.called.wait()
        for change in (
            agent.session.checkout(first.id),
            agent.session.label(first.id, "x"),
            agent.session.title("x"),
            agent.session.add_message("x"),
        ):
            with pytest.raises(AgentBusyError, match=r"busy with: work on.*between turns"):
                await change
        gate.open.set()
        await asking
        await agent.session.checkout(first.id)
        assert texts(o, agent) == ["first"]


async def test_worker_refuses_changes_during_its_turn(tmp_path: Path) -> None:
    """The worker checks too, because the root may not know of the turn yet."""
    gate = Gate()
    async with opened(tmp_path) as o:
        agent = await spawned(o, {"tool": "gate"}, "two", tools=[gate.tool()])
        asking = agent.submit("work")
        await gate.called.wait()
        node = o.supervisor.tree.agents[agent.id]
        edit = SessionEdit("00000000", MoveLeaf(None))
        with pytest.raises(AgentBusyError, match="between turns"):
            await request_worker(o.supervisor, node, "edit", edit, edit.entry, "edited", 5.0)
        gate.open.set()
        assert (await asking).text == "two"


async def test_unknown_entry_or_label_is_refused(tmp_path: Path) -> None:
    """Unknown entries, used or reserved labels and empty messages are not recorded."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one")
        await agent.query("first")
        before = (await agent.session.tree()).count
        first, answer = await all_messages(agent)
        await agent.session.label(first.id, "start")
        with pytest.raises(EntryNotFoundError, match="'nowhere'"):
            await agent.session.checkout("nowhere")
        with pytest.raises(ConfigError, match=f"'start' is already used by entry {first.id}"):
            await agent.session.label(answer.id, "start")
        with pytest.raises(ConfigError, match="the beginning has no entry"):
            await agent.session.label("root", "zero")
        for label, what in (("root", "the beginning"), (answer.id, "an entry")):
            with pytest.raises(ConfigError, match=f"'{label}' already means {what}"):
                await agent.session.label(first.id, f" {label} ")
        with pytest.raises(ConfigError, match="the message is empty"):
            await agent.session.add_message(" ")
        assert (await agent.session.tree()).count == before + 1


async def test_note_between_turns_is_read_with_the_next_question(tmp_path: Path) -> None:
    """The model is shown the note and the next question as one message."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two")
        await agent.query("first")
        await agent.session.add_message("The pump was replaced.", kind="news", display=False)
        await agent.query("second")
        assert texts(o, agent)[-2] == "The pump was replaced.\n\nsecond"


async def test_latest_title_and_last_entries_are_returned(tmp_path: Path) -> None:
    """`tree(n)` returns the title and the last `n` entries."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one")
        await agent.query("first")
        await agent.session.title("pumps")
        shown = await agent.session.tree(1)
        assert (shown.title, shown.name, shown.id) == ("pumps", agent.name, agent.id)
        assert [row.type for row in shown.entries] == ["session_info"]
        assert (shown.count, shown.leaf) == (4, shown.entries[0].id)
        assert (await agent.session.tree(0)).entries == ()


async def test_latest_is_the_last_active_agent(tmp_path: Path) -> None:
    """`latest` is reserved and cannot be the name of an agent."""
    async with opened(tmp_path) as o:
        one, two = await spawned(o, "1", "2"), await spawned(o, "1")
        await two.query("go")
        await one.query("go")
        assert (await o._call(SHOW_SESSION, ShowSession("latest"))).id == (await o.get("latest")).id == one.id
        with pytest.raises(ConfigError, match="the agent that was active last"):
            await spawned(o, "1", name="latest")


async def test_holders_have_no_branches(tmp_path: Path) -> None:
    """The error for the session of a holder names the command that reads an archive."""
    async with opened(tmp_path, config=Config(archival=replace(EAGER, async_=False))) as o:
        agent = await spawned(o, "one")
        holder = (await agent.query("go")).archived_to
        assert holder is not None
        await o.get(holder)
        with pytest.raises(ConfigError, match="orch archive read"):
            await o._call(SHOW_SESSION, ShowSession(holder))


async def test_going_back_before_an_archive_restores_its_turns(tmp_path: Path) -> None:
    """The model is shown the whole text again, and the context becomes larger."""
    async with opened(tmp_path, config=Config(archival=replace(EAGER, async_=False))) as o:
        agent = await spawned(o, "one " * 100, "two", "three")
        await agent.query("first")
        answer = (await all_messages(agent))[1].id
        assert "[archived turn]" in texts(o, agent)[-1]
        small = (await agent.state()).context_tokens
        await agent.session.checkout(answer)
        assert texts(o, agent)[-1] == "one " * 100
        assert (await agent.state()).context_tokens > small


async def test_agents_cannot_change_sessions(tmp_path: Path) -> None:
    """The root refuses a request for a session service that comes from a worker."""

    async with opened(tmp_path) as o:
        agent = await spawned(o, "one")
        for service, params in (
            ("session", ShowSession(agent.id)),
            ("change_session", ChangeSession(agent.id, MoveLeaf(None))),
        ):
            with pytest.raises(ToolNotGrantedError, match=service):
                await serve_worker(o.supervisor, agent.id, RootCall(service, msgspec.Raw(encode_body(params))))


async def test_death_during_a_session_change_is_recovered(tmp_path: Path) -> None:
    """If the process dies during a change, the root applies the change itself, once."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two")
        await agent.query("first")
        first, _ = await all_messages(agent)
        process = o.supervisor.workers.processes[agent.id][1]
        o.lose(lambda kind: kind == "edit")
        going = asyncio.create_task(agent.session.checkout(first.id))
        await until(lambda: any(getattr(topic, "frame_type", "") == "edited" for topic in o.supervisor.waiters._topics))
        process.kill()
        await going
        moves = [row for row in (await agent.session.tree()).entries if row.type == "checkout"]
        assert len(moves) == 1
        assert texts(o, agent) == ["first"]


async def test_program_data_follows_the_branch(tmp_path: Path) -> None:
    """Metadata are not in the context, a fork has them, and values that are not JSON are refused."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two", "three")
        await agent.session.set_meta("state", {"page": 1})
        await agent.query("first")
        leaf = await agent.session.set_meta("state", {"page": [2, None, "x"], 3: 1.5})
        await agent.session.set_meta("other", "text")
        await rest(o, agent)
        assert [row.data for row in await agent.session.get_meta("state")] == [
            {"page": 1},
            {"page": [2, None, "x"], "3": 1.5},
        ]
        assert [row.custom_type for row in await agent.session.get_meta()] == ["state", "state", "other"]
        copy = await agent.session.fork(leaf)
        assert (await copy.session.get_meta())[-1] == (await agent.session.get_meta("state"))[-1]
        first, _ = await all_messages(agent)
        await agent.session.checkout(first.id)
        assert [row.data for row in await agent.session.get_meta()] == [{"page": 1}]
        assert "page" not in str(texts(o, agent))
        with pytest.raises(ConfigError, match="metadata 'state' must be JSON data"):
            await agent.session.set_meta("state", object())
        for data, why in (
            ({"a": [1, math.nan]}, r"state.a\[1\] is nan"),
            (math.inf, "is inf"),
            ({"n": 1 << 64}, "state.n is an integer beyond 64 bits"),
        ):
            with pytest.raises(ConfigError, match=why):
                await agent.session.set_meta("state", data)
        with pytest.raises(ConfigError, match="custom_type is empty"):
            await agent.session.set_meta(" ", 1)
        for kind in ("workspace", "skill", "orch.hooks"):
            with pytest.raises(ConfigError, match=f"kind '{kind}' is reserved for metadata of orch"):
                await agent.session.set_meta(kind, {"steps": []})


async def test_session_locked_by_another_process_is_refused(tmp_path: Path) -> None:
    """The error names the process that has the lock, and the session is not changed."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one")
        await agent.query("first")
        await rest(o, agent)
        lock = FolderLock.acquire(Path(o.supervisor.tree.agents[agent.id].spec.folder))
        try:
            with pytest.raises(StoreError, match="in use by process"):
                await agent.session.checkout(None)
        finally:
            lock.release()
        assert (await agent.state()).id == (await o._call(SHOW_STATE, AgentRef(agent.id))).id
        assert texts(o, agent) == ["first", "one"]


async def test_titles_are_known_without_reading_sessions(tmp_path: Path) -> None:
    """Titles of agents, forks and imports are in the journal, so a new root knows them."""
    async with World(tmp_path, run="r") as o:
        agent = await spawned(o, "one", name="a")
        await agent.query("first")
        assert (await agent.state()).title == ""
        await agent.session.title("Days off")
        copy = await agent.session.fork(name="b")
        await o.sessions.export("a", output=tmp_path / "a.jsonl")
        await o.sessions.import_(tmp_path / "a.jsonl", name="c")
        other = await copy.session.fork(name="d")
        await other.session.title(None)
        assert [row.title for row in await o.agents()] == ["Days off", "Days off", "Days off", ""]
    shutil.rmtree(tmp_path / "sessions")
    async with World(tmp_path, run="r") as o:
        assert [row.title for row in await o.agents()] == ["Days off", "Days off", "Days off", ""]


async def test_latest_works_wherever_a_session_is_named(tmp_path: Path) -> None:
    """`export` and `get` accept `latest`, an id, an id prefix, a name and a number."""
    async with opened(tmp_path) as o:
        await spawned(o, "one", name="a")
        agent = await spawned(o, "two", name="b")
        await agent.query("second")
        for ref in ("latest", agent.id, agent.id[:6], "b", 2):
            assert "two" in await o.sessions.export(ref, format="md")
            assert (await o.get(ref)).id == agent.id
