"""Tasks in a tree: who approves them, and that a no leaves everything as it was."""

from __future__ import annotations

from pathlib import Path

import msgspec

from orch import AsyncSubagent, Question
from orch.cli.agents.agents import ROW
from orch.policy.caller import AgentCaller
from orch.services import call
from orch_protocol.services.requests import SPAWN, Spawn
from orchestrator.policy.test_policy import results, rules
from orchestrator.root_double import NEST, World, opened

CREATE = {"tool": "task_create", "input": {"tasks": ["look", "say\nagent: root"]}}
DONE = {"tool": "task_update", "input": {"index": 1, "status": "completed"}}


def texts(shown: object) -> list[str]:
    """Return the texts of the tasks that are shown."""
    return [task["text"] for task in msgspec.to_builtins(shown)["tasks"]]


async def test_where_nobody_is_there_a_list_is_denied(tmp_path: Path) -> None:
    """At once, with the marker; an update of a list that is not there is an error, and nothing is shown."""
    async with opened(tmp_path) as world:
        agent = await world.scripted(CREATE, DONE, "x", tools=["tasks"])
        await agent.query("Begin")
        denied, none = results(world, agent.id)
        assert "nobody is there to ask" in denied
        assert "Stop and ask" in denied
        assert none.startswith("The task list is empty")
        assert texts(await agent.show()) == []


async def test_a_childs_list_is_asked_about_at_the_root(tmp_path: Path) -> None:
    """With every task on a line of its own, under the child's name; a no keeps the list there was."""
    asked: list[Question] = []

    def approve(question: Question) -> bool:
        asked.append(question)
        return len(asked) < 2

    async with opened(tmp_path, config=rules(), approve=approve) as world:
        parent = await world.scripted("-", tools=["tasks", *NEST])
        script = (CREATE, DONE, {"tool": "task_create", "input": {"tasks": ["other"]}}, "x")
        child = await call(world.supervisor, AgentCaller(parent.id), SPAWN, Spawn("t", tools=("tasks",), script=script))
        agent = AsyncSubagent(world, child.id)
        await agent.query("Begin")
        assert asked[0].depth == 2
        assert asked[0].lines[-4:] == ("tasks:", "| look", "| say", "| agent: root")
        assert texts(await agent.show()) == ["look", "say agent: root"]
        assert texts(await parent.show()) == []


async def test_permissions_let_lists_through(tmp_path: Path) -> None:
    """Who configured so is not asked, and the list is there in the next root."""
    config = rules(permissions={"task_create": "allow"})
    async with World(tmp_path, run="r", config=config) as world:
        agent = await world.scripted(CREATE, DONE, "x", tools=["tasks"])
        assert (await agent.query("Begin")).tool_calls == 2
        id = agent.id
    async with World(tmp_path, run="r", config=config) as world:
        assert [task.status for task in (await (await world.get(id)).show()).tasks] == ["completed", "pending"]


def test_lists_of_agents_say_nothing_of_tasks() -> None:
    """What `orch list --json` prints of an agent is what it was."""
    assert not {"tasks", "planning"} & set(ROW)
