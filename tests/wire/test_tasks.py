"""The task list in requests: it is in the tail of each request while there are open tasks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator
from orch_protocol.core.errors import AgentDiedError
from wire.each_api import each_model
from wire.model_server import Answer, ModelServer, call, say
from wire.sent_requests import assert_goes_on, of_agents
from wire.test_end_to_end import MODEL, environment

CREATE = {"call": "task_create", "input": {"tasks": ["look", "say"]}}


@pytest.fixture
async def root(server: ModelServer, tmp_path: Path) -> AsyncIterator[AsyncOrchestrator]:
    """A root with real processes that approves every call."""
    env = environment(server)
    async with AsyncOrchestrator(MODEL, home=tmp_path / "home", env=env, approve=lambda _: True) as root:
        yield root


def update(index: int, status: str) -> dict[str, Any]:
    """Return a call that sets the status of a task."""
    return {"call": "task_update", "input": {"index": index, "status": status}}


@each_model
async def test_tasks_keep_the_cached_prefix_and_survive_kill_9(
    server: ModelServer, root: AsyncOrchestrator, tmp_path: Path, model: str
) -> None:
    """The current list is in each tail until all tasks are completed or cancelled, also after kill -9."""
    stuck = Answer(gate=asyncio.Event())
    server.script += [call(CREATE), call(update(1, "in_progress")), stuck]
    agent = await root.spawn("x", model=model, tools=["tasks", "read_file"], cwd=tmp_path)
    asking = asyncio.ensure_future(agent.query("Go"))
    while len(server.requests) < 3:
        server.arrived.clear()
        await server.arrived.wait()
    assert agent.pid is not None
    os.kill(agent.pid, signal.SIGKILL)
    with pytest.raises(AgentDiedError):
        await asking
    server.script += [call(update(1, "completed"), update(2, "cancelled")), say("done"), say("again")]
    await agent.query("Go on")
    await agent.query("And?")
    sent = of_agents(server.requests)
    for before, after in pairwise(sent):
        assert_goes_on(before, after)
    shown = [each.tail.replace("\\n", "\n") for each in sent]
    assert ["# Tasks" in tail for tail in shown] == [False, True, True, True, False, False]
    assert "[ ] 1. look\n[ ] 2. say" in shown[1]
    assert "[>] 1. look\n[ ] 2. say" in shown[2]
    assert "[>] 1. look\n[ ] 2. say" in shown[3]
    assert [task.status for task in (await agent.show()).tasks] == ["completed", "cancelled"]
