"""Agents whose process waits until a caller offers their credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch import AgentGoneError
from orch.policy.credentials import CallerCredentials
from orch.tree.interface.events import BootTimeout, StartWorker
from orch.tree.interface.topics import ReadyTopic, RunEventTopic
from orch.tree.journal.entries import QueryStarted
from orch_protocol.core.errors import CredentialsError
from orch_worker.backends import models
from orchestrator.root_double import World

A = {"OPENAI_API_KEY": "key-of-a", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
B = A | {"OPENAI_API_KEY": "key-of-b"}


def opened(home: Path) -> tuple[World, CallerCredentials]:
    """Return a root that keeps the credentials of its callers separate, as the daemon does."""
    made = World(home, run="r")
    made.credentials = credentials = CallerCredentials(models.load(), b"salt")
    return made, credentials


async def spawned(home: Path) -> str:
    """Spawn an agent in a root that closes afterwards. Return the agent's id."""
    made, credentials = opened(home)
    async with made:
        with credentials.on_behalf_of(A, "spawn", lambda _: None):
            agent = await made.spawn("answer", model="openai:gpt-4o")
        assert made.launcher.workers[-1].request.birth.keys["OPENAI_API_KEY"] == "key-of-a"
    return agent.id


async def test_launch_waits_for_credentials(tmp_path: Path) -> None:
    """Neither another shell's credentials nor the boot timeout end the wait. The same credentials do."""
    id = await spawned(tmp_path)
    made, credentials = opened(tmp_path)
    async with made:
        root = made.supervisor
        root.handle(StartWorker(id))
        agent = await made.get(id)
        incarnation = root.tree.agents[id].incarnation
        root.handle(BootTimeout(id, incarnation))
        with credentials.on_behalf_of(B, "list", lambda _: None):
            root.launch_waiting()
        assert ((await agent.state()).status, made.launcher.workers) == ("needs credentials", [])
        with credentials.on_behalf_of(A, "list", lambda _: None):
            root.launch_waiting()
        await root.waiters.until(ReadyTopic(id), 10)
        assert (await agent.state()).status == "idle"
        assert made.launcher.workers[-1].request.birth.keys["OPENAI_API_KEY"] == "key-of-a"


async def test_agent_that_waits_can_be_killed(tmp_path: Path) -> None:
    """Killing an agent without a process ends its wait for credentials."""
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
    """The query raises CredentialsError instead of waiting."""
    id = await spawned(tmp_path)
    made, _ = opened(tmp_path)
    async with made:
        agent = await made.get(id)
        with pytest.raises(CredentialsError, match="waits for OPENAI_API_KEY"):
            await agent.query("Hello?")
        assert (await agent.state()).pending is None


async def test_query_accepted_before_a_restart_waits_for_credentials(tmp_path: Path) -> None:
    """The query stays pending until the credentials are offered, and then it starts."""
    id = await spawned(tmp_path)
    made, _ = opened(tmp_path)
    async with made:
        root = made.supervisor
        root.record(QueryStarted(at=root.clock(), id=id, query_id="q1", head="Who?", stays=True, prompt="Who?"))
    made, credentials = opened(tmp_path)
    async with made:
        root, agent = made.supervisor, await made.get(id)
        up = root.waiters.watch(ReadyTopic(id))
        if id not in root._waiting_launches:
            await root.waiters.until(RunEventTopic(), 10)  # until the launch is on record
        row = await agent.state()
        assert (row.status, row.pending, made.launcher.workers) == ("needs credentials", "Who?", [])
        with credentials.on_behalf_of(A, "list", lambda _: None):
            root.launch_waiting()
        await up
        assert (await agent.state()).status == "busy"
        await made.kill(id)
