"""Plan mode in a tree: what runs in it, who ends it, what survives, and that nobody below gets around it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch import AgentBusyError, AsyncSubagent, Config, ConfigError, Consent, PolicyConfig, Question, SubagentsConfig
from orch.policy.caller import AgentCaller
from orch.services import call
from orch.tree.journal.events import ApprovePlan
from orch_protocol.core.errors import AgentError
from orch_protocol.policy.policy import EXIT_PLAN
from orch_protocol.services.registry import SERVICES
from orch_protocol.services.requests import QUERY, SPAWN, QueryAgent, Spawn
from orch_worker.prompt.instructions import PLAN_MODE
from orch_worker.session.transcript import read_session
from orchestrator.policy.test_policy import results
from orchestrator.root_double import NEST, Gate, World, opened

TOOLS = ["read_file", "write_file", "bash"]


def write(name: str) -> dict[str, Any]:
    """Return a call that writes a file."""
    return {"tool": "write_file", "input": {"path": name, "content": "x"}}


def hand_in(plan: str = "1. Write it.") -> dict[str, Any]:
    """Return a call that hands a plan in."""
    return {"tool": EXIT_PLAN, "input": {"plan": plan}}


class Approver:
    """Says `answers` one after the other, then no; keeps what it was asked."""

    def __init__(self, *answers: bool | Consent) -> None:
        self.asked: list[Question] = []
        self._answers = list(answers)

    def __call__(self, question: Question) -> bool | Consent:
        """Answer."""
        self.asked.append(question)
        return self._answers.pop(0) if self._answers else False


def nested() -> Config:
    """Return a configuration in which agents may have agents, and everything is allowed that can be."""
    allowed = dict.fromkeys([*TOOLS, EXIT_PLAN], "allow")
    policy = PolicyConfig(approval_mode="allow", permissions=allowed)  # type: ignore[arg-type]
    return Config(subagents=SubagentsConfig(allow_nested=True), policy=policy)


def folder_of(world: World, agent: AsyncSubagent) -> Path:
    """Return the agent's session folder."""
    return Path(world.supervisor.tree.agents[agent.id].spec.folder)


async def test_nothing_runs_before_the_plan_is_approved(tmp_path: Path) -> None:
    """Writing, running and tools of the program's are denied, a no changes nothing; after a yes all of it runs."""
    ran: list[str] = []

    def deploy() -> str:
        """Deploy it."""
        ran.append("deployed")
        return "done"

    approver = Approver(False, True)
    before = [write("a"), {"tool": "bash", "input": {"command": "touch b"}}, {"tool": "deploy"}, hand_in()]
    said = (*before, "What is wrong with it?", hand_in("2. Better."), write("a"), {"tool": "deploy"}, "Done.")
    async with opened(tmp_path / "home", config=nested(), approve=approver) as world:
        agent = await world.scripted(*said, tools=[*TOOLS, deploy], cwd=tmp_path, plan=True)
        assert (await agent.state()).planning
        reply = await agent.query("Begin")
        assert (reply.tool_calls, ran, os.listdir(tmp_path)) == (0, [], ["home"])
        assert (await agent.state()).planning
        reply = await agent.query("Make it better")
        assert (reply.tool_calls, ran, reply.files_changed) == (3, ["deployed"], ("a",))
        assert not (await agent.state()).planning
        told = results(world, agent.id)
        assert all("in plan mode nothing is written or run" in each for each in told[:3])
        assert told[3].startswith("[The plan was not approved: a plan is to be approved; the user said no. Plan mode")
        assert "Stop and ask" in told[3]
    assert [question.subject for question in approver.asked] == ["1. Write it.", "2. Better."]


