"""One rule: an agent may use what its parent may use and it was granted itself, at any depth, and ever less.

The table says it of what agents do: each calls every tool there is, and what is not its right is refused.
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
from orch.tree.journal.events import KillRequested, ResumeRequested, RevokeTools, Send
from orch.tree.rules.inherited_rights import own_rights
from orch_protocol.core.errors import AgentError, ConfigError, SpawnError, ToolNotGrantedError
from orch_protocol.services.requests import REVOKE_TOOLS, SPAWN, RevokeAgentTools, Spawn
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
    """Return agents of which each is the child of the one before it. Each says, again and again, every tool's name."""
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
    """Let the agent try every tool; return those that ran, which are those that it is said to have."""
    reply = await agent.query("Try")
    told = results(world, agent.id)[-len(ALL) :]
    ran = tuple(
        name
        for name, text in zip(ALL, told, strict=True)
        if "is not granted" not in text and "was taken from this agent" not in text
    )
    assert reply.tool_calls == len(ran)
    assert set(ran) == set((await agent.state()).tools) & set(ALL)
    return ran


@pytest.mark.parametrize("after", ["at once", "resumed", "in the next root"])
@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
async def test_the_rule(
    tmp_path: Path, row: tuple[Sequence[Sequence[str] | None], Sequence[Step], Sequence[Sequence[str]]], after: str
) -> None:
    """What each agent of a tree may use is what it was granted and everybody above it may use; whatever happened."""
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


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["spawn", "narrow", "kill", "resume"]), st.integers(0, 99), SOME), max_size=20)
)
def test_whatever_happens_nobody_has_more_than_its_parent_or_than_before(
    acts: list[tuple[str, int, frozenset[str]]],
) -> None:
    """Of any tree, narrowed, killed and resumed in any order, live and as it is folded from the journal."""
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


async def test_narrowing_never_widens(tmp_path: Path) -> None:
    """What the agent was not granted, or not any more, cannot be kept; what is no tool is told; nothing has changed."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("-", tools=[READ, LIST])
        for names, error in (([READ, GREP], ToolNotGrantedError), (["file", "baash"], ToolNotGrantedError)):
            with pytest.raises(error, match="narrowing never widens"):
                await agent.revoke_tools(keep=names)
        with pytest.raises(ConfigError, match="keep must be a list of names"):
            await agent.revoke_tools(keep="file")
        assert (await agent.state()).tools == (READ, LIST)
        await agent.revoke_tools(keep=[LIST])
        with pytest.raises(ToolNotGrantedError, match="it may use list_files"):
            await agent.revoke_tools(keep=[READ])


async def test_an_agent_narrows_those_below_it_alone(tmp_path: Path) -> None:
    """Neither itself nor those above: and none of its tools asks for it."""
    async with opened(tmp_path, config=rules()) as world:
        agent = await world.scripted("-", tools=[READ, *NEST])
        asked = Spawn("t", tools=(READ,), script=("x",))
        child = await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)
        with pytest.raises(AgentError, match="may only revoke the tools of agents below itself"):
            await call(world.supervisor, AgentCaller(child.id), REVOKE_TOOLS, RevokeAgentTools(agent.id, ()))
        await call(world.supervisor, AgentCaller(agent.id), REVOKE_TOOLS, RevokeAgentTools(child.id, ()))
        assert (await AsyncSubagent(world, child.id).state()).tools == ()


async def test_what_runs_goes_on_and_what_waits_does_not_begin(tmp_path: Path) -> None:
    """Narrowed in the middle of a turn: a call under way ends as it would, one that is being asked about does not run
    after the yes, and the next one is refused; the model is told at the end of each request."""
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
        assert all("ring was not run: it was taken from this agent. Stop and ask" in each for each in refused)
        assert len(refused) == 2


async def test_a_process_that_says_otherwise_is_not_believed(tmp_path: Path) -> None:
    """What was taken from an agent the root does not do for it either."""
    async with opened(tmp_path, config=rules()) as world:
        agent = await world.scripted("-", tools=["chat", *NEST])
        await agent.revoke_tools(keep=["list_subagents"])
        with pytest.raises(ToolNotGrantedError, match="was not granted spawn_subagent"):
            await call(world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", tools=(), script=("x",)))


async def test_a_child_works_below_its_parents_folder(tmp_path: Path) -> None:
    """A folder is a ceiling too, also through a link."""
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


def test_an_agent_that_is_coming_up_is_told_as_soon_as_it_is() -> None:
    """Its process may have been described before: the word comes behind the description, before any query."""
    forest = Forest()
    id = forest.spawn(up=False, tools=("a", "b"))
    forest.handle(RevokeTools(id, ("a",)))
    assert forest.told(Send) == []
    forest.up(id)
    (word,) = forest.told(Send)
    assert (word.kind, word.body) == ("revoke_tools", NarrowFrame(("b",)))


def test_rights_of_its_own() -> None:
    """Reading back what it archived, and the way out of its plan mode, nobody above an agent grants or takes."""
    forest = Forest()
    spec = forest.spec(tools=("exit_plan_mode",), plan=True)
    assert own_rights(spec) == {"exit_plan_mode"}
    assert own_rights(forest.spec(tools=("exit_plan_mode",))) == frozenset()
