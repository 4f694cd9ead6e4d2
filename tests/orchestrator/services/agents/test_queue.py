"""What is said to an agent that works: listed, taken back, heard once, whatever dies in between."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from orch import AsyncSubagent
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import text_of
from orch_worker.agent.runtime import Runtime
from orch_worker.session.transcript import read_session
from orchestrator.root_double import Gate, World, opened

STEERED = "[Steering]\n"


def heard(o: World, agent: AsyncSubagent) -> list[str]:
    """Return what was said to the agent and is in its conversation, one text each."""
    entries = read_session(Path(o.supervisor.tree.agents[agent.id].spec.folder)).entries
    texts = [text_of(entry.message) for entry in entries if hasattr(entry, "message")]
    return [text.removeprefix(STEERED) for text in texts if text.startswith(STEERED)]


async def at_work(o: World, gate: Gate) -> tuple[AsyncSubagent, asyncio.Future[object]]:
    """Return an agent that waits in a tool, and its answer."""
    agent = await o.scripted({"tool": "gate"}, {"loop": ["ok"]}, tools=[gate.tool()])
    asked = agent.submit("go")
    await gate.called.wait()
    return agent, asked  # type: ignore[return-value]


async def killed(o: World, agent: AsyncSubagent) -> None:
    """Let the agent's process be killed, and return when the root knows."""
    gone = o.supervisor.waiters.watch(f"gone:{agent.id}:{o.supervisor.tree.agents[agent.id].incarnation}")
    o.launcher.worker(agent.id).die(-signal.SIGKILL)
    await gone


async def test_what_waits_is_listed_and_taken_back_by_id(tmp_path: Path) -> None:
    """Steering comes first; what is taken back is returned and never heard; the rest is."""
    gate = Gate()
    async with opened(tmp_path) as o:
        agent, asked = await at_work(o, gate)
        late = await agent.follow_up("then sum up")
        one, two = await agent.steer("be brief"), await agent.steer("in French")
        assert [(each.id, each.text, each.follow_up) for each in await agent.queue.list()] == [
            (one, "be brief", False),
            (two, "in French", False),
            (late, "then sum up", True),
        ]
        assert [each.text for each in await agent.queue.clear(two[:6])] == ["in French"]
        with pytest.raises(ConfigError, match="nothing waits for agent 'agent-1'"):
            await agent.queue.clear(two)
        gate.open.set()
        await asked
        assert heard(o, agent) == ["be brief", "then sum up"]
        assert await agent.queue.list() == []
        assert await agent.queue.clear() == []


async def test_all_of_it_is_taken_back_also_from_an_agent_without_a_process(tmp_path: Path) -> None:
    """What is taken back is on record: no process that comes later hears it."""
    gate = Gate()
    async with opened(tmp_path) as o:
        agent, asked = await at_work(o, gate)
        gate.open.set()
        await asked
        await killed(o, agent)
        await agent.steer("one")
        await agent.steer("two")
        assert [each.text for each in await agent.queue.clear()] == ["one", "two"]
        await agent.steer("three")
        await agent.query("go on")
        assert heard(o, agent) == ["three"]


async def test_how_much_is_heard_at_once_is_set_at_any_time_and_lasts(tmp_path: Path) -> None:
    """For steering and follow-ups apart; the agent's next process knows."""
    gate = Gate()
    async with opened(tmp_path) as o:
        agent, asked = await at_work(o, gate)
        await agent.queue.set_modes(steering="all")
        for text in ("a", "b"):
            await agent.steer(text)
            await agent.follow_up(text.upper())
        gate.open.set()
        await asked
        # Both at once, then each follow-up with an answer of its own.
        roles = [message.role for message in (await agent.show()).messages[3:]]
        assert heard(o, agent) == ["a", "b", "A", "B"]
        assert roles.count("assistant") == 3
        await agent.queue.set_modes(follow_up="all")
        await agent.kill()
        await agent.resume()
        spec = o.supervisor.tree.agents[agent.id].spec
        assert (spec.queue_mode, spec.follow_up_mode) == ("all", "all")


async def test_what_was_recorded_before_a_death_is_not_heard_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed before it could say that it has heard: the next one finds it on record."""
    gate = Gate()
    async with opened(tmp_path) as o:
        monkeypatch.setattr(Runtime, "_heard", lambda _self, _id: None)
        agent, asked = await at_work(o, gate)
        await agent.steer("be brief")
        gate.open.set()
        await asked
        assert len(await agent.queue.list()) == 1
        await killed(o, agent)
        assert await agent.queue.clear() == [], "it was heard, and cannot be taken back"
        monkeypatch.undo()
        await agent.steer("in French")
        await agent.query("go on")
        assert heard(o, agent) == ["be brief", "in French"]
        await agent.query("and on")  # frames come in order
        assert await agent.queue.list() == []


async def test_what_was_accepted_outlives_the_root(tmp_path: Path) -> None:
    """A root that is opened anew knows what waits, and the agent hears it with its next query."""
    async with World(tmp_path, run="r") as o:
        agent = await o.scripted({"loop": ["ok"]}, name="a")
        await agent.query("go")
        await agent.kill()
        await agent.resume()
        said = await agent.steer("be brief")
        gone = await agent.steer("never mind")
        await agent.queue.clear(gone)
        await agent.queue.set_modes(steering="all")
    async with World(tmp_path, run="r") as o:
        agent = await o.get("a")
        assert [each.id for each in await agent.queue.list()] == [said]
        await agent.query("go on")
        assert heard(o, agent) == ["be brief"]
        assert o.supervisor.tree.agents[agent.id].spec.queue_mode == "all"


async def test_a_copy_of_a_conversation_is_not_told_what_waits_for_the_first(tmp_path: Path) -> None:
    """It was said to one agent, who hears it, once; its session file has it from then on."""
    async with opened(tmp_path) as o:
        agent = await o.scripted("one", "two", "three", context="none")
        await agent.query("first")
        said = await agent.steer("mind the gap")
        copy = await agent.session.fork()
        assert await copy.queue.list() == []
        assert [each.id for each in await agent.queue.list()] == [said]
        await copy.query("second")
        assert "mind the gap" not in str((await copy.show()).messages)
        await agent.query("second")
        assert "mind the gap" in str((await agent.show()).messages)
        assert await agent.queue.list() == []
