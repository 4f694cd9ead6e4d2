"""Project descriptions in conversations: their level by preset, configuration and request, and for subagents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import Config, ConfigError, ContextConfig, ScriptedBackend, StoreError, SubagentsConfig, ToolNotGrantedError
from orch.policy.caller import AgentCaller
from orch.services import call
from orch_protocol.agent.project import ContextSpec
from orch_protocol.core.messages import Message, Text, assistant, text_of, user
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_worker.conversation.framing import is_project
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import NEST, World, fill, opened
from virtual_clock import virtual


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a context file."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "AGENTS.md").write_text("".join(f"rule {n}\n" for n in range(900)))
    return tmp_path / "p"


def conversation(world: World, id: str) -> tuple[Message, ...]:
    """Return the agent's conversation as a model sees it."""
    return read_session(Path(world.supervisor.tree.agents[id].spec.folder)).messages


def level(world: World, id: str) -> str:
    """Return the level of the project description in the agent's conversation."""
    first = text_of(conversation(world, id)[0])
    return "full" if "rule 899" in first else "brief" if "rule 3\n" in first else "none"


def context(**more: Any) -> Config:
    """Return a configuration that permits subagents and has the given context settings."""
    return Config(subagents=SubagentsConfig(allow_nested=True, context=ContextConfig(**more)))


@virtual
@pytest.mark.parametrize(
    ("asked", "expected"),
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
async def test_preset_decides_the_project_description_unless_given(
    tmp_path: Path, folder: Path, asked: dict[str, Any], expected: str
) -> None:
    """Each preset has a level, a tool list has `none`, and `context` overrides both; the description occurs once."""
    async with opened(tmp_path / "home") as world:
        agent = await world.scripted("done", "again", cwd=folder, **asked)
        await agent.query("go")
        assert level(world, agent.id) == expected
        await agent.query("go on")
        blocks = [Message("user", (block,)) for each in conversation(world, agent.id) for block in each.content]
        assert sum(map(is_project, blocks)) == (expected != "none")


@virtual
async def test_configuration_overrides_the_presets_description_level(tmp_path: Path, folder: Path) -> None:
    """`ContextConfig` sets the level of presets and of tool lists, and the size of a full description."""
    async with opened(tmp_path / "home", config=context(work="none", tools="full", full_tokens=100)) as world:
        agents = [await world.scripted("done", cwd=folder, **how) for how in ({"preset": "work"}, {"tools": []})]
        for agent in agents:
            await agent.query("go")
        assert level(world, agents[0].id) == "none"
        assert "[AGENTS.md goes on]" in text_of(conversation(world, agents[1].id)[0])


@virtual
async def test_unknown_description_level_is_refused(tmp_path: Path) -> None:
    """An invalid `context` raises ConfigError at the spawn."""
    async with opened(tmp_path) as world:
        with pytest.raises(ConfigError, match="context"):
            await world.scripted("x", context="much")


@virtual
async def test_description_precedes_the_task(tmp_path: Path, folder: Path) -> None:
    """Agents with the same folder and different tasks have the same first block."""
    async with opened(tmp_path / "home") as world:
        agents = [
            await world.spawn(task, cwd=folder, backend=ScriptedBackend([{"echo": True}])) for task in ("Count", "Sum")
        ]
        for agent, task in zip(agents, ("Count", "Sum"), strict=True):
            assert (await agent.query("How many?")).text == "How many?"
            found, asked = conversation(world, agent.id)[0].content
            assert is_project(Message("user", (found,)))
            assert asked == Text(f"Task: {task}\n\nQuery: How many?")
        assert len({conversation(world, agent.id)[0].content[0] for agent in agents}) == 1


@virtual
async def test_revived_agent_keeps_its_description(tmp_path: Path, folder: Path) -> None:
    """A new process and a new root keep the recorded description, even if the context file has changed."""
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
async def test_seeded_agent_gets_a_description_only_on_request(tmp_path: Path, folder: Path) -> None:
    """An agent with a given history has a description only if `context` is given; it then precedes the task."""
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
async def test_unrecorded_task_follows_the_recorded_description(tmp_path: Path, folder: Path) -> None:
    """After a full disk, the next query records the missing task and does not repeat the description."""
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
        found, asked = conversation(world, agent.id)[0].content
        assert is_project(Message("user", (found,)))
        assert asked == Text("Task: work\n\nQuery: second")


@virtual
async def test_child_follows_its_parents_description_rules(tmp_path: Path, folder: Path) -> None:
    """The rules of the parent decide the level of a child. Its spawn request may contain `context`, but no rules."""
    async with opened(tmp_path / "home", config=context(minimal="brief")) as world:
        agent = await world.scripted("-", tools=["all"], cwd=folder)
        asked = Spawn("t", preset="minimal", script=("x",), context_rules=ContextConfig(minimal="full"))
        with pytest.raises(ToolNotGrantedError, match="cannot set 'context_rules'"):
            await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)
        asked = Spawn("t", preset="minimal", script=("x",))
        child = (await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)).id
        await (await world.get(child)).query("go")
        assert level(world, child) == "brief"
        asked = Spawn("t", preset="minimal", script=("x",), context="full")
        child = (await call(world.supervisor, AgentCaller(agent.id), SPAWN, asked)).id
        await (await world.get(child)).query("go")
        assert level(world, child) == "full"


