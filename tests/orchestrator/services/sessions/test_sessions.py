"""Sessions that go back: by whoever owns them, between turns, and the next answer is to what is shown then."""

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
from orch.tree.journal.events import StopIfIdle
from orch_protocol.core.errors import AgentBusyError, ConfigError, EntryNotFoundError, StoreError, ToolNotGrantedError
from orch_protocol.core.messages import text_of
from orch_protocol.services.requests import SHOW_STATE, AgentRef
from orch_protocol.services.sessions import SHOW_SESSION
from orch_protocol.session.tree import ChangeSession, EntryRow, MoveLeaf, SessionEdit, ShowSession
from orch_protocol.wire.frames import encode_body
from orch_protocol.wire.worker_messages import RootCall
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.transcript import read_session
from orchestrator.root_double import Gate, World, opened
from virtual_clock import until


async def spawned(o: World, *said: Any, **options: Any) -> AsyncSubagent:
    """Return an agent that says that, and is told of no project."""
    return await o.scripted(*said, context="none", **options)


async def said(agent: AsyncSubagent) -> list[EntryRow]:
    """Return the messages of a session, whichever branch they are on."""
    return [row for row in (await agent.session.tree()).entries if row.type == "message"]


def texts(o: World, agent: AsyncSubagent) -> list[str]:
    """Return what the model is shown, by the file."""
    folder = Path(o.supervisor.tree.agents[agent.id].spec.folder)
    return [text_of(message).removeprefix("Task: work\n\nQuery: ") for message in read_session(folder).messages]


async def rest(o: World, agent: AsyncSubagent) -> None:
    """Let the process of an idle agent end."""
    node = o.supervisor.tree.agents[agent.id]
    gone = o.supervisor.waiters.watch(f"gone:{agent.id}:{node.incarnation}")
    o.supervisor.handle(StopIfIdle(agent.id))
    await gone
    assert o.status(agent) == "cold"


async def test_the_next_answer_is_to_what_was_gone_back_to(tmp_path: Path) -> None:
    """What was said since is on its own branch; going back there shows it again."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two", "three", "four")
        await agent.query("first")
        await agent.query("second")
        *_, question, answer = await said(agent)
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
        assert {question.id, answer.id} <= {row.id for row in await said(agent) if row.on_path}
        assert (await agent.query("again")).text == "four"


async def test_a_question_is_gone_back_before_and_returned(tmp_path: Path) -> None:
    """To be asked anew, in other words; the task comes with it, if it was the first."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two", "three")
        await agent.query("first")
        await agent.query("second")
        first, answer, second, _ = await said(agent)
        assert await agent.session.branch(second.id) == "second"
        assert texts(o, agent) == ["first", "one"]
        assert await agent.session.branch(answer.id, summary="It was a try.") is None
        assert "It was a try." in texts(o, agent)[-1]
        assert await agent.session.branch(first.id) == "first"
        assert texts(o, agent) == []
        await agent.query("asked anew")
        assert (await said(agent))[-2].head == "Task: work Query: asked anew"
        await agent.session.checkout(None)
        assert texts(o, agent) == []


async def test_an_agent_without_a_process_goes_back_too(tmp_path: Path) -> None:
    """The root does it in its place, under its lock; no process is started for that."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two")
        await agent.query("first")
        await rest(o, agent)
        await agent.session.checkout(None)
        await agent.session.label((await said(agent))[0].id, "start")
        assert (o.status(agent), agent.pid, texts(o, agent)) == ("cold", None, [])
        assert (await agent.session.tree()).labels == {(await said(agent))[0].id: "start"}
        assert (await agent.query("anew")).text == "two"
        assert texts(o, agent) == ["anew", "two"]
        await agent.kill()
        await agent.session.checkout("start")
        assert texts(o, agent) == ["first"]


async def test_who_is_asked_while_the_root_writes_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is started meanwhile finds the session as it is then."""
    edited, begun, go_on = sessions._edited, asyncio.Event(), asyncio.Event()

    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two")
        await agent.query("first")
        await rest(o, agent)
        loop = asyncio.get_running_loop()

        def slowly(*arguments: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            edited(*arguments)

        monkeypatch.setattr(sessions, "_edited", slowly)
        going = asyncio.create_task(agent.session.checkout(None))
        await begun.wait()
        asking = agent.submit("anew")
        going.cancel()  # who gives up waiting does not end it
        go_on.set()
        assert (await asking).text == "two"
        assert texts(o, agent) == ["anew", "two"]


async def test_while_a_turn_runs_nothing_changes(tmp_path: Path) -> None:
    """It says what the agent does, and what to do; afterwards it can be done."""
    gate = Gate()
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", {"tool": "gate"}, "two", tools=[gate.tool()])
        await agent.query("first")
        first, _ = await said(agent)
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


async def test_a_worker_in_a_turn_refuses_by_itself(tmp_path: Path) -> None:
    """Also when the root does not know of the turn yet."""
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


async def test_nothing_goes_to_where_nothing_is(tmp_path: Path) -> None:
    """What is no entry, or no label for one, is refused, and nothing is recorded."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one")
        await agent.query("first")
        before = (await agent.session.tree()).count
        first, answer = await said(agent)
        await agent.session.label(first.id, "start")
        with pytest.raises(EntryNotFoundError, match="'nowhere'"):
            await agent.session.checkout("nowhere")
        with pytest.raises(ConfigError, match=f"'start' is the entry {first.id}'s"):
            await agent.session.label(answer.id, "start")
        with pytest.raises(ConfigError, match="the beginning has no entry"):
            await agent.session.label("root", "zero")
        for label, what in (("root", "the beginning"), (answer.id, "an entry")):
            with pytest.raises(ConfigError, match=f"'{label}' means {what} already"):
                await agent.session.label(first.id, f" {label} ")
        with pytest.raises(ConfigError, match="the message is empty"):
            await agent.session.add_message(" ")
        assert (await agent.session.tree()).count == before + 1


async def test_the_model_is_told_something_between_turns(tmp_path: Path) -> None:
    """It reads it with the next question."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two")
        await agent.query("first")
        await agent.session.add_message("The pump was replaced.", kind="news", display=False)
        await agent.query("second")
        assert texts(o, agent)[-2] == "The pump was replaced.\n\nsecond"


