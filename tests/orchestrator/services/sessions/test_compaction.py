"""Compaction on request: between turns, for agents with and without a process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncSubagent, Block, CompactionConfig, Config, ScriptedBackend
from orch.services import serve_worker
from orch.tree.interface.events import StopIfIdle
from orch.tree.interface.topics import ExitTopic
from orch_protocol.core.errors import AgentBusyError, AgentDiedError, AgentGoneError, ConfigError, ToolNotGrantedError
from orch_protocol.core.messages import assistant, text_of, user
from orch_protocol.services.sessions.compaction import CompactSession
from orch_protocol.session.tree import CompactionDone
from orch_protocol.wire.frames import encode_body
from orch_protocol.wire.worker_messages import RootCall
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import Gate, World, opened
from virtual_clock import until

LONG = [each for n in range(6) for each in (user(f"question {n}"), assistant(f"answer {n} " + "x" * 400))]


async def talked(o: World, *said: Any, summaries: list[str] | None = None, **options: Any) -> AsyncSubagent:
    """Return an agent with a long history that has answered one query."""
    script = ScriptedBackend(["one", *said], summaries or [])
    agent = await o.spawn("work", backend=script, history=LONG, context="none", tools=[], **options)
    await agent.query("first")
    return agent


def shown(o: World, agent: AsyncSubagent) -> list[str]:
    """Return the texts of the messages that the model is shown, as read from the session file."""
    return [text_of(each) for each in read_session(Path(o.supervisor.tree.agents[agent.id].spec.folder)).messages]


async def test_compaction_on_request_returns_what_was_removed(tmp_path: Path) -> None:
    """A requested compaction runs although the mode is `off` and the context is far from full."""
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


async def test_idle_agent_gets_a_process_for_compaction(tmp_path: Path) -> None:
    """The process is started even if the agent is not persisted."""
    async with World(tmp_path) as o:
        agent = await talked(o, persist=False)
        node = o.supervisor.tree.agents[agent.id]
        gone = o.supervisor.waiters.watch(ExitTopic(agent.id, node.incarnation))
        o.supervisor.handle(StopIfIdle(agent.id))
        await gone
        assert (await agent.session.compact()).writer == "extract"
        assert "Asked: question 5" in shown(o, agent)[0]
        assert (await agent.state()).status == "idle"


async def test_impossible_compaction_states_the_reason(tmp_path: Path) -> None:
    """The reasons are: nothing to gain, a running turn, a missing right, and a killed agent."""
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


async def test_hooks_can_forbid_or_instruct_a_compaction(tmp_path: Path) -> None:
    """A hook of the program receives the instructions and can block the compaction."""
    async with opened(tmp_path) as o:
        heard: list[tuple[str, str]] = []

        @o.on("before_compaction", name="no")
        def no(event: Any, _: Any) -> Any:
            """Forbid it."""
            heard.append((event.reason, event.instructions))
            return Block("not now")

        agent = await talked(o)
        with pytest.raises(ConfigError, match="a hook prevents"):
            await agent.session.compact("Keep the figures.")
        assert heard == [("asked", "Keep the figures.")]
        o.unregister_hook("no")
        assert (await agent.session.compact()).messages == 12
        assert (await agent.show()).compactions == 1


async def test_query_during_a_compaction_waits(tmp_path: Path) -> None:
    """During a compaction, a query waits, and a second compaction and a checkout are refused."""
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
        with pytest.raises(AgentBusyError, match="a turn or a compaction"):
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


async def test_death_during_a_compaction_leaves_the_conversation_unchanged(tmp_path: Path) -> None:
    """If the process dies during a compaction, the error suggests a retry, and the conversation is unchanged."""
    async with opened(tmp_path) as o:
        agent = await talked(o)
        process = o.supervisor.workers.processes[agent.id][1]
        o.lose(lambda kind: kind == "compact")
        compacting = asyncio.create_task(agent.session.compact())
        await until(
            lambda: any(getattr(topic, "frame_type", "") == "compacted" for topic in o.supervisor.waiters._topics)
        )
        process.kill()
        with pytest.raises(AgentDiedError, match="retry"):
            await compacting
        assert shown(o, agent)[0] == "question 0"
