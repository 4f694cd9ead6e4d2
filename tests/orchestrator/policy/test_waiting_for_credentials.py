"""Agents whose process waits until a caller offers their credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch import AgentGoneError
from orch.policy.credentials import CallerCredentials
from orch.supervisor.run_events import RECORDED
from orch.tree.journal.entries import QueryStarted
from orch.tree.journal.events import BootTimeout, StartWorker
from orch_protocol.core.errors import CredentialsError
from orch_worker.backends import models
from orchestrator.root_double import World

A = {"OPENAI_API_KEY": "key-of-a", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
B = A | {"OPENAI_API_KEY": "key-of-b"}


def opened(home: Path) -> tuple[World, CallerCredentials]:
    """Return a root that keeps the credentials of its callers apart, as the daemon does."""
    made = World(home, run="r")
    made.credentials = credentials = CallerCredentials(models.load(), b"salt")
    return made, credentials


async def spawned(home: Path) -> str:
    """Spawn an agent in a root that is closed then, and return its id."""
    made, credentials = opened(home)
    async with made:
        with credentials.calling(A, "spawn", lambda _: None):
            agent = await made.spawn("answer", model="openai:gpt-4o")
        assert made.launcher.workers[-1].request.birth.keys["OPENAI_API_KEY"] == "key-of-a"
    return agent.id


async def test_launch_waits_for_credentials(tmp_path: Path) -> None:
    """As long as it takes: neither another shell's nor the time to boot ends the waiting; the same ones do."""
    id = await spawned(tmp_path)
    made, credentials = opened(tmp_path)
    async with made:
        root = made.supervisor
        root.handle(StartWorker(id))
        agent = await made.get(id)
        incarnation = root.tree.agents[id].incarnation
        root.handle(BootTimeout(id, incarnation))
        with credentials.calling(B, "list", lambda _: None):
            root.credentials_offered()
        assert ((await agent.state()).status, made.launcher.workers) == ("needs credentials", [])
        with credentials.calling(A, "list", lambda _: None):
            root.credentials_offered()
        await root.waiters.until(f"up:{id}", 10)
        assert (await agent.state()).status == "idle"
        assert made.launcher.workers[-1].request.birth.keys["OPENAI_API_KEY"] == "key-of-a"


async def test_agent_that_waits_can_be_killed(tmp_path: Path) -> None:
    """Its process, which never was, is over with it."""
    id = await spawned(tmp_path)
    made, _ = opened(tmp_path)
    async with made:
        made.supervisor.handle(StartWorker(id))
        await made.kill(id)
        assert (await (await made.get(id)).state()).status == "killed"
        with pytest.raises(AgentGoneError):
            await (await made.get(id)).query("Hello?")
        assert made.launcher.workers == []


async def test_query_without_the_credentials_is_refused(tmp_path: Path) -> None:
    """It is not accepted, so nobody waits for an answer that cannot come."""
    id = await spawned(tmp_path)
    made, _ = opened(tmp_path)
    async with made:
        agent = await made.get(id)
        with pytest.raises(CredentialsError, match="waits for the OPENAI_API_KEY"):
            await agent.query("Hello?")
        assert (await agent.state()).pending is None


async def test_query_accepted_before_a_restart_waits_for_credentials(tmp_path: Path) -> None:
    """It is asked once they are offered; until then it is neither asked nor given up."""
    id = await spawned(tmp_path)
    made, _ = opened(tmp_path)
    async with made:
        root = made.supervisor
        root.note(QueryStarted(at=root.clock(), id=id, query_id="q1", head="Who?", stays=True, prompt="Who?"))
    made, credentials = opened(tmp_path)
    async with made:
        root, agent = made.supervisor, await made.get(id)
        up = root.waiters.watch(f"up:{id}")
        if id not in root._unlaunched:
            await root.waiters.until(RECORDED, 10)  # the launch is on record
        row = await agent.state()
        assert (row.status, row.pending, made.launcher.workers) == ("needs credentials", "Who?", [])
        with credentials.calling(A, "list", lambda _: None):
            root.credentials_offered()
        await up
        assert (await agent.state()).status == "busy"
        await made.kill(id)
