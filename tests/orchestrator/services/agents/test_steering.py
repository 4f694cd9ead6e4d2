"""Queued messages of a working agent: listed, retracted, and delivered once despite kills."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from orch import AsyncSubagent
from orch.tree.interface.topics import ExitTopic
from orch_protocol.core.errors import EntryNotFoundError
from orch_protocol.core.messages import text_of
from orch_worker.session.session_reader import read_session
from orch_worker.transport.worker_endpoint import WorkerEndpoint
from orchestrator.root_double import Gate, World, opened

STEERED = "[Steering]\n"


def heard(o: World, agent: AsyncSubagent) -> list[str]:
    """Return the texts of the steering messages in the agent's conversation."""
    entries = read_session(Path(o.supervisor.tree.agents[agent.id].spec.folder)).entries
    texts = [text_of(entry.message) for entry in entries if hasattr(entry, "message")]
    return [text.removeprefix(STEERED) for text in texts if text.startswith(STEERED)]


async def at_work(o: World, gate: Gate) -> tuple[AsyncSubagent, asyncio.Future[object]]:
    """Return an agent that waits in a tool call, and the future of its answer."""
    agent = await o.scripted({"tool": "gate"}, {"loop": ["ok"]}, tools=[gate.tool()])
    asked = agent.submit("go")
    await gate.called.wait()
    return agent, asked  # type: ignore[return-value]


async def killed(o: World, agent: AsyncSubagent) -> None:
    """Kill the agent's process, and wait until the root has noticed it."""
    gone = o.supervisor.waiters.watch(ExitTopic(agent.id, o.supervisor.tree.agents[agent.id].incarnation))
    o.launcher.worker(agent.id).die(-signal.SIGKILL)
    await gone


async def test_queued_messages_are_listed_and_retracted_by_id(tmp_path: Path) -> None:
    """The list has steering before follow-ups; a retracted message is returned and not delivered."""
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
        with pytest.raises(EntryNotFoundError, match="nothing waits for agent 'agent-1'"):
            await agent.queue.clear(two)
        gate.open.set()
        await asked
        assert heard(o, agent) == ["be brief", "then sum up"]
        assert await agent.queue.list() == []
        assert await agent.queue.clear() == []


async def test_retraction_is_recorded_without_a_process(tmp_path: Path) -> None:
    """The next process does not deliver a message that was retracted while the agent had no process."""
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


async def test_delivery_mode_persists_across_processes(tmp_path: Path) -> None:
    """Steering and follow-ups have separate delivery modes, and both persist after a kill and a resume."""
    gate = Gate()
    async with opened(tmp_path) as o:
        agent, asked = await at_work(o, gate)
        await agent.queue.set_modes(steering="all")
        for text in ("a", "b"):
            await agent.steer(text)
            await agent.follow_up(text.upper())
        gate.open.set()
        await asked
        # Both steering messages are delivered at once; each follow-up gets a separate answer.
        roles = [message.role for message in (await agent.show()).messages[3:]]
        assert heard(o, agent) == ["a", "b", "A", "B"]
        assert roles.count("assistant") == 3
        await agent.queue.set_modes(follow_up="all")
        await agent.kill()
        await agent.resume()
        spec = o.supervisor.tree.agents[agent.id].spec
        assert (spec.queue_mode, spec.follow_up_mode) == ("all", "all")


async def test_message_recorded_before_a_death_is_not_delivered_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process finds the message in the transcript, although the root received no confirmation."""
    gate = Gate()
    async with opened(tmp_path) as o:
        monkeypatch.setattr(WorkerEndpoint, "steering_recorded", lambda _self, _id: None)
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
        await agent.query("and on")  # frames arrive in order: the confirmation before this reply
        assert await agent.queue.list() == []


async def test_accepted_message_survives_the_root(tmp_path: Path) -> None:
    """The next root delivers a queued message with the next query, unless the message was retracted."""
    async with World(tmp_path, run="r") as o:
        agent = await o.scripted({"loop": ["ok"]}, name="a")
        await agent.query("go")
        await agent.kill()
        await agent.resume()
        sent = await agent.steer("be brief")
        gone = await agent.steer("never mind")
        await agent.queue.clear(gone)
        await agent.queue.set_modes(steering="all")
    async with World(tmp_path, run="r") as o:
        agent = await o.get("a")
        assert [each.id for each in await agent.queue.list()] == [sent]
        await agent.query("go on")
        assert heard(o, agent) == ["be brief"]
        assert o.supervisor.tree.agents[agent.id].spec.queue_mode == "all"


async def test_fork_does_not_receive_queued_messages_of_its_source(tmp_path: Path) -> None:
    """Messages that are queued for the source are delivered to the source only, and once."""
    async with opened(tmp_path) as o:
        agent = await o.scripted("one", "two", "three", context="none")
        await agent.query("first")
        sent = await agent.steer("mind the gap")
        copy = await agent.session.fork()
        assert await copy.queue.list() == []
        assert [each.id for each in await agent.queue.list()] == [sent]
        await copy.query("second")
        assert "mind the gap" not in str((await copy.show()).messages)
        await agent.query("second")
        assert "mind the gap" in str((await agent.show()).messages)
        assert await agent.queue.list() == []
