"""The policy in a tree: under which rules an agent comes up, and that none below it has others."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from orch import AsyncSubagent, Config, OrchError, PolicyCall, PolicyConfig, SubagentsConfig, Verdict
from orch.policy.caller import AgentCaller
from orch.services import call
from orch_protocol.core.messages import ToolResult
from orch_protocol.policy.policy import PolicySpec
from orch_protocol.services.requests import SPAWN, Spawn
from orch_worker.session.transcript import read_session
from orchestrator.root_double import NEST, World, opened
from virtual_clock import virtual

READS = {"tool": "read_file", "input": {"path": "secret.txt"}}


def rules(**more: object) -> Config:
    """Return a configuration with that policy in which agents may have agents."""
    return Config(subagents=SubagentsConfig(allow_nested=True), policy=PolicyConfig(**more))  # type: ignore[arg-type]


def results(world: World, agent: str) -> list[str]:
    """Return the texts of the results in an agent's transcript."""
    node = world.supervisor.tree.agents[agent]
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
            spawned = (await call(world.supervisor, AgentCaller(spawned), SPAWN, asked)).id
        reply = await AsyncSubagent(world, spawned).query("read it")
        assert reply.tool_calls == 0
        (told,) = results(world, spawned)
        assert "denied_paths" in told
        assert "s3cret" not in told
        specs = [node.spec for node in world.supervisor.tree.agents]
        assert len({msgspec.json.encode(spec.policy) for spec in specs}) == 1


@virtual
async def test_an_agent_cannot_choose_the_rules_of_its_child(tmp_path: Path) -> None:
    """Rules in an agent's own request to spawn count for nothing."""
    async with opened(tmp_path, config=rules(permissions={"bash": "deny"})) as world:
        agent = await world.scripted("-", tools=NEST)
        asked = Spawn("t", tools=(), script=("x",), policy=PolicySpec())
        child = await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)
        assert world.supervisor.tree.agents[child.id].spec.policy.rules.permissions == {"bash": "deny"}


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


def no_secrets(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
    """Deny whatever names a file called `secret.txt`."""
    named = any(path.endswith("/secret.txt") for path in call.paths)
    return Verdict("deny", reason="a secret") if named and call.operation == "read" else Verdict()


@pytest.mark.parametrize("where", ["worker", "root"])
@virtual
async def test_a_function_of_the_users_judges_children_and_grandchildren(tmp_path: Path, where: str) -> None:
    """Named in the configuration or given to the program, it denies at every depth, and knows who calls."""
    (tmp_path / "secret.txt").write_text("s3cret")
    seen: list[PolicyCall] = []

    def judge(call: PolicyCall, config: PolicyConfig) -> Verdict:
        seen.append(call)
        return no_secrets(call, config)

    in_root = where == "root"
    config = rules() if in_root else rules(function="orchestrator.policy.test_policy:no_secrets")
    async with opened(tmp_path / "home", config=config, policy=judge if in_root else None) as world:
        agent = await world.scripted("-", tools=["read_file", *NEST], cwd=tmp_path)
        below = [agent.id]
        for _ in range(2):
            asked = Spawn("t", tools=("read_file", *NEST), script=(READS, "done"))
            below.append((await call(world.supervisor, AgentCaller(below[-1]), SPAWN, asked)).id)
        for id in below[1:]:
            assert (await AsyncSubagent(world, id).query("read it")).tool_calls == 0
            (told,) = results(world, id)
            assert "a secret. Stop and ask" in told
        assert [(each.agent_id, each.depth) for each in seen] == ([(below[1], 2), (below[2], 3)] if in_root else [])


@virtual
async def test_a_program_without_the_function_denies_what_it_judged(tmp_path: Path) -> None:
    """An agent that came up under a program's function does nothing in a root that has none."""
    (tmp_path / "open.txt").write_text("x")
    reads = {"tool": "read_file", "input": {"path": "open.txt"}}
    async with World(tmp_path / "home", run="r", config=rules(), policy=no_secrets) as world:
        agent = await world.scripted(reads, "one", reads, "two", tools=["read_file"], cwd=tmp_path)
        assert (await agent.query("read")).tool_calls == 1
        id = agent.id
    async with World(tmp_path / "home", run="r", config=rules()) as world:
        assert (await (await world.get(id)).query("read")).tool_calls == 0
        assert "this one has none" in results(world, id)[-1]


@virtual
async def test_an_agent_does_not_come_up_without_the_function_of_its_rules(tmp_path: Path) -> None:
    """A function that cannot be imported is an error of the spawn, which names it."""
    async with opened(tmp_path, config=rules(function="no.such:thing")) as world:
        with pytest.raises(OrchError, match=r"cannot import policy\.function 'no\.such:thing'"):
            await world.scripted("-", tools=[])


@virtual
async def test_where_a_conversation_may_be_read_is_on_record(tmp_path: Path) -> None:
    """Once it holds what is for local models, its journal, its replies, its children and a next root say so."""
    (tmp_path / "secret.txt").write_text("s3cret")

    def local(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
        return Verdict(model="local")

    async with World(tmp_path / "home", run="r", config=rules(), policy=local) as world:
        agent = await world.scripted(READS, "one", "two", tools=["read_file", *NEST], cwd=tmp_path)
        assert not world.supervisor.tree.agents[agent.id].spec.local
        assert (await agent.query("read")).local
        child = await call(world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", tools=(), script=("x",)))
        nodes = world.supervisor.tree.agents
        assert [nodes[id].spec.local for id in (agent.id, child.id)] == [True, True]
        assert world.refolded().agents.by_id == nodes.by_id
    async with World(tmp_path / "home", run="r", config=rules(), policy=local) as world:
        assert (await (await world.get(agent.id)).query("again")).local


@virtual
async def test_a_slip_in_a_programs_own_rules_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once, when the first agent is spawned; not of a name that a tool of the program's really has."""

    def wirte_file(path: str) -> str:
        """Write nothing."""
        return path

    async with opened(tmp_path, config=rules(permissions={"bahs": "deny", "wirte_file": "deny"})) as world:
        await world.scripted("-", tools=[wirte_file])
        await world.scripted("-")
    [line] = capsys.readouterr().err.splitlines()
    assert "'bahs', which is no built-in tool: did you mean 'bash'?" in line
