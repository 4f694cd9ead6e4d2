"""An agent may use the tools that were granted to it and to all its ancestors. Its rights never grow.

In the table, each agent calls every tool, and the calls without a right are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch import AsyncSubagent, Question
from orch.policy.caller import USER, AgentCaller
from orch.services import call
from orch.services.resources.tools import revoke_tools
from orch.tree.interface.events import KillRequested, ResumeRequested, RevokeTools
from orch.tree.interface.instructions import Send
from orch.tree.rules.inherited_rights import own_rights
from orch_protocol.core.errors import AgentError, ConfigError, SpawnError, ToolNotGrantedError
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.resources.tools import REVOKE_TOOLS, RevokeAgentTools
from orch_protocol.wire.worker_messages import WithdrawTools as NarrowFrame
from orchestrator.policy.test_policy import results, rules
from orchestrator.root_double import NEST, Gate, World, opened
from orchestrator.tree_double import Forest

ALL = ("read_file", "list_files", "grep_files", "py_help", "installed_packages")
INPUT: dict[str, dict[str, str]] = {
    "read_file": {"path": "x"},
    "list_files": {},
    "grep_files": {"pattern": "x"},
    "py_help": {"topic": "os"},
    "installed_packages": {},
}
SPAWNS = ("spawn_subagent",)
READ, LIST, GREP, HELP, PACKAGES = ALL

Step = tuple[int, tuple[str, ...]]
TABLE: dict[str, tuple[Sequence[Sequence[str] | None], Sequence[Step], Sequence[Sequence[str]]]] = {
    "as granted": ([ALL, ALL[:3], ALL[:1]], [], [ALL, ALL[:3], ALL[:1]]),
    "the default is cut to what the parent has": ([(LIST, HELP), None], [], [(LIST, HELP), (LIST, HELP)]),
    "a narrowed one has less to give": ([(LIST, HELP), None], [(0, (HELP,))], [(HELP,), (HELP,)]),
    "nothing is a grant too": ([ALL, (), ()], [], [ALL, (), ()]),
    "the top is narrowed": ([ALL, ALL[:3], ALL[:2]], [(0, (LIST, HELP))], [(LIST, HELP), (LIST,), (LIST,)]),
    "the middle is narrowed": ([ALL, ALL, ALL], [(1, (GREP,))], [ALL, (GREP,), (GREP,)]),
    "the last is narrowed": ([ALL, ALL, ALL], [(2, (GREP,))], [ALL, ALL, (GREP,)]),
    "below a narrowed one nothing comes back": ([ALL, ALL, ALL], [(2, (GREP,)), (1, (READ,))], [ALL, (READ,), ()]),
    "twice is both": ([ALL, ALL, ALL], [(0, ALL[:3]), (0, (GREP, LIST))], [(LIST, GREP)] * 3),
    "to nothing": ([ALL, ALL, ALL], [(0, ())], [(), (), ()]),
    "a category is what of it there is": (
        [ALL[1:], ALL[1:], (LIST,)],
        [(0, ("file",))],
        [(LIST, GREP)] * 2 + [(LIST,)],
    ),
}


async def chain(world: World, grants: Sequence[Sequence[str] | None]) -> list[AsyncSubagent]:
    """Return agents in a chain of parent and child. Each script calls every tool, repeatedly."""
    script = ({"loop": [{"tools": [{"tool": name, "input": INPUT[name]} for name in ALL]}, "done"]},)
    parent: str | None = None
    made = []
    for grant in grants:
        tools = None if grant is None else (*grant, *SPAWNS)
        spawned = await call(
            world.supervisor, AgentCaller(parent) if parent else USER, SPAWN, Spawn("t", tools=tools, script=script)
        )
        parent = spawned.id
        made.append(AsyncSubagent(world, spawned.id))
    return made


async def used(world: World, agent: AsyncSubagent) -> tuple[str, ...]:
    """Let the agent call every tool. Return the tools that ran, which must equal its listed tools."""
    reply = await agent.query("Try")
    outcomes = results(world, agent.id)[-len(ALL) :]
    ran = tuple(
        name
        for name, text in zip(ALL, outcomes, strict=True)
        if "is not granted" not in text and "was revoked for this agent" not in text
    )
    assert reply.tool_calls == len(ran)
    assert set(ran) == set((await agent.state()).tools) & set(ALL)
    return ran


@pytest.mark.parametrize("after", ["at once", "resumed", "in the next root"])
@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
async def test_rights_are_the_intersection_of_all_ancestors(
    tmp_path: Path, row: tuple[Sequence[Sequence[str] | None], Sequence[Step], Sequence[Sequence[str]]], after: str
) -> None:
    """An agent may use exactly the tools of all its ancestors, at once, after a resumption, and in the next root."""
    grants, steps, expected = row
    config = rules()
    async with World(tmp_path, run="r", config=config) as world:
        agents = await chain(world, grants)
        for at, keep in steps:
            spawns = set(SPAWNS) & set((await agents[at].state()).tools)
            await agents[at].revoke_tools(keep=[*keep, *spawns])
        if after == "resumed":
            await agents[0].kill()
            for agent in agents:
                await agent.resume()
        if after != "in the next root":
            assert [await used(world, agent) for agent in agents] == [tuple(each) for each in expected]
        ids = [agent.id for agent in agents]
    if after == "in the next root":
        async with World(tmp_path, run="r", config=config) as world:
            assert [await used(world, await world.get(id)) for id in ids] == [tuple(each) for each in expected]


NAMES = st.sampled_from(["a", "b", "c", "d"])
SOME = st.frozensets(NAMES)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(["spawn", "narrow", "kill", "resume"]), st.integers(0, 99), SOME), max_size=20)
)
def test_rights_never_exceed_the_parents_or_grow(
    acts: list[tuple[str, int, frozenset[str]]],
) -> None:
    """For any operations, each agent has a subset of its parent's tools, and the journal results in the same tree."""
    forest = Forest(allow_nested=True, max_concurrent=100, depth_cap=100)
    ids = [forest.spawn(tools=("a", "b", "c", "d"))]
    for act, number, names in acts:
        nodes = forest.tree.agents
        id = ids[number % len(ids)]
        before = {each: set(nodes[each].spec.active) for each in ids}
        if act == "spawn" and nodes[id].status != "killed":
            ids.append(forest.spawn(id, tools=tuple(sorted(names & set(nodes[id].spec.active)))))
        elif act == "narrow":
            forest.handle(RevokeTools(id, tuple(names)))
            assert set(nodes[id].spec.active) == before[id] & names
        elif act == "kill":
            forest.handle(KillRequested((id,), "the user"))
            for each in nodes.subtree(id):
                forest.gone(each.spec.id)
        elif act == "resume":
            forest.handle(ResumeRequested(id))
        for each in ids:
            spec = nodes[each].spec
            assert set(spec.active) <= before.get(each, set(spec.active))
            if spec.parent_id is not None:
                assert set(spec.active) <= set(nodes[spec.parent_id].spec.active)
    assert forest.refold().agents.by_id == forest.tree.agents.by_id