async def test_where_nobody_is_there_a_plan_is_denied_at_once(tmp_path: Path) -> None:
    """Without an approver the agent hears at once that nobody can be asked, and stays in plan mode."""
    async with opened(tmp_path, config=nested()) as world:
        agent = await world.scripted(hand_in(), "So be it.", tools=TOOLS, plan=True)
        await agent.query("Begin")
        assert "nobody is there to ask" in results(world, agent.id)[0]
        assert (await agent.state()).planning


@pytest.mark.parametrize("plan", ["", " \n\t", 7])
async def test_a_plan_says_something(tmp_path: Path, plan: object) -> None:
    """An empty plan is an error that nobody is asked about."""
    approver = Approver(True)
    async with opened(tmp_path, approve=approver) as world:
        agent = await world.scripted({"tool": EXIT_PLAN, "input": {"plan": plan}}, "x", tools=TOOLS, plan=True)
        await agent.query("Begin")
        assert "Invalid arguments" in results(world, agent.id)[0]
        assert (await agent.state()).planning
    assert approver.asked == []


async def test_a_call_beside_the_plan_is_not_covered_by_it(tmp_path: Path) -> None:
    """What is called in the same step as exit_plan_mode is denied, on either side of it: nobody has read the plan."""
    step = {"tools": [write("before"), hand_in(), write("after")]}
    async with opened(tmp_path / "home", approve=Approver(True)) as world:
        agent = await world.scripted(step, "x", tools=TOOLS, cwd=tmp_path, plan=True)
        assert (await agent.query("Begin")).tool_calls == 1
        assert not (await agent.state()).planning
    assert os.listdir(tmp_path) == ["home"]


@pytest.mark.parametrize("scope", ["session", "project"])
async def test_no_approval_holds_for_another_plan(tmp_path: Path, scope: Any) -> None:
    """A yes for a session or a project, even with a pattern, is a yes to one plan: the next one is asked about."""
    approver = Approver(Consent(True, scope, pattern="*"), False)
    async with opened(tmp_path, config=nested(), approve=approver) as world:
        for _ in range(2):
            agent = await world.scripted(hand_in(), "x", tools=TOOLS, plan=True)
            await agent.query("Begin")
        assert (await agent.state()).planning
    assert len(approver.asked) == 2


async def test_the_tool_is_for_agents_that_plan(tmp_path: Path) -> None:
    """An agent that never was in plan mode does not have it; one whose plan was approved is told that there is no way
    out of what is over."""
    async with opened(tmp_path, approve=Approver(True)) as world:
        agent = await world.scripted(hand_in(), "x", tools=["all"])
        await agent.query("Begin")
        assert "not available here" in results(world, agent.id)[0]
        agent = await world.scripted(hand_in(), hand_in(), "x", tools=TOOLS, plan=True)
        await agent.query("Begin")
        assert "You are not in plan mode" in results(world, agent.id)[1]


async def test_plan_mode_outlives_the_root_until_a_plan_is_approved(tmp_path: Path) -> None:
    """In a root opened anew, without any approval on hand, an agent is in it or not as it was."""
    async with World(tmp_path / "home", run="r", approve=Approver(True)) as world:
        free = await world.scripted(hand_in(), "x", write("a"), "y", tools=TOOLS, cwd=tmp_path, plan=True)
        bound = await world.scripted("x", write("b"), "y", tools=TOOLS, cwd=tmp_path, plan=True)
        await free.query("Begin")
        await bound.query("Begin")
        assert read_session(folder_of(world, free)).plans_approved
        assert not read_session(folder_of(world, bound)).plans_approved
        ids = free.id, bound.id
    async with World(tmp_path / "home", run="r") as world:
        free, bound = [await world.get(id) for id in ids]
        assert [(await each.state()).planning for each in (free, bound)] == [False, True]
        assert [(await each.query("Go on")).tool_calls for each in (free, bound)] == [1, 0]
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


