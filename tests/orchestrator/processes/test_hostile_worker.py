"""A hostile worker with a valid token and connection that sends arbitrary frames."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from hostile_frames import KINDS, mutated, some_body
from orch.processes.router import ConnectionTable
from orch_protocol.core.errors import ErrorInfo, OrchError
from orch_protocol.wire.frames import VERSION, FrameChannel
from orch_protocol.wire.worker_messages import BODIES, Hello
from orchestrator.root_double import opened
from virtual_clock import passed, virtual

MUTATED = 20_000


@pytest.mark.parametrize("seed", range(8))
@virtual
async def test_root_survives_any_message_of_a_worker(tmp_path: Path, seed: int) -> None:
    """Other agents answer their queries while a worker sends frames of any type about any agent."""
    luck = random.Random(seed)
    async with opened(tmp_path) as world:
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        victim = await world.scripted(items=[{"sleep": 50, "text": "for you alone"}, "fine"])
        traitor = await world.scripted(items=[{"sleep": 40, "text": "x"}] * 20)
        asked = victim.submit("go")
        query = world.supervisor.tree.agents[victim.id].pending
        assert query is not None
        ids = ["", "0", "init", victim.id, traitor.id, query.query_id, "x" * 300, "\x00"]
        for _ in range(120):
            if world.status(traitor) not in ("idle", "busy"):
                try:
                    await traitor.query("come back", timeout=1)
                except OrchError:
                    continue
            courier = world.launcher.worker(traitor.id)._host._channel
            kind = luck.choice(KINDS)
            courier.send(kind, some_body(kind, luck, ids), luck.choice(ids), reliable=luck.random() < 0.8)
            if luck.random() < 0.3:
                await passed(luck.random())
        assert (await asked).text == "for you alone"
        assert (await victim.query("you?")).text == "fine"
        assert faults == []


async def test_mutated_frames_are_dropped_or_valid(tmp_path: Path) -> None:
    """None of twenty thousand frames raises, and each delivered frame has a valid body."""
    delivered: list[tuple[str, Any]] = []
    table = ConnectionTable(tmp_path, lambda *_: None, lambda _peer, kind, _id, body: delivered.append((kind, body)))
    peer, luck = table.expect("a", 1, b"i", b"t" * 32), random.Random(3)
    table.confirm(peer, 1)
    worker = FrameChannel(1, tmp_path)
    table.accept(b"i", worker.encode("hello", Hello(b"t" * 32, VERSION, 1)), 1)
    some = [worker.encode(kind, some_body(kind, luck, ["a", "q"]), "q") for kind in ("ready", "finished", "root_call")]
    for _ in range(MUTATED):
        table.accept(b"i", mutated(luck.choice(some), luck), 1)
    assert table.counters["bad_frame"] > MUTATED / 10
    assert all(isinstance(body, (BODIES[kind], ErrorInfo)) for kind, body in delivered)
    table.forget(peer)
