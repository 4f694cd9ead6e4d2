"""Task lists: who approves them, and that a denial changes nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec

from orch import AsyncSubagent, Question
from orch.cli.agents.agents import ROW
from orch.policy.caller import AgentCaller
from orch.services import call
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orchestrator.policy.test_policy import results, rules
from orchestrator.root_double import NEST, World, opened

CREATE = {"tool": "task_create", "input": {"tasks": ["look", "say\nagent: root"]}}
DONE = {"tool": "task_update", "input": {"index": 1, "status": "completed"}}


def texts(shown: object) -> list[str]:
    """Return the texts of the tasks in `shown`."""
    return [task["text"] for task in msgspec.to_builtins(shown)["tasks"]]


async def test_task_list_without_an_approver_is_denied(tmp_path: Path) -> None:
    """The result tells the model to stop and ask; a later update finds no list."""
    async with opened(tmp_path) as world:
        agent = await world.scripted(CREATE, DONE, "x", tools=["tasks"])
        await agent.query("Begin")
        denied, none = results(world, agent.id)
        assert "there is no one to ask" in denied
        assert "Stop and ask" in denied
        assert none.startswith("The task list is empty")
        assert texts(await agent.show()) == []


async def test_task_list_of_a_child_is_approved_at_the_root(tmp_path: Path) -> None:
    """The question shows each task on a separate line; a denial keeps the previous list."""
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


async def test_permission_for_task_lists_skips_the_question(tmp_path: Path) -> None:
    """With the permission `allow`, a task list needs no approval, and it survives a restart of the root."""
    config = rules(permissions={"task_create": "allow"})
    async with World(tmp_path, run="r", config=config) as world:
        agent = await world.scripted(CREATE, DONE, "x", tools=["tasks"])
        assert (await agent.query("Begin")).tool_calls == 2
        id = agent.id
    async with World(tmp_path, run="r", config=config) as world:
        assert [task.status for task in (await (await world.get(id)).show()).tasks] == ["completed", "pending"]


def test_agent_list_json_has_no_tasks() -> None:
    """`orch list --json` prints neither tasks nor plan mode."""
    assert not {"tasks", "planning"} & set(ROW)