async def test_a_yes_that_was_not_heard_is_asked_for_anew(tmp_path: Path) -> None:
    """A process that did not get the answer, though it is on record, stays in plan mode until it gets another."""
    approver = Approver(False, True)
    async with opened(tmp_path / "home", approve=approver) as world:
        said = (write("a"), hand_in("one"), "x", hand_in("two"), write("a"), "y")
        agent = await world.scripted(*said, tools=TOOLS, cwd=tmp_path, plan=True)
        await agent.query("Begin")
        world.supervisor.handle(ApprovePlan(agent.id))
        assert (await agent.query("Again")).tool_calls == 2
    assert [question.subject for question in approver.asked] == ["one", "two"]


async def test_an_approval_that_cannot_be_recorded_is_none(tmp_path: Path) -> None:
    """When the root's disk is full the agent stays in plan mode, and hears why."""
    rooms: list[Callable[[], None]] = []
    async with World(tmp_path / "home", approve=lambda _: (rooms.append(world.fill_disk()), True)[1]) as world:
        agent = await world.scripted(hand_in(), write("a"), "x", tools=TOOLS, cwd=tmp_path, plan=True)
        assert (await agent.query("Begin")).tool_calls == 0
        assert "could not be asked for" in results(world, agent.id)[0]
        assert (await agent.state()).planning
        rooms[0]()
    assert not (tmp_path / "a").exists()


class TestBelow:
    """Agents of an agent in plan mode."""

    async def test_a_grandchild_is_in_plan_mode_whatever_it_was_to_be(self, tmp_path: Path) -> None:
        """At any depth, also for a child that asks for none: nothing it calls writes or runs."""
        async with opened(tmp_path / "home", config=nested(), approve=Approver(True, True, True)) as world:
            agent = await world.scripted("-", tools=[*TOOLS, *NEST], cwd=tmp_path, plan=True)
            below = agent.id
            for _ in range(2):
                asked = Spawn("t", tools=(*TOOLS, *NEST), script=(write("a"), hand_in(), write("a"), "x"), plan=False)
                below = (await call(world.supervisor, AgentCaller(below), SPAWN, asked)).id
            assert (await AsyncSubagent(world, below).query("Begin")).tool_calls == 0
            told = results(world, below)
            assert "above you is in plan mode still: give your plan as your answer" in told[1]
        assert not (tmp_path / "a").exists()

    async def test_the_plan_of_a_parent_frees_nobody_else(self, tmp_path: Path) -> None:
        """After its approval a child that was there stays in plan mode until its own plan is approved; a new one is
        in none."""
        approver = Approver(True, True)
        async with opened(tmp_path, config=nested(), approve=approver) as world:
            agent = await world.scripted(hand_in(), "x", tools=[*TOOLS, *NEST], cwd=tmp_path, plan=True)
            script = (write("a"), hand_in("mine"), write("a"), "x")
            asked = Spawn("t", tools=tuple(TOOLS), script=script, cwd=str(tmp_path))
            old = AsyncSubagent(world, (await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)).id)
            await agent.query("Begin")
            new = AsyncSubagent(world, (await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)).id)
            assert [(await each.state()).planning for each in (agent, old, new)] == [False, True, False]
            assert (await old.query("Begin")).tool_calls == 2
            assert [question.subject for question in approver.asked] == ["1. Write it.", "mine"]

    async def test_it_cannot_ask_others_to_do_what_it_may_not(self, tmp_path: Path) -> None:
        """An agent in plan mode may ask those alone who are in it too, by whatever way of asking."""
        async with opened(tmp_path, config=nested()) as world:
            free = await world.scripted("done", "done", "done", tools=TOOLS)
            agent = await world.scripted("-", tools=NEST, plan=True, peers=[free])
            for method in ("query", "submit"):
                with pytest.raises(AgentError, match="is in plan mode and may ask those alone who are too"):
                    await call(
                        world.supervisor, AgentCaller(agent.id), SERVICES[method], QueryAgent(free.id, "write it")
                    )
            child = await call(world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", tools=(), script=("here",)))
            reply = await call(world.supervisor, AgentCaller(agent.id), QUERY, QueryAgent(child.id, "look"))
            assert reply.text == "here"

    async def test_a_child_may_be_put_in_plan_mode_by_one_that_is_not(self, tmp_path: Path) -> None:
        """Narrower than its parent a child may always be."""
        async with opened(tmp_path, config=nested()) as world:
            agent = await world.scripted("-", tools=[*TOOLS, *NEST])
            asked = Spawn("t", tools=tuple(TOOLS), script=("x",), plan=True)
            child = AsyncSubagent(world, (await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)).id)
            assert (await child.state()).planning
            assert EXIT_PLAN in (await child.state()).tools


