"""What agents of a tree are told of their project: by preset, when asked for, below each other, and later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import Config, ConfigError, ContextConfig, ScriptedBackend, StoreError, SubagentsConfig, ToolNotGrantedError
from orch.policy.caller import AgentCaller
from orch.services import call
from orch_protocol.agent.project import ContextSpec
from orch_protocol.core.messages import Message, Text, assistant, text_of, user
from orch_protocol.services.requests import SPAWN, Spawn
from orch_worker.conversation.framing import is_project
from orch_worker.session.transcript import read_session
from orchestrator.root_double import NEST, World, fill, opened
from virtual_clock import virtual


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a context file."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "AGENTS.md").write_text("".join(f"rule {n}\n" for n in range(900)))
    return tmp_path / "p"


def conversation(world: World, id: str) -> tuple[Message, ...]:
    """Return the conversation of the agent as a model sees it."""
    return read_session(Path(world.supervisor.tree.agents[id].spec.folder)).messages


def level(world: World, id: str) -> str:
    """Return how much the conversation tells of the project."""
    first = text_of(conversation(world, id)[0])
    return "full" if "rule 899" in first else "brief" if "rule 3\n" in first else "none"


def context(**more: Any) -> Config:
    """Return a configuration in which agents may have agents."""
    return Config(subagents=SubagentsConfig(allow_nested=True, context=ContextConfig(**more)))


@virtual
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, "brief"),
        ({"preset": "minimal"}, "none"),
        ({"preset": "investigate"}, "brief"),
        ({"preset": "work"}, "full"),
        ({"preset": "holder"}, "none"),
        ({"tools": ["read_file"]}, "none"),
        ({"preset": "minimal", "context": "full"}, "full"),
        ({"preset": "work", "context": "none"}, "none"),
        ({"tools": [], "context": "brief"}, "brief"),
    ],
)
async def test_the_preset_decides_unless_it_is_said(
    tmp_path: Path, folder: Path, asked: dict[str, Any], told: str
) -> None:
    """Each preset has its own measure, an agent with tools instead of one is told nothing; what is asked for counts."""
    async with opened(tmp_path / "home") as world:
        agent = await world.scripted("done", "again", cwd=folder, **asked)
        await agent.query("go")
        assert level(world, agent.id) == told
        await agent.query("go on")
        blocks = [Message("user", (block,)) for each in conversation(world, agent.id) for block in each.content]
        assert sum(map(is_project, blocks)) == (told != "none")


@virtual
async def test_the_configuration_decides_for_presets(tmp_path: Path, folder: Path) -> None:
    """What is configured for a preset, or for agents with tools, is what they are told."""
    async with opened(tmp_path / "home", config=context(work="none", tools="full", full_tokens=100)) as world:
        agents = [await world.scripted("done", cwd=folder, **how) for how in ({"preset": "work"}, {"tools": []})]
        for agent in agents:
            await agent.query("go")
        assert level(world, agents[0].id) == "none"
        assert "[AGENTS.md goes on]" in text_of(conversation(world, agents[1].id)[0])


@virtual
async def test_an_unknown_measure_is_refused(tmp_path: Path) -> None:
    """A word that is none of the three is named, with the three."""
    async with opened(tmp_path) as world:
        with pytest.raises(ConfigError, match="context"):
            await world.scripted("x", context="much")


@virtual
async def test_it_stands_before_the_task_and_is_no_part_of_it(tmp_path: Path, folder: Path) -> None:
    """Siblings in one folder begin with the same bytes; the task comes after them, and the query."""
    async with opened(tmp_path / "home") as world:
        agents = [
            await world.spawn(task, cwd=folder, backend=ScriptedBackend([{"echo": True}])) for task in ("Count", "Sum")
        ]
        for agent, task in zip(agents, ("Count", "Sum"), strict=True):
            assert (await agent.query("How many?")).text == "How many?"
            told, asked = conversation(world, agent.id)[0].content
            assert is_project(Message("user", (told,)))
            assert asked == Text(f"Task: {task}\n\nQuery: How many?")
        assert len({conversation(world, agent.id)[0].content[0] for agent in agents}) == 1


@virtual
async def test_a_revived_agent_is_told_what_it_was_told(tmp_path: Path, folder: Path) -> None:
    """Whatever has become of the files: what was said stays as it was, byte for byte, and is not said again."""
    async with World(tmp_path / "home", run="r") as world:
        agent = await world.scripted("one", "two", "three", cwd=folder)
        await agent.query("go")
        before = conversation(world, agent.id)
        (folder / "AGENTS.md").write_text("other rules")
        world.launcher.worker(agent.id).die(9)
        await agent.query("on")
        id = agent.id
    async with World(tmp_path / "home", run="r") as world:
        await (await world.get(id)).query("and on")
        after = conversation(world, id)
        assert after[: len(before)] == before
        assert "other rules" not in str(after)


@virtual
async def test_what_an_agent_remembers_stays_as_it_was_given(tmp_path: Path, folder: Path) -> None:
    """With a history of somebody else's nothing is told unasked; when asked for it stands before the agent's task."""
    history = [user("Hello"), assistant("Hi")]
    async with opened(tmp_path / "home") as world:
        for asked in ({"preset": "work"}, {"context": "brief"}):
            agent = await world.scripted("done", cwd=folder, history=history, **asked)
            await agent.query("go")
            *before, asked_, _ = conversation(world, agent.id)
            assert before == history
            assert is_project(Message("user", asked_.content[:1])) == ("context" in asked)
            assert text_of(asked_).endswith("Query: go")


@virtual
async def test_a_task_that_could_not_be_recorded_is_told_later(tmp_path: Path, folder: Path) -> None:
    """What is told of the project is then on record alone; it is not said twice, and the task comes behind it."""
    async with opened(tmp_path / "home") as world:
        agent = await world.scripted("done", cwd=folder)
        runtime = world.launcher.worker(agent.id)._host._runtime
        assert runtime is not None
        write = runtime.transcript.message

        def record_and_fill(message: Message, *more: Any) -> Any:
            vars(runtime.transcript)["message"] = write
            written = write(message, *more)
            make_room.append(fill(runtime.transcript.log))
            return written

        make_room: list[Any] = []
        vars(runtime.transcript)["message"] = record_and_fill
        with pytest.raises(StoreError, match="disk full"):
            await agent.query("first")
        make_room.pop()()
        world.launcher.worker(agent.id).die(9)
        await agent.query("second")
        told, asked = conversation(world, agent.id)[0].content
        assert is_project(Message("user", (told,)))
        assert asked == Text("Task: work\n\nQuery: second")


@virtual
async def test_agents_below_go_by_the_same_rules(tmp_path: Path, folder: Path) -> None:
    """A child's preset decides by the rules of the one that spawned it, not by what it asks for."""
    async with opened(tmp_path / "home", config=context(minimal="brief")) as world:
        agent = await world.scripted("-", tools=["all"], cwd=folder)
        asked = Spawn("t", preset="minimal", script=("x",), context_rules=ContextConfig(minimal="full"))
        child = (await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)).id
        await (await world.get(child)).query("go")
        assert level(world, child) == "brief"
        asked = Spawn("t", preset="minimal", script=("x",), context="full")
        child = (await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)).id
        await (await world.get(child)).query("go")
        assert level(world, child) == "full"


