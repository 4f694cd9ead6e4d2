"""Who counts as alive: by what is heard, and not when the listener itself was asleep."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orch.supervisor.timing.heartbeat import GRACE_SECONDS, Heartbeats
from orch.supervisor.timing.query_deadlines import CHECK_SECONDS
from orch.tree.agents.state import AgentRecord
from orch_protocol.agent.spec import AgentSpec, BackendSpec, Limits
from orch_protocol.core.errors import AgentDiedError
from orchestrator.root_double import opened
from virtual_clock import VirtualLoop, passed, until, virtual

TOOL_SECONDS = 90.0


def agent(incarnation: int = 1) -> AgentRecord:
    """Return an agent at work whose tools may take 90 s."""
    spec = AgentSpec(
        id="a", seq=1, name="a", task="t", backend=BackendSpec("scripted"), folder="/", cwd="/",
        limits=Limits(tool_seconds=TOOL_SECONDS),
    )  # fmt: skip
    return AgentRecord(spec, 0.0, 0.0, status="busy", incarnation=incarnation)


async def looked(pulses: Heartbeats, node: AgentRecord, seconds: float) -> list[AgentRecord]:
    """Look as often as a root does for so long; return what was found silent."""
    found: list[AgentRecord] = []
    for _ in range(round(seconds / CHECK_SECONDS)):
        await passed(CHECK_SECONDS)
        found += pulses.look([node])
    return found


@virtual
async def test_who_says_nothing_for_longer_than_a_tool_may_take_is_stuck() -> None:
    """It is asked each time that somebody looks, and given up when its time and some grace are over; not before."""
    asked: list[str] = []
    pulses, node = Heartbeats(asked.append), agent()
    pulses.beat("a", 1)
    assert await looked(pulses, node, TOOL_SECONDS + GRACE_SECONDS) == []
    assert len(asked) == 4
    assert await looked(pulses, node, CHECK_SECONDS) == [node]


@virtual
async def test_whatever_is_heard_counts_and_only_of_this_process() -> None:
    """A word in time is enough; what the last process said does not speak for this one."""
    pulses, node = Heartbeats(lambda _: None), agent(incarnation=2)
    for _ in range(10):
        assert await looked(pulses, node, TOOL_SECONDS) == []
        pulses.beat("a", 2)
    pulses.beat("a", 1)
    assert await looked(pulses, node, TOOL_SECONDS + GRACE_SECONDS) == []
    assert await looked(pulses, node, 2 * CHECK_SECONDS) != []


@virtual
async def test_a_root_that_was_asleep_judges_nobody_by_it() -> None:
    """After an hour without a look everybody has all of their time again."""
    pulses, node = Heartbeats(lambda _: None), agent()
    pulses.beat("a", 1)
    await passed(3600)
    assert pulses.slept() == 3600 - CHECK_SECONDS
    assert pulses.look([node]) == []
    assert not pulses.slept()
    assert await looked(pulses, node, TOOL_SECONDS + GRACE_SECONDS) == []
    assert await looked(pulses, node, CHECK_SECONDS) == [node]


@virtual
async def test_a_machine_that_was_suspended_wakes_without_a_massacre(tmp_path: Path) -> None:
    """The time of the turn, and of its grace, passes at once for root and worker: it ends as turns end."""
    async with opened(tmp_path) as world:
        limits = Limits(turn_seconds=100)
        worker = await world.scripted(items=[{"sleep": 99, "text": "done"}, "more"], limits=limits)
        asked = worker.submit("go")
        await until(lambda: world.status(worker) == "busy")
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.skip(1000)
        assert (await asked).id == worker.id
        assert (world.status(worker), (await worker.state()).error) == ("idle", None)


@virtual
async def test_an_agent_whose_process_answers_nothing_is_ended_and_revived(tmp_path: Path) -> None:
    """Whoever asked is told that it was stuck; the next question is answered. One that does answer is left alone."""
    async with opened(tmp_path) as world:
        items = [{"sleep": 1000, "text": "done"}, {"sleep": 1000, "text": "never heard"}, "fine"]
        worker = await world.scripted(items=items)
        assert (await worker.query("go")).text == "done"
        world.lose(lambda kind: kind in ("pong", "progress"))
        with pytest.raises(AgentDiedError, match="was stuck and did not answer"):
            await worker.query("go")
        world.lose(lambda _: False)
        assert (await worker.query("again")).id == worker.id
