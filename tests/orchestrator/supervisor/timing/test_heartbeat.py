"""Heartbeats of workers: a silent worker is stuck, except while the root itself was suspended."""

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
    """Return a busy agent whose tools may take 90 s."""
    spec = AgentSpec(
        id="a", seq=1, name="a", task="t", backend=BackendSpec("scripted"), folder="/", cwd="/",
        limits=Limits(tool_seconds=TOOL_SECONDS),
    )  # fmt: skip
    return AgentRecord(spec, 0.0, 0.0, status="busy", incarnation=incarnation)


async def looked(pulses: Heartbeats, node: AgentRecord, seconds: float) -> list[AgentRecord]:
    """Check the agent at the interval of a root for `seconds`. Return the agents that were found silent."""
    found: list[AgentRecord] = []
    for _ in range(round(seconds / CHECK_SECONDS)):
        await passed(CHECK_SECONDS)
        found += pulses.find_unresponsive([node])
    return found


@virtual
async def test_silent_worker_is_stuck_after_the_tool_limit() -> None:
    """The worker is pinged at each check. It is stuck after the tool limit and a grace period."""
    asked: list[str] = []
    pulses, node = Heartbeats(asked.append), agent()
    pulses.beat("a", 1)
    assert await looked(pulses, node, TOOL_SECONDS + GRACE_SECONDS) == []
    assert len(asked) == 4
    assert await looked(pulses, node, CHECK_SECONDS) == [node]


@virtual
async def test_any_message_of_the_current_process_resets_the_timer() -> None:
    """Messages of an earlier process do not reset it."""
    pulses, node = Heartbeats(lambda _: None), agent(incarnation=2)
    for _ in range(10):
        assert await looked(pulses, node, TOOL_SECONDS) == []
        pulses.beat("a", 2)
    pulses.beat("a", 1)
    assert await looked(pulses, node, TOOL_SECONDS + GRACE_SECONDS) == []
    assert await looked(pulses, node, 2 * CHECK_SECONDS) != []


@virtual
async def test_sleeping_root_restarts_all_timers() -> None:
    """After an hour without a check, each worker has its full time again."""
    pulses, node = Heartbeats(lambda _: None), agent()
    pulses.beat("a", 1)
    await passed(3600)
    assert pulses.suspended_seconds() == 3600 - CHECK_SECONDS
    assert pulses.find_unresponsive([node]) == []
    assert not pulses.suspended_seconds()
    assert await looked(pulses, node, TOOL_SECONDS + GRACE_SECONDS) == []
    assert await looked(pulses, node, CHECK_SECONDS) == [node]


@virtual
async def test_suspended_machine_ends_no_worker(tmp_path: Path) -> None:
    """Although the time limit passes at once for root and worker, the turn ends without an error."""
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
async def test_stuck_worker_is_replaced_and_reported(tmp_path: Path) -> None:
    """The query fails with the reason, and the next query is answered. A responsive worker is not replaced."""
    async with opened(tmp_path) as world:
        items = [{"sleep": 1000, "text": "done"}, {"sleep": 1000, "text": "never heard"}, "fine"]
        worker = await world.scripted(items=items)
        assert (await worker.query("go")).text == "done"
        world.lose(lambda kind: kind in ("pong", "progress"))
        with pytest.raises(AgentDiedError, match="was stuck and did not answer"):
            await worker.query("go")
        world.lose(lambda _: False)
        assert (await worker.query("again")).id == worker.id
