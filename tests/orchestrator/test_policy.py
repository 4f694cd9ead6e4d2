"""The policy in a tree: under which rules an agent comes up, and that none below it has others."""

from __future__ import annotations

from pathlib import Path

import msgspec

from orch import AsyncSubagent, Config, PolicyConfig, SubagentsConfig
from orch.services import call
from orch_protocol.messages import ToolResult
from orch_protocol.policy import PolicySpec
from orch_protocol.services import Spawn
from orch_worker.transcript import read_session
from orchestrator.world import NEST, World, opened
from virtual import virtual

READS = {"tool": "read_file", "input": {"path": "secret.txt"}}


def rules(**more: object) -> Config:
    """Return a configuration with that policy in which agents may have agents."""
    return Config(subagents=SubagentsConfig(allow_nested=True), policy=PolicyConfig(**more))  # type: ignore[arg-type]


def results(world: World, agent: str) -> list[str]:
    """Return the texts of the results in an agent's transcript."""
    node = world.supervisor.tree.nodes[agent]
    blocks = [block for each in read_session(Path(node.spec.folder)).messages for block in each.content]
    return ["".join(getattr(part, "text", "") for part in b.content) for b in blocks if isinstance(b, ToolResult)]


@virtual
async def test_a_grandchild_is_under_the_rules_of_the_root(tmp_path: Path) -> None:
    """What is denied for an agent is denied for every agent below it, and their rules are exactly its rules."""
    (tmp_path / "secret.txt").write_text("s3cret")
    async with opened(tmp_path / "home", config=rules(denied_paths=("secret.txt",))) as world:
        agent = await world.scripted("-", tools=["read_file", *NEST], cwd=tmp_path)
        spawned = agent.id
        for _ in range(2):
            asked = Spawn("t", tools=("read_file", *NEST), script=(READS, "done"))
            spawned = (await call(world.supervisor, spawned, "spawn", asked)).id
        reply = await AsyncSubagent(world, spawned).query("read it")
        assert reply.tool_calls == 0
        (told,) = results(world, spawned)
        assert "denied_paths" in told
        assert "s3cret" not in told
        specs = [node.spec for node in world.supervisor.tree.nodes]
        assert len({msgspec.json.encode(spec.policy) for spec in specs}) == 1


@virtual
async def test_an_agent_cannot_choose_the_rules_of_its_child(tmp_path: Path) -> None:
    """Rules in an agent's own request to spawn count for nothing."""
    async with opened(tmp_path, config=rules(permissions={"bash": "deny"})) as world:
        agent = await world.scripted("-", tools=NEST)
        asked = Spawn("t", tools=(), script=("x",), policy=PolicySpec())
        child = await call(world.supervisor, agent.id, "spawn", asked)
        assert world.supervisor.tree.nodes[child.id].spec.policy.rules.permissions == {"bash": "deny"}


@virtual
async def test_rules_hold_after_a_revival_under_another_configuration(tmp_path: Path) -> None:
    """An agent keeps the rules it was spawned under, also in a root that is opened anew with others."""
    (tmp_path / "secret.txt").write_text("s3cret")
    async with World(tmp_path / "home", run="r", config=rules(denied_paths=("secret.txt",))) as world:
        agent = await world.scripted(READS, "one", READS, "two", tools=["read_file"], cwd=tmp_path)
        assert (await agent.query("read")).tool_calls == 0
        id = agent.id
    async with World(tmp_path / "home", run="r", config=rules()) as world:
        again = await world.get(id)
        assert (await again.query("read")).tool_calls == 0