async def test_revoking_never_widens_rights(tmp_path: Path) -> None:
    """Tools that the agent does not have cannot be kept."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("-", tools=[READ, LIST])
        for names, error in (([READ, GREP], ToolNotGrantedError), (["file", "baash"], ToolNotGrantedError)):
            with pytest.raises(error, match="so they cannot be kept"):
                await agent.revoke_tools(keep=names)
        with pytest.raises(ConfigError, match="keep must be a list of names"):
            await agent.revoke_tools(keep="file")
        assert (await agent.state()).tools == (READ, LIST)
        await agent.revoke_tools(keep=[LIST])
        with pytest.raises(ToolNotGrantedError, match="it may use list_files"):
            await agent.revoke_tools(keep=[READ])


async def test_agent_revokes_tools_of_its_descendants_only(tmp_path: Path) -> None:
    """The handler refuses a child that revokes tools of its parent. No tool of an agent permits the service."""
    async with opened(tmp_path, config=rules()) as world:
        agent = await world.scripted("-", tools=[READ, *NEST])
        asked = Spawn("t", tools=(READ,), script=("x",))
        child = await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)
        with pytest.raises(AgentError, match="may only revoke the tools of agents below itself"):
            await revoke_tools(world.supervisor, AgentCaller(child.id), RevokeAgentTools(agent.id, ()))
        with pytest.raises(ToolNotGrantedError, match="may not call 'revoke_tools'"):
            await call(world.supervisor, AgentCaller(agent.id), REVOKE_TOOLS, RevokeAgentTools(child.id, ()))
        await revoke_tools(world.supervisor, AgentCaller(agent.id), RevokeAgentTools(child.id, ()))
        assert (await AsyncSubagent(world, child.id).state()).tools == ()


async def test_revocation_in_mid_turn_stops_later_calls(tmp_path: Path) -> None:
    """A running call ends. A call that waits for approval does not run after the approval, and later calls are
    refused."""
    gate, ran = Gate(), []
    asked, answer = asyncio.Event(), asyncio.Event()

    def ring() -> str:
        """Ring."""
        ran.append("ring")
        return "rang"

    async def approve(_: Question) -> bool:
        asked.set()
        await answer.wait()
        return True

    script = ({"tools": [{"tool": "gate"}, {"tool": "ring"}]}, {"tool": "ring"}, "done")
    async with opened(tmp_path, config=rules(permissions={"ring": "ask"}), approve=approve) as world:
        agent = await world.scripted(*script, tools=[gate.tool(), ring])
        future = agent.submit("Begin")
        await gate.called.wait()
        await asked.wait()
        await agent.revoke_tools(keep=[])
        gate.open.set()
        answer.set()
        reply = await future
        first, *refused = results(world, agent.id)
        assert (first, ran, reply.tool_calls) == ("open", [], 1)
        assert all("ring was not run: it was revoked for this agent. Stop and ask" in each for each in refused)
        assert len(refused) == 2


async def test_root_refuses_revoked_tools_claimed_by_the_worker(tmp_path: Path) -> None:
    """The root checks each call of a root tool against the remaining tools."""
    async with opened(tmp_path, config=rules()) as world:
        agent = await world.scripted("-", tools=["chat", *NEST])
        await agent.revoke_tools(keep=["list_subagents"])
        with pytest.raises(ToolNotGrantedError, match="was not granted spawn_subagent"):
            await call(world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", tools=(), script=("x",)))


async def test_child_folder_is_below_its_parents(tmp_path: Path) -> None:
    """Links are resolved before the check."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "out").symlink_to(tmp_path)
    async with opened(tmp_path / "home", config=rules()) as world:
        agent = await world.scripted("-", tools=NEST, cwd=tmp_path / "in")
        for cwd in ("..", "out", "/"):
            with pytest.raises(SpawnError, match="is not below that of agent"):
                await call(world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", tools=(), script=("x",), cwd=cwd))
        child = await call(
            world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", tools=(), script=("x",), cwd="deep")
        )
        assert world.supervisor.tree.agents[child.id].spec.cwd == str(tmp_path / "in" / "deep")


def test_revocation_during_start_is_delivered_before_any_query() -> None:
    """The worker may have received its tools already, so it gets the change when it is ready."""
    forest = Forest()
    id = forest.spawn(up=False, tools=("a", "b"))
    forest.handle(RevokeTools(id, ("a",)))
    assert forest.told(Send) == []
    forest.up(id)
    (word,) = forest.told(Send)
    assert (word.kind, word.body) == ("revoke_tools", NarrowFrame(("b",)))


def test_own_archive_tools_and_plan_exit_need_no_grant() -> None:
    """Plan mode itself grants the tool that leaves it."""
    forest = Forest()
    spec = forest.spec(tools=("exit_plan_mode",), plan=True)
    assert own_rights(spec) == {"exit_plan_mode"}
    assert own_rights(forest.spec(tools=("exit_plan_mode",))) == frozenset()