def test_what_the_model_is_told_names_the_way_out() -> None:
    """The words at the end of a request name the tool that ends plan mode."""
    assert EXIT_PLAN in PLAN_MODE


def test_a_plan_is_shown_whole_and_forges_no_line() -> None:
    """Each line of a plan stands behind a mark, long ones are broken, control characters are written out."""
    plan = "# Do\n\tit\r\x1b[2J\nagent: root\n" + "long " * 50
    question = Question("q", "a1", "x", "t", 1, EXIT_PLAN, plan, {"plan": plan}, (), "r", "/w", "d").with_lines()
    shown = question.lines[question.lines.index("plan:") + 1 :]
    assert shown[:3] == ("| # Do", "|     it\\r\\x1b[2J", "| agent: root")
    assert "".join(line.removeprefix("| ") for line in shown[3:]).replace(" ", "") == "long" * 50
    assert [line.split(":")[0] for line in question.lines[:3]] == ["agent", "task", "in"]


async def test_an_agent_goes_into_plan_mode_and_out_of_it_where_it_is(tmp_path: Path) -> None:
    """As often as somebody wants, each time with a plan of its own to be approved, or with none when it is let out; in
    a root opened anew it is as it was, and what had been taken of its tools stays taken."""
    script = [
        write("a"),
        "wrote",
        write("b"),
        "looked",
        hand_in(),
        write("c"),
        "did",
        write("d"),
        "looked",
        write("e"),
        "x",
    ]
    async with World(tmp_path / "home", run="r", approve=Approver(True)) as world:
        agent = await world.scripted(*script, tools=TOOLS, cwd=tmp_path)
        await agent.query("write")
        await agent.set_planning(True)
        assert [(await agent.query("plan")).tool_calls, (await agent.state()).planning] == [0, True]
        await agent.query("carry on")
        assert not (await agent.state()).planning
        await agent.revoke_tools(keep=["write_file"])
        await agent.set_planning(True)
        await agent.set_planning(True)
    async with World(tmp_path / "home", run="r") as world:
        agent = await world.get(agent.id)
        assert (await agent.state()).planning
        assert set((await agent.state()).tools) == {"write_file", EXIT_PLAN}
        await agent.query("again")
        await agent.set_planning(False)
        await agent.query("now")
    assert [name for name in "abcde" if (tmp_path / name).exists()] == ["a", "c", "e"]


async def test_nobody_is_let_out_of_plan_mode_before_those_above(tmp_path: Path) -> None:
    """And nobody goes in or out in the middle of a turn."""
    gate = Gate()
    async with opened(tmp_path, config=nested()) as world:
        above = await world.scripted("x", tools=[*NEST, "read_file"], plan=True)
        child = await call(world.supervisor, AgentCaller(above.id), SPAWN, Spawn("look", tools=("read_file",)))
        with pytest.raises(ConfigError, match="which is in plan mode: let that one out first"):
            await (await world.get(child.id)).set_planning(False)
        busy = await world.scripted({"tool": "gate"}, "x", tools=[gate.tool()])
        future = busy.submit("go")
        await gate.called.wait()
        with pytest.raises(AgentBusyError):
            await busy.set_planning(True)
        gate.open.set()
        await future