@virtual
async def test_an_agent_that_reads_no_files_cannot_read_them_by_a_child(tmp_path: Path, folder: Path) -> None:
    """Without read_file it has for its children what it was told itself: more is left out, or refused when named."""
    async with opened(tmp_path / "home", config=context(tools="full")) as world:
        for own, told in (("none", "none"), ("brief", "brief")):
            agent = await world.scripted("-", tools=NEST, cwd=folder, context=own)
            child = (await call(world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", tools=(), script=("x",)))).id
            await (await world.get(child)).query("go")
            assert level(world, child) == told
            with pytest.raises(ToolNotGrantedError, match=r"context 'full' .* not granted read_file"):
                await call(
                    world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", tools=(), script=("x",), context="full")
                )


@virtual
async def test_an_empty_folder_costs_nothing(tmp_path: Path) -> None:
    """Where there is nothing to tell the conversation is as it was without."""
    (tmp_path / "empty").mkdir()
    async with opened(tmp_path / "home") as world:
        agent = await world.scripted("done", cwd=tmp_path / "empty", preset="work")
        await agent.query("go")
        assert conversation(world, agent.id)[0] == user("Task: work\n\nQuery: go")
        assert world.supervisor.tree.agents[agent.id].spec.context == ContextSpec("full")


@virtual
async def test_a_name_that_no_text_can_carry(tmp_path: Path) -> None:
    """A file whose name is no UTF-8 is told with marks for what cannot be told."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a\udcff").touch()
    async with opened(tmp_path / "home") as world:
        agent = await world.scripted("done", cwd=tmp_path / "p")
        await agent.query("go")
        assert "a\N{REPLACEMENT CHARACTER}" in text_of(conversation(world, agent.id)[0])


@virtual
async def test_the_offline_backend_answers_as_without(tmp_path: Path, folder: Path) -> None:
    """Quotations are of files and of what was said, not of what the agent was told at the beginning, also later."""
    (folder / "notes.txt").write_text("The pump shuts off at 82 degrees.\n")
    answers = []
    for context in ("none", "full"):
        async with opened(tmp_path / context) as world:
            agent = await world.spawn("Know the pump", cwd=folder, context=context)
            said = [await agent.query("When does the pump shut off?")]
            world.launcher.worker(agent.id).die(9)
            said += [await agent.query("What is rule 3?"), await agent.query("What did I ask first?")]
            answers.append([(reply.text, reply.tool_calls) for reply in said])
    assert answers[0] == answers[1]
