"""Everything at once: many clients, lost frames, deaths, kills, full disks. Afterwards all is settled and on record."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from orch import AsyncSubagent, Config, SubagentsConfig
from orch_protocol.core.errors import NoResultError, OrchError, RateLimitError
from orch_worker.session.transcript import read_session
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
    """Clients that do what comes to their mind."""

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
        """Do `steps` things; refusals are part of life, anything else is not."""
        acts = [self.spawn, self.query, self.query, self.query, self.submit, self.watch, self.watch, self.collect]
        acts += [self.kill, self.resume, self.die, self.ping, self.wait, self.disk, self.steer, self.cancel]
        for _ in range(steps):
            await passed(self.luck.random() * 2)
            try:
                await self.luck.choice(acts)()
            except OrchError:
                pass

    def any(self) -> AsyncSubagent:
        """Return some agent."""
        if not self.agents:
            raise NoResultError("nobody is there yet")
        return self.luck.choice(self.agents)

    async def spawn(self) -> None:
        """Spawn an agent that never runs out of things to say."""

        async def count() -> str:
            """Count."""
            return "counted"

        async def pause() -> str:
            """Pause."""
            await passed(self.luck.random() * 4)
            return "paused"

        self.agents.append(await self.world.scripted(*SCRIPT, tools=[count, pause]))

    async def query(self) -> None:
        """Ask, with or without patience."""
        reply = await self.any().query("go", timeout=self.luck.choice([0, 1, 5, None]))
        self.answers.append(reply.query_id)

    async def submit(self) -> None:
        """Ask and go away."""
        self.any().submit("go")

    async def watch(self) -> None:
        """Let one agent ask another, to be woken by the answer."""
        root = self.world.supervisor
        asker, asked = self.any(), self.any()
        root.ask(root.tree.agents[asked.id], "go", asker=asker.id, wake=self.luck.choice(["any", "all", 2]))

    async def collect(self) -> None:
        """Take what is there."""
        reply = await self.any().collect(timeout=self.luck.choice([0, 2]))
        if reply is not None:
            self.answers.append(reply.query_id)

    async def kill(self) -> None:
        """Kill an agent, sometimes."""
        if self.luck.random() < 0.5:
            agent = self.any()
            self.killed.add(agent.id)
            await agent.kill()

    async def steer(self) -> None:
        """Say something to an agent, now or for when it would stop."""
        agent = self.any()
        await self.luck.choice([agent.steer, agent.follow_up])("by the way")

    async def cancel(self) -> None:
        """End a turn."""
        await self.any().cancel(hard=self.luck.random() < 0.5)

    async def resume(self) -> None:
        """Resume an agent."""
        await self.any().resume()

    async def die(self) -> None:
        """Let a process end."""
        agent = self.any()
        self.world.launcher.worker(agent.id).die(self.luck.choice([-9, 0, 1]))

    async def ping(self) -> None:
        """Look whether a process is there."""
        await self.any().ping(timeout=2)

    async def wait(self) -> None:
        """Wait for two agents."""
        await self.world.wait(self.any(), self.any(), mode="any", timeout=3)

    async def disk(self) -> None:
        """Fill the disk for a while."""
        log = self.world.supervisor._journal.log
        if "_write" not in vars(log) and self.luck.random() < 0.2:
            make_room = fill(log)
            await passed(self.luck.random() * 3)
            make_room()


@pytest.mark.parametrize("seed", range(6))
@virtual
async def test_after_a_storm_all_is_settled(tmp_path: Path, seed: int) -> None:
    """Nobody waits any more, no answer was given twice, every agent answers, and the journal tells it all."""
    config = Config(subagents=SubagentsConfig(max_concurrent=4, timeout_minutes=0.2))
    async with opened(tmp_path, config=config) as world:
        storm, root = Storm(world, seed), world.supervisor
        async with asyncio.timeout(10_000):
            await asyncio.gather(*(storm.client(40) for _ in range(6)))
        storm.calm = True
        await until(lambda: not root.tree.agents.pending and not root._waking, 10_000)
        await until(lambda: not any(node.running and node.status == "killed" for node in root.tree.agents), 100)
        root.write_down()
        assert len(storm.answers) == len(set(storm.answers))
        assert root._calls._tasks == root.workers._launches == root._turns._prompts == root._turns._sent == {}
        assert root.workers.processes.keys() == root.workers._peers.keys()
        assert {node.spec.id for node in root.tree.agents if node.running} == root.workers.processes.keys()
        for node in root.tree.agents:
            assert node.watching or not node.news
            # What a killed agent would have heard waits for its first turn after it was resumed.
            assert node.spec.id in storm.killed or node.status == "failed" or not node.inbox
        for agent in storm.agents:
            if world.status(agent) in ("killed", "failed"):
                await agent.resume()
            # The script may be at its error just now; it is at something else afterwards.
            with contextlib.suppress(RateLimitError):
                assert (await agent.query("are you there?")).id == agent.id
            assert (await agent.state()).status == "idle"
            session = read_session(Path((await agent.state()).folder))
            assert session.turns == len(session.replies)