async def test_titles_and_the_last_entries(tmp_path: Path) -> None:
    """A session is called what it was called last; of a long one the end can be looked at."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one")
        await agent.query("first")
        await agent.session.title("pumps")
        shown = await agent.session.tree(1)
        assert (shown.title, shown.name, shown.id) == ("pumps", agent.name, agent.id)
        assert [row.type for row in shown.entries] == ["session_info"]
        assert (shown.count, shown.leaf) == (4, shown.entries[0].id)
        assert (await agent.session.tree(0)).entries == ()


async def test_latest_is_who_was_active_last(tmp_path: Path) -> None:
    """And nobody else: it is no name."""
    async with opened(tmp_path) as o:
        one, two = await spawned(o, "1", "2"), await spawned(o, "1")
        await two.query("go")
        await one.query("go")
        assert (await o._call(SHOW_SESSION, ShowSession("latest"))).id == (await o.get("latest")).id == one.id
        with pytest.raises(ConfigError, match="the agent that was active last"):
            await spawned(o, "1", name="latest")


async def test_archives_have_no_branches(tmp_path: Path) -> None:
    """What a holder holds is a part of its agent's session, and it says where to read that."""
    async with opened(tmp_path, config=Config(archival=replace(EAGER, async_=False))) as o:
        agent = await spawned(o, "one")
        holder = (await agent.query("go")).archived_to
        assert holder is not None
        await o.get(holder)
        with pytest.raises(ConfigError, match="orch archive read"):
            await o._call(SHOW_SESSION, ShowSession(holder))


async def test_archived_turns_come_back_whole_behind_the_place_gone_back_to(tmp_path: Path) -> None:
    """And what the next request takes is what is shown then."""
    async with opened(tmp_path, config=Config(archival=replace(EAGER, async_=False))) as o:
        agent = await spawned(o, "one " * 100, "two", "three")
        await agent.query("first")
        answer = (await said(agent))[1].id
        assert "[archived turn]" in texts(o, agent)[-1]
        small = (await agent.state()).context_tokens
        await agent.session.checkout(answer)
        assert texts(o, agent)[-1] == "one " * 100
        assert (await agent.state()).context_tokens > small


async def test_agents_may_not_do_that(tmp_path: Path) -> None:
    """Sessions are for people: what an agent's process asks for is not believed."""

    async with opened(tmp_path) as o:
        agent = await spawned(o, "one")
        for service, params in (
            ("session", ShowSession(agent.id)),
            ("change_session", ChangeSession(agent.id, MoveLeaf(None))),
        ):
            with pytest.raises(ToolNotGrantedError, match=service):
                await serve_worker(o.supervisor, agent.id, RootCall(service, msgspec.Raw(encode_body(params))))


async def test_a_process_that_dies_on_the_way_is_no_matter(tmp_path: Path) -> None:
    """The root does it then, or finds it done: once, whichever it was."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "one", "two")
        await agent.query("first")
        first, _ = await said(agent)
        process = o.supervisor.workers.processes[agent.id][1]
        o.lose(lambda kind: kind == "edit")
        going = asyncio.create_task(agent.session.checkout(first.id))
        await until(lambda: any(topic.startswith("edited:") for topic in o.supervisor.waiters._topics))
        process.kill()
        await going
        moves = [row for row in (await agent.session.tree()).entries if row.type == "checkout"]
        assert len(moves) == 1
        assert texts(o, agent) == ["first"]


async def test_programs_keep_data_with_the_way_that_a_conversation_goes(tmp_path: Path) -> None:
    """No model reads it; who goes back before it does not have it, a copy does; and it survives everything else."""
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
        first, _ = await said(agent)
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
            with pytest.raises(ConfigError, match=f"'{kind}' sessions have what orch itself keeps"):
                await agent.session.set_meta(kind, {"steps": []})


async def test_somebody_else_has_the_session(tmp_path: Path) -> None:
    """Then nothing is written, and it says who has it."""
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


async def test_what_a_session_is_called_is_known_without_its_file(tmp_path: Path) -> None:
    """Of one that was named, copied or taken over; a root that is opened anew knows it; taken away, it has none."""
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


async def test_latest_is_known_wherever_a_session_is_named(tmp_path: Path) -> None:
    """By calls as by commands: number, id, the beginning of one, name, and the one that was active last."""
    async with opened(tmp_path) as o:
        await spawned(o, "one", name="a")
        agent = await spawned(o, "two", name="b")
        await agent.query("second")
        for ref in ("latest", agent.id, agent.id[:6], "b", 2):
            assert "two" in await o.sessions.export(ref, format="md")
            assert (await o.get(ref)).id == agent.id
