"""A conversation is compacted because somebody asks for it: between turns, whoever the agent is and wherever it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncSubagent, Block, CompactionConfig, Config, ScriptedBackend
from orch.services import serve_worker
from orch.tree.journal.events import StopIfIdle
from orch_protocol.core.errors import AgentBusyError, AgentDiedError, AgentGoneError, ConfigError, ToolNotGrantedError
from orch_protocol.core.messages import assistant, text_of, user
from orch_protocol.session.tree import CompactionDone, CompactSession
from orch_protocol.wire.frames import encode_body
from orch_protocol.wire.worker_messages import RootCall
from orch_worker.session.transcript import read_session
from orchestrator.root_double import Gate, World, opened
from virtual_clock import until

LONG = [each for n in range(6) for each in (user(f"question {n}"), assistant(f"answer {n} " + "x" * 400))]


async def talked(o: World, *said: Any, summaries: list[str] | None = None, **options: Any) -> AsyncSubagent:
    """Return an agent that has a long conversation behind it, and has answered once."""
    script = ScriptedBackend(["one", *said], summaries or [])
    agent = await o.spawn("work", backend=script, history=LONG, context="none", tools=[], **options)
    await agent.query("first")
    return agent


def shown(o: World, agent: AsyncSubagent) -> list[str]:
    """Return what the model is shown, by the file."""
    return [text_of(each) for each in read_session(Path(o.supervisor.tree.agents[agent.id].spec.folder)).messages]


async def test_what_was_said_first_gives_way_and_what_that_did_is_returned(tmp_path: Path) -> None:
    """Though it would have fitted for long, and nothing is compacted by itself."""
    async with opened(tmp_path, config=Config(context_compaction=CompactionConfig(mode="off"))) as o:
        agent = await talked(o, "two", summaries=["Six questions were answered."])
        before = (await agent.state()).context_tokens
        done = await agent.session.compact("Count the questions.")
        assert isinstance(done, CompactionDone)
        assert (done.reason, done.writer, done.messages) == ("asked", "model", 12)
        assert done.tokens_before == before > 4 * done.tokens_after
        assert "Six questions were answered." in done.summary
        assert (await agent.state()).context_tokens == done.tokens_after
        first, *rest = shown(o, agent)
        assert first.startswith("[Summary of the conversation so far]")
        assert first.endswith("Task: work\n\nQuery: first")
        assert rest == ["one"]
        assert (await agent.session.tree()).leaf == done.entry
        assert (await agent.query("second")).text == "two"
        assert (await agent.show()).compactions == 1


async def test_an_agent_at_rest_gets_a_process_for_it(tmp_path: Path) -> None:
    """And one that is kept nowhere is compacted as any other."""
    async with World(tmp_path) as o:
        agent = await talked(o, persist=False)
        node = o.supervisor.tree.agents[agent.id]
        gone = o.supervisor.waiters.watch(f"gone:{agent.id}:{node.incarnation}")
        o.supervisor.handle(StopIfIdle(agent.id))
        await gone
        assert (await agent.session.compact()).writer == "extract"
        assert "Asked: question 5" in shown(o, agent)[0]
        assert (await agent.state()).status == "idle"


async def test_what_cannot_be_compacted_says_why(tmp_path: Path) -> None:
    """Nothing to gain, a turn under way, an agent that is gone, one without the right to ask: and nothing changes."""
    gate = Gate()
    async with opened(tmp_path) as o:
        short = await o.scripted("one", {"tool": "gate"}, "two", context="none", tools=[gate.tool()])
        with pytest.raises(ConfigError, match="there is nothing to compact: of"):
            await short.session.compact()
        await short.query("first")
        with pytest.raises(ConfigError, match="no longer than a summary"):
            await short.session.compact()
        asking = short.submit("work on")
        await gate.called.wait()
        with pytest.raises(AgentBusyError, match=r"busy with: work on.*between turns"):
            await short.session.compact()
        gate.open.set()
        await asking
        asked = RootCall("compact", encode_body(CompactSession(short.id)))  # type: ignore[arg-type]
        with pytest.raises(ToolNotGrantedError, match="compact"):
            await serve_worker(o.supervisor, short.id, asked)
        await short.kill()
        with pytest.raises(AgentGoneError, match="orch resume"):
            await short.session.compact()
        assert "compaction" not in [row.type for row in (await short.session.tree()).entries]


async def test_hooks_may_forbid_it_or_tell_whoever_writes(tmp_path: Path) -> None:
    """Those of the program too; what was asked for is told to them."""
    async with opened(tmp_path) as o:
        heard: list[tuple[str, str]] = []

        @o.on("before_compaction", name="no")
        def no(event: Any, _: Any) -> Any:
            """Forbid it."""
            heard.append((event.reason, event.instructions))
            return Block("not now")

        agent = await talked(o)
        with pytest.raises(ConfigError, match="a hook forbids"):
            await agent.session.compact("Keep the figures.")
        assert heard == [("asked", "Keep the figures.")]
        o.unregister_hook("no")
        assert (await agent.session.compact()).messages == 12
        assert (await agent.show()).compactions == 1


async def test_a_question_that_comes_meanwhile_waits_for_it(tmp_path: Path) -> None:
    """It is asked of the conversation as it is then; a second request and a change are refused by the process."""
    async with opened(tmp_path) as o:
        agent = await talked(o, "two", summaries=["Notes."])
        worker = o.supervisor.workers.processes[agent.id][1]
        host = worker._host  # type: ignore[attr-defined]
        runtime = host._runtime
        go, at_it = asyncio.Event(), asyncio.Event()
        make = runtime._make_backend

        def held(spec: Any) -> Any:
            backend = make(spec)
            turn = backend.assistant_turn

            async def assistant_turn(*given: Any) -> Any:
                at_it.set()
                await go.wait()
                return await turn(*given)

            backend.assistant_turn = assistant_turn
            return backend

        runtime._make_backend = held
        compacting = asyncio.create_task(agent.session.compact())
        await at_it.wait()
        with pytest.raises(AgentBusyError, match="being compacted"):
            await agent.session.compact()
        with pytest.raises(AgentBusyError, match="between turns"):
            await agent.session.checkout(None)
        asking = agent.submit("second")
        await until(lambda: host._in_turn)
        go.set()
        assert (await compacting).writer == "model"
        assert (await asking).text == "two"
        assert shown(o, agent)[0].startswith("[Summary")
        assert shown(o, agent)[-2:] == ["second", "two"]


async def test_a_process_that_dies_meanwhile_leaves_the_conversation_as_it_was(tmp_path: Path) -> None:
    """Whoever asked is told to ask again."""
    async with opened(tmp_path) as o:
        agent = await talked(o)
        process = o.supervisor.workers.processes[agent.id][1]
        o.lose(lambda kind: kind == "compact")
        compacting = asyncio.create_task(agent.session.compact())
        await until(lambda: any(topic.startswith("compacted:") for topic in o.supervisor.waiters._topics))
        process.kill()
        with pytest.raises(AgentDiedError, match="ask again"):
            await compacting
        assert shown(o, agent)[0] == "question 0"