@virtual
async def test_agent_without_read_file_cannot_describe_more_to_a_child(tmp_path: Path, folder: Path) -> None:
    """By default, a child has at most the level of such a parent; a higher level in the request is refused."""
    async with opened(tmp_path / "home", config=context(tools="full")) as world:
        for own, text in (("none", "none"), ("brief", "brief")):
            agent = await world.scripted("-", tools=NEST, cwd=folder, context=own)
            child = (await call(world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", tools=(), script=("x",)))).id
            await (await world.get(child)).query("go")
            assert level(world, child) == text
            with pytest.raises(ToolNotGrantedError, match=r"context 'full' .* not granted read_file"):
                await call(
                    world.supervisor, AgentCaller(agent.id), SPAWN, Spawn("t", tools=(), script=("x",), context="full")
                )


@virtual
async def test_empty_folder_adds_nothing_to_the_conversation(tmp_path: Path) -> None:
    """The first message contains only the task and the query, although the level is `full`."""
    (tmp_path / "empty").mkdir()
    async with opened(tmp_path / "home") as world:
        agent = await world.scripted("done", cwd=tmp_path / "empty", preset="work")
        await agent.query("go")
        assert conversation(world, agent.id)[0] == user("Task: work\n\nQuery: go")
        assert world.supervisor.tree.agents[agent.id].spec.context == ContextSpec("full")


@virtual
async def test_undecodable_file_name_is_replaced(tmp_path: Path) -> None:
    """Undecodable bytes of a file name appear as replacement characters in the description."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a\udcff").touch()
    async with opened(tmp_path / "home") as world:
        agent = await world.scripted("done", cwd=tmp_path / "p")
        await agent.query("go")
        assert "a\N{REPLACEMENT CHARACTER}" in text_of(conversation(world, agent.id)[0])


@virtual
async def test_offline_backend_does_not_quote_the_description(tmp_path: Path, folder: Path) -> None:
    """The offline backend searches files and the conversation only, so a description does not change its answers."""
    (folder / "notes.txt").write_text("The pump shuts off at 82 degrees.\n")
    answers = []
    for context in ("none", "full"):
        async with opened(tmp_path / context) as world:
            agent = await world.spawn("Know the pump", cwd=folder, context=context)
            found = [await agent.query("When does the pump shut off?")]
            world.launcher.worker(agent.id).die(9)
            found += [await agent.query("What is rule 3?"), await agent.query("What did I ask first?")]
            answers.append([(reply.text, reply.tool_calls) for reply in found])
    assert answers[0] == answers[1]
