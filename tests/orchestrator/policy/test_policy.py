"""The policy in a tree of agents: every descendant has the rules of the root."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from orch import AsyncSubagent, Config, OrchError, PolicyCall, PolicyConfig, SubagentsConfig, Verdict
from orch.policy.caller import AgentCaller
from orch.services import call
from orch_protocol.core.errors import ToolNotGrantedError
from orch_protocol.core.messages import ToolResult
from orch_protocol.policy.policy import PolicySpec
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import NEST, World, opened
from virtual_clock import virtual

READS = {"tool": "read_file", "input": {"path": "secret.txt"}}


def rules(**more: object) -> Config:
    """Return a configuration with this policy in which agents may spawn agents."""
    return Config(subagents=SubagentsConfig(allow_nested=True), policy=PolicyConfig(**more))  # type: ignore[arg-type]


def results(world: World, agent: str) -> list[str]:
    """Return the texts of the tool results in an agent's transcript."""
    node = world.supervisor.tree.agents[agent]
    blocks = [block for each in read_session(Path(node.spec.folder)).messages for block in each.content]
    return ["".join(getattr(part, "text", "") for part in b.content) for b in blocks if isinstance(b, ToolResult)]


@virtual
async def test_grandchild_has_the_rules_of_the_root(tmp_path: Path) -> None:
    """A denied path is denied for a grandchild, and all specs contain identical rules."""
    (tmp_path / "secret.txt").write_text("s3cret")
    async with opened(tmp_path / "home", config=rules(denied_paths=("secret.txt",))) as world:
        agent = await world.scripted("-", tools=["read_file", *NEST], cwd=tmp_path)
        spawned = agent.id
        for _ in range(2):
            asked = Spawn("t", tools=("read_file", *NEST), script=(READS, "done"))
            spawned = (await call(world.supervisor, AgentCaller(spawned), SPAWN, asked)).id
        reply = await AsyncSubagent(world, spawned).query("read it")
        assert reply.tool_calls == 0
        (outcomes,) = results(world, spawned)
        assert "denied_paths" in outcomes
        assert "s3cret" not in outcomes
        specs = [node.spec for node in world.supervisor.tree.agents]
        assert len({msgspec.json.encode(spec.policy) for spec in specs}) == 1


@virtual
async def test_agent_cannot_choose_its_childs_rules(tmp_path: Path) -> None:
    """Rules in an agent's own spawn request are refused. The child has the rules of its parent."""
    async with opened(tmp_path, config=rules(permissions={"bash": "deny"})) as world:
        agent = await world.scripted("-", tools=NEST)
        asked = Spawn("t", tools=(), script=("x",), policy=PolicySpec())
        with pytest.raises(ToolNotGrantedError, match="cannot set 'policy' of 'spawn': only the user can"):
            await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)
        child = await call(world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", tools=(), script=("x",)))
        assert world.supervisor.tree.agents[child.id].spec.policy.rules.permissions == {"bash": "deny"}


@virtual
async def test_revived_agent_keeps_its_rules(tmp_path: Path) -> None:
    """The recorded rules apply even if the configuration has changed."""
    (tmp_path / "secret.txt").write_text("s3cret")
    async with World(tmp_path / "home", run="r", config=rules(denied_paths=("secret.txt",))) as world:
        agent = await world.scripted(READS, "one", READS, "two", tools=["read_file"], cwd=tmp_path)
        assert (await agent.query("read")).tool_calls == 0
        id = agent.id
    async with World(tmp_path / "home", run="r", config=rules()) as world:
        again = await world.get(id)
        assert (await again.query("read")).tool_calls == 0


def no_secrets(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
    """Deny calls that read a file named `secret.txt`."""
    named = any(path.endswith("/secret.txt") for path in call.paths)
    return Verdict("deny", reason="a secret") if named and call.operation == "read" else Verdict()


@pytest.mark.parametrize("where", ["worker", "root"])
@virtual
async def test_policy_callback_applies_at_every_depth(tmp_path: Path, where: str) -> None:
    """The callback receives the id and depth of the calling agent, and denies the calls of children and
    grandchildren."""
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
            (outcomes,) = results(world, id)
            assert "a secret. Stop and ask" in outcomes
        assert [(each.agent_id, each.depth) for each in seen] == ([(below[1], 2), (below[2], 3)] if in_root else [])


@virtual
async def test_missing_policy_callback_denies_its_calls(tmp_path: Path) -> None:
    """If an agent was spawned with a callback, a program without the callback denies its calls."""
    (tmp_path / "open.txt").write_text("x")
    reads = {"tool": "read_file", "input": {"path": "open.txt"}}
    async with World(tmp_path / "home", run="r", config=rules(), policy=no_secrets) as world:
        agent = await world.scripted(reads, "one", reads, "two", tools=["read_file"], cwd=tmp_path)
        assert (await agent.query("read")).tool_calls == 1
        id = agent.id
    async with World(tmp_path / "home", run="r", config=rules()) as world:
        assert (await (await world.get(id)).query("read")).tool_calls == 0
        assert "but this program has none" in results(world, id)[-1]


@virtual
async def test_unimportable_policy_callback_fails_the_spawn(tmp_path: Path) -> None:
    """The error of the spawn contains the name of the function."""
    async with opened(tmp_path, config=rules(function="no.such:thing")) as world:
        with pytest.raises(OrchError, match=r"cannot import policy\.function 'no\.such:thing'"):
            await world.scripted("-", tools=[])


@virtual
async def test_locality_of_a_conversation_is_recorded(tmp_path: Path) -> None:
    """The journal, the replies, the children and the next root record that only local models may read the
    conversation."""
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
async def test_misspelled_tool_in_a_programs_rules_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first spawn reports the unknown name. The name of a tool of the program is not reported."""

    def wirte_file(path: str) -> str:
        """Write nothing."""
        return path

    async with opened(tmp_path, config=rules(permissions={"bahs": "deny", "wirte_file": "deny"})) as world:
        await world.scripted("-", tools=[wirte_file])
        await world.scripted("-")
    [line] = capsys.readouterr().err.splitlines()
    assert "'bahs', which is not a built-in tool: did you mean 'bash'?" in line
