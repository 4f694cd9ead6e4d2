"""Plan mode: which calls run, who ends it, what survives a restart, and how it applies to descendants."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch import AgentBusyError, AsyncSubagent, Config, ConfigError, Consent, PolicyConfig, Question, SubagentsConfig
from orch.policy.caller import AgentCaller
from orch.services import call
from orch.tree.interface.events import ApprovePlan
from orch_protocol.core.errors import AgentError
from orch_protocol.policy.policy import EXIT_PLAN
from orch_protocol.services.agents.query import QUERY, QueryAgent
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.dispatch.registry import SERVICES
from orch_worker.prompt.instructions import PLAN_MODE
from orch_worker.session.session_reader import read_session
from orchestrator.policy.test_policy import results
from orchestrator.root_double import NEST, Gate, World, opened

TOOLS = ["read_file", "write_file", "bash"]


def write(name: str) -> dict[str, Any]:
    """Return a call that writes the file `name`."""
    return {"tool": "write_file", "input": {"path": name, "content": "x"}}


def hand_in(plan: str = "1. Write it.") -> dict[str, Any]:
    """Return a call that submits a plan."""
    return {"tool": EXIT_PLAN, "input": {"plan": plan}}


class Approver:
    """An approver that returns `answers` in order, then denials, and records the questions."""

    def __init__(self, *answers: bool | Consent) -> None:
        self.asked: list[Question] = []
        self._answers = list(answers)

    def __call__(self, question: Question) -> bool | Consent:
        self.asked.append(question)
        return self._answers.pop(0) if self._answers else False


def nested() -> Config:
    """Return a configuration that permits subagents and allows every call that a rule can allow."""
    allowed = dict.fromkeys([*TOOLS, EXIT_PLAN], "allow")
    policy = PolicyConfig(approval_mode="allow", permissions=allowed)  # type: ignore[arg-type]
    return Config(subagents=SubagentsConfig(allow_nested=True), policy=policy)


def folder_of(world: World, agent: AsyncSubagent) -> Path:
    return Path(world.supervisor.tree.agents[agent.id].spec.folder)


async def test_no_write_or_command_runs_before_plan_approval(tmp_path: Path) -> None:
    """After a denial, the calls are still refused; after an approval, they run."""
    ran: list[str] = []

    def deploy() -> str:
        """Deploy it."""
        ran.append("deployed")
        return "done"

    approver = Approver(False, True)
    before = [write("a"), {"tool": "bash", "input": {"command": "touch b"}}, {"tool": "deploy"}, hand_in()]
    replies = (*before, "What is wrong with it?", hand_in("2. Better."), write("a"), {"tool": "deploy"}, "Done.")
    async with opened(tmp_path / "home", config=nested(), approve=approver) as world:
        agent = await world.scripted(*replies, tools=[*TOOLS, deploy], cwd=tmp_path, plan=True)
        assert (await agent.state()).planning
        reply = await agent.query("Begin")
        assert (reply.tool_calls, ran, os.listdir(tmp_path)) == (0, [], ["home"])
        assert (await agent.state()).planning
        reply = await agent.query("Make it better")
        assert (reply.tool_calls, ran, reply.files_changed) == (3, ["deployed"], ("a",))
        assert not (await agent.state()).planning
        outcomes = results(world, agent.id)
        assert all("plan mode allows no tool that writes or runs something" in each for each in outcomes[:3])
        assert outcomes[3].startswith(
            "[The plan was not approved: a plan needs approval; the user denied it. Plan mode"
        )
        assert "Stop and ask" in outcomes[3]
    assert [question.subject for question in approver.asked] == ["1. Write it.", "2. Better."]


async def test_plan_without_an_approver_is_denied_at_once(tmp_path: Path) -> None:
    """If no approver exists, a plan is denied at once, and the agent stays in plan mode."""
    async with opened(tmp_path, config=nested()) as world:
        agent = await world.scripted(hand_in(), "So be it.", tools=TOOLS, plan=True)
        await agent.query("Begin")
        assert "there is no one to ask" in results(world, agent.id)[0]
        assert (await agent.state()).planning


@pytest.mark.parametrize("plan", ["", " \n\t", 7])
async def test_empty_plan_is_an_error(tmp_path: Path, plan: object) -> None:
    """A plan that is empty or not a text gives an error result, and the approver is not asked."""
    approver = Approver(True)
    async with opened(tmp_path, approve=approver) as world:
        agent = await world.scripted({"tool": EXIT_PLAN, "input": {"plan": plan}}, "x", tools=TOOLS, plan=True)
        await agent.query("Begin")
        assert "Invalid arguments" in results(world, agent.id)[0]
        assert (await agent.state()).planning
    assert approver.asked == []


async def test_calls_beside_the_plan_are_denied(tmp_path: Path) -> None:
    """Calls in the same step as exit_plan_mode do not run, neither before it nor after it."""
    step = {"tools": [write("before"), hand_in(), write("after")]}
    async with opened(tmp_path / "home", approve=Approver(True)) as world:
        agent = await world.scripted(step, "x", tools=TOOLS, cwd=tmp_path, plan=True)
        assert (await agent.query("Begin")).tool_calls == 1
        assert not (await agent.state()).planning
    assert os.listdir(tmp_path) == ["home"]


@pytest.mark.parametrize("scope", ["session", "project"])
async def test_plan_approval_covers_one_plan(tmp_path: Path, scope: Any) -> None:
    """An approval for a session or a project, even with a pattern, does not apply to the next plan."""
    approver = Approver(Consent(True, scope, pattern="*"), False)
    async with opened(tmp_path, config=nested(), approve=approver) as world:
        for _ in range(2):
            agent = await world.scripted(hand_in(), "x", tools=TOOLS, plan=True)
            await agent.query("Begin")
        assert (await agent.state()).planning
    assert len(approver.asked) == 2


async def test_exit_plan_mode_is_only_for_planning_agents(tmp_path: Path) -> None:
    """Without plan mode, the tool is not available; after an approval, it reports that plan mode has ended."""
    async with opened(tmp_path, approve=Approver(True)) as world:
        agent = await world.scripted(hand_in(), "x", tools=["all"])
        await agent.query("Begin")
        assert "not available here" in results(world, agent.id)[0]
        agent = await world.scripted(hand_in(), hand_in(), "x", tools=TOOLS, plan=True)
        await agent.query("Begin")
        assert "You are not in plan mode" in results(world, agent.id)[1]


async def test_plan_mode_survives_a_restart(tmp_path: Path) -> None:
    """A new root knows for each agent whether its plan was approved."""
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


async def test_undelivered_plan_approval_is_asked_again(tmp_path: Path) -> None:
    """A process that did not receive the recorded approval stays in plan mode until the next approval."""
    approver = Approver(False, True)
    async with opened(tmp_path / "home", approve=approver) as world:
        replies = (write("a"), hand_in("one"), "x", hand_in("two"), write("a"), "y")
        agent = await world.scripted(*replies, tools=TOOLS, cwd=tmp_path, plan=True)
        await agent.query("Begin")
        world.supervisor.handle(ApprovePlan(agent.id))
        assert (await agent.query("Again")).tool_calls == 2
    assert [question.subject for question in approver.asked] == ["one", "two"]


async def test_unrecordable_plan_approval_does_not_count(tmp_path: Path) -> None:
    """On a full disk, the agent stays in plan mode, and the result of its call states the reason."""
    rooms: list[Callable[[], None]] = []
    async with World(tmp_path / "home", approve=lambda _: (rooms.append(world.fill_disk()), True)[1]) as world:
        agent = await world.scripted(hand_in(), write("a"), "x", tools=TOOLS, cwd=tmp_path, plan=True)
        assert (await agent.query("Begin")).tool_calls == 0
        assert "could not be asked for" in results(world, agent.id)[0]
        assert (await agent.state()).planning
        rooms[0]()
    assert not (tmp_path / "a").exists()


class TestBelow:
    """Descendants and peers of an agent in plan mode."""

    async def test_descendants_of_a_planning_agent_are_in_plan_mode(self, tmp_path: Path) -> None:
        """Descendants at any depth are in plan mode, even if their spawn requests no plan mode."""
        async with opened(tmp_path / "home", config=nested(), approve=Approver(True, True, True)) as world:
            agent = await world.scripted("-", tools=[*TOOLS, *NEST], cwd=tmp_path, plan=True)
            below = agent.id
            for _ in range(2):
                asked = Spawn("t", tools=(*TOOLS, *NEST), script=(write("a"), hand_in(), write("a"), "x"), plan=False)
                below = (await call(world.supervisor, AgentCaller(below), SPAWN, asked)).id
            assert (await AsyncSubagent(world, below).query("Begin")).tool_calls == 0
            outcomes = results(world, below)
            assert "above you is still in plan mode: return your plan as your answer" in outcomes[1]
        assert not (tmp_path / "a").exists()

    async def test_parents_plan_approval_does_not_free_its_children(self, tmp_path: Path) -> None:
        """After the approval, existing children stay in plan mode, and new children are not in plan mode."""
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

    async def test_planning_agent_may_query_planning_agents_only(self, tmp_path: Path) -> None:
        """`query` and `submit` to a peer that is not in plan mode are refused."""
        async with opened(tmp_path, config=nested()) as world:
            free = await world.scripted("done", "done", "done", tools=TOOLS)
            agent = await world.scripted("-", tools=NEST, plan=True, peers=[free])
            for method in ("query", "submit"):
                with pytest.raises(AgentError, match="is in plan mode and may query only agents in plan mode"):
                    await call(
                        world.supervisor, AgentCaller(agent.id), SERVICES[method], QueryAgent(free.id, "write it")
                    )
            child = await call(world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", tools=(), script=("here",)))
            reply = await call(world.supervisor, AgentCaller(agent.id), QUERY, QueryAgent(child.id, "look"))
            assert reply.text == "here"

    async def test_child_can_be_spawned_in_plan_mode(self, tmp_path: Path) -> None:
        """An agent outside plan mode can spawn a child in plan mode, because the child then has fewer rights."""
        async with opened(tmp_path, config=nested()) as world:
            agent = await world.scripted("-", tools=[*TOOLS, *NEST])
            asked = Spawn("t", tools=tuple(TOOLS), script=("x",), plan=True)
            child = AsyncSubagent(world, (await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)).id)
            assert (await child.state()).planning
            assert EXIT_PLAN in (await child.state()).tools


def test_plan_mode_prompt_names_the_exit_tool() -> None:
    """The model learns from the prompt which tool ends plan mode."""
    assert EXIT_PLAN in PLAN_MODE


def test_plan_text_is_shown_whole_and_cannot_forge_lines() -> None:
    """Each line of a plan has a prefix, long lines are wrapped, and control characters are escaped."""
    plan = "# Do\n\tit\r\x1b[2J\nagent: root\n" + "long " * 50
    question = Question("q", "a1", "x", "t", 1, EXIT_PLAN, plan, {"plan": plan}, (), "r", "/w", "d").with_lines()
    shown = question.lines[question.lines.index("plan:") + 1 :]
    assert shown[:3] == ("| # Do", "|     it\\r\\x1b[2J", "| agent: root")
    assert "".join(line.removeprefix("| ") for line in shown[3:]).replace(" ", "") == "long" * 50
    assert [line.split(":")[0] for line in question.lines[:3]] == ["agent", "task", "in"]


async def test_agent_enters_and_leaves_plan_mode_repeatedly(tmp_path: Path) -> None:
    """Each plan needs an approval; a new root keeps plan mode and the revocation of tools."""
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


async def test_agent_below_a_planning_one_cannot_leave_plan_mode(tmp_path: Path) -> None:
    """The plan mode of its ancestor must end first; no agent can switch plan mode during a turn."""
    gate = Gate()
    async with opened(tmp_path, config=nested()) as world:
        above = await world.scripted("x", tools=[*NEST, "read_file"], plan=True)
        child = await call(world.supervisor, AgentCaller(above.id), SPAWN, Spawn("look", tools=("read_file",)))
        with pytest.raises(ConfigError, match="which is in plan mode: end its plan mode first"):
            await (await world.get(child.id)).set_planning(False)
        busy = await world.scripted({"tool": "gate"}, "x", tools=[gate.tool()])
        future = busy.submit("go")
        await gate.called.wait()
        with pytest.raises(AgentBusyError):
            await busy.set_planning(True)
        gate.open.set()
        await future
