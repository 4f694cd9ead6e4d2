"""All faults at once: many clients, lost frames, dead workers, kills and full disks. At the end, the state is
consistent."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from orch import AsyncSubagent, Config, SubagentsConfig
from orch_protocol.core.errors import NoResultError, OrchError, RateLimitError
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import World, fill, opened
from virtual_clock import passed, until, virtual

SCRIPT = [
    {
        "loop": [
            "plain",
            {"text": "slow", "sleep": 3},
            {"tool": "count"},
            {"error": "RateLimitError", "message": "no"},
            {"tool": "pause"},
        ]
    }
]


class Storm:
    """Clients that perform random operations."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.luck = random.Random(seed)
        self.calm = False
        self.agents: list[AsyncSubagent] = []
        self.answers: list[str] = []
        self.killed: set[str] = set()
        assert world.launcher.board is not None
        world.launcher.board.lose = lambda _: not self.calm and self.luck.random() < 0.1

    async def client(self, steps: int) -> None:
        """Perform `steps` random operations. An OrchError is a normal result; other exceptions are not."""
        acts = [self.spawn, self.query, self.query, self.query, self.submit, self.watch, self.watch, self.collect]
        acts += [self.kill, self.resume, self.die, self.ping, self.wait, self.disk, self.steer, self.cancel]
        for _ in range(steps):
            await passed(self.luck.random() * 2)
            try:
                await self.luck.choice(acts)()
            except OrchError:
                pass

    def any(self) -> AsyncSubagent:
        """Return a random agent."""
        if not self.agents:
            raise NoResultError("nobody is there yet")
        return self.luck.choice(self.agents)

    async def spawn(self) -> None:
        """Spawn an agent whose script never ends."""

        async def count() -> str:
            """Count."""
            return "counted"

        async def pause() -> str:
            """Pause."""
            await passed(self.luck.random() * 4)
            return "paused"

        self.agents.append(await self.world.scripted(*SCRIPT, tools=[count, pause]))

    async def query(self) -> None:
        """Query an agent, with or without a timeout."""
        reply = await self.any().query("go", timeout=self.luck.choice([0, 1, 5, None]))
        self.answers.append(reply.query_id)

    async def submit(self) -> None:
        """Submit a query without waiting."""
        self.any().submit("go")

    async def watch(self) -> None:
        """Let one agent query another and be woken by the answer."""
        root = self.world.supervisor
        asker, asked = self.any(), self.any()
        root.ask(root.tree.agents[asked.id], "go", asker=asker.id, wake=self.luck.choice(["any", "all", 2]))

    async def collect(self) -> None:
        """Collect an answer if there is one."""
        reply = await self.any().collect(timeout=self.luck.choice([0, 2]))
        if reply is not None:
            self.answers.append(reply.query_id)

    async def kill(self) -> None:
        """Kill an agent with a probability of one half."""
        if self.luck.random() < 0.5:
            agent = self.any()
            self.killed.add(agent.id)
            await agent.kill()

    async def steer(self) -> None:
        """Send a steering message or a follow-up."""
        agent = self.any()
        await self.luck.choice([agent.steer, agent.follow_up])("by the way")

    async def cancel(self) -> None:
        """Cancel a turn."""
        await self.any().cancel(hard=self.luck.random() < 0.5)

    async def resume(self) -> None:
        await self.any().resume()

    async def die(self) -> None:
        """End a worker process."""
        agent = self.any()
        self.world.launcher.worker(agent.id).die(self.luck.choice([-9, 0, 1]))

    async def ping(self) -> None:
        await self.any().ping(timeout=2)

    async def wait(self) -> None:
        """Wait for two agents."""
        await self.world.wait(self.any(), self.any(), mode="any", timeout=3)

    async def disk(self) -> None:
        """Fill the disk for some seconds."""
        log = self.world.supervisor._journal.log
        if "_write" not in vars(log) and self.luck.random() < 0.2:
            make_room = fill(log)
            await passed(self.luck.random() * 3)
            make_room()


@pytest.mark.parametrize("seed", range(6))
@virtual
async def test_random_faults_leave_a_consistent_state(tmp_path: Path, seed: int) -> None:
    """No query is pending, no answer arrives twice, every agent answers, and the journal results in the same tree."""
    config = Config(subagents=SubagentsConfig(max_concurrent=4, timeout_minutes=0.2))
    async with opened(tmp_path, config=config) as world:
        storm, root = Storm(world, seed), world.supervisor
        async with asyncio.timeout(10_000):
            await asyncio.gather(*(storm.client(40) for _ in range(6)))
        storm.calm = True
        await until(lambda: not root.tree.agents.pending and not root._waking, 10_000)
        await until(lambda: not any(node.running and node.status == "killed" for node in root.tree.agents), 100)
        root.flush_journal()
        assert len(storm.answers) == len(set(storm.answers))
        assert (
            root._worker_requests._tasks
            == root.workers._launches
            == root._deadlines._prompts
            == root._deadlines._sent
            == {}
        )
        assert root.workers.processes.keys() == root.workers._peers.keys()
        assert {node.spec.id for node in root.tree.agents if node.running} == root.workers.processes.keys()
        for node in root.tree.agents:
            assert node.watching or not node.news
            # The inbox of a killed agent stays until the first turn after it is resumed.
            assert node.spec.id in storm.killed or node.status == "failed" or not node.inbox
        for agent in storm.agents:
            if world.status(agent) in ("killed", "failed"):
                await agent.resume()
            # The script may be at its error. The next query continues after it.
            with contextlib.suppress(RateLimitError):
                assert (await agent.query("are you there?")).id == agent.id
            assert (await agent.state()).status == "idle"
            session = read_session(Path((await agent.state()).folder))
            assert session.turns == len(session.replies)
