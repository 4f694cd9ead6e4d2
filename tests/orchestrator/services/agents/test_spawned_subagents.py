"""Subagents that a model starts: permission, model, and the list of live subagents in the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch import Budget, ScriptedBackend, SubagentsConfig
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import NEST, nesting, opened

SPAWN = {"tool": "spawn_subagent", "input": {"task": "Look at the pumps.", "name": "pumps"}}


async def results(world_folder: str) -> list[str]:
    """Return the texts of the tool results in the session in `world_folder`."""
    return [str(message) for message in read_session(Path(world_folder)).messages if "ToolResult(" in str(message)]


async def test_live_subagents_are_shown_without_archival(tmp_path: Path) -> None:
    """The volatile part of the prompt lists running subagents, and how to query them."""
    async with opened(tmp_path, config=nesting()) as o:
        lead = await o.scripted(SPAWN, "done", tools=NEST)
        assert "# Live Subagents" not in (await lead.prompt_parts()).render("volatile")
        await lead.query("go")
        (child,) = [row for row in await o.agents() if row.name == "pumps"]
        block = (await lead.prompt_parts()).render("volatile")
        assert "# Live Subagents\n\nYour subagents. query_subagent asks one by its id" in block
        assert f"- id: {child.id} | task: Look at the pumps." in block
        await (await o.get(child.id)).kill()
        assert "# Live Subagents" not in (await lead.prompt_parts()).render("volatile")
        await lead.kill()


async def test_disabled_subagents_hide_their_tools(tmp_path: Path) -> None:
    """If `subagents.enabled` is off, no agent or session has tools for subagents, but users can start both."""
    async with opened(tmp_path, config=nesting(enabled=False)) as o:
        agent = await o.scripted(SPAWN, "done", tools=[*NEST, "read_file"])
        assert (await agent.state()).tools == ("read_file",)
        await agent.query("go")
        state = await agent.state()
        assert "spawn_subagent" in (await results(state.folder))[0]
        assert [row.name for row in await o.agents()] == [state.name]
        talk = await o.session(tools=["agents"])
        assert (await talk.state()).tools == ()


AGENTS = set(NEST)


@pytest.mark.parametrize(
    ("options", "held"),
    [
        ({}, AGENTS),
        ({"preset": "work"}, AGENTS),
        ({"preset": "minimal"}, set()),
        ({"tools": ["read_file"]}, set()),
        ({"preset": "work", "tools": ["read_file"]}, AGENTS),
        ({"preset": "minimal", "tools": ["agents"]}, AGENTS),
    ],
)
async def test_agents_that_talk_with_a_person_can_use_subagents(
    tmp_path: Path, options: dict[str, Any], held: set[str]
) -> None:
    """Their default preset and the presets `investigate` and `work` include the tools; other agents do not get them."""
    async with opened(tmp_path) as o:
        talk, agent = await o.session(**options), await o.spawn("t", **options)
        named = AGENTS if "agents" in options.get("tools", ()) else set()
        assert AGENTS.intersection((await talk.state()).tools) == held
        assert AGENTS.intersection((await agent.state()).tools) == named


async def test_tools_are_added_to_a_named_preset(tmp_path: Path) -> None:
    """The agent keeps the name of the preset. Without a preset, a list of tools replaces the default preset."""
    async with opened(tmp_path) as o:
        both = await (await o.spawn("t", preset="minimal", tools=["bash", "read_file"])).state()
        alone = await (await o.spawn("t", tools=["bash", "read_file"])).state()
        assert (both.preset, set(both.tools)) == ("minimal", {"list_files", "grep_files", "read_file", "bash"})
        assert (alone.preset, set(alone.tools)) == ("", {"bash", "read_file"})


async def test_a_session_uses_subagents_without_configuration(tmp_path: Path) -> None:
    """The subagent has the default preset without tools for subagents. It is charged to the budget of the session."""
    ask = {"tool": "spawn_subagent", "input": {"task": "Look.", "name": "scout", "query": "What is there?"}}
    again = {"tool": "spawn_subagent", "input": {"task": "Look."}}
    async with opened(tmp_path) as o:
        talk = await o.session(backend=ScriptedBackend([ask, again, "done"]), budget=Budget(max_processes=2))
        assert (await talk.run("go")).text == "done"
        scout = await (await o.get("scout")).state()
        assert (scout.parent_id, scout.depth, AGENTS.intersection(scout.tools)) == (talk.id, 1, set())
        first, second = await results((await talk.state()).folder)
        assert '"name":"scout"' in first.replace("\\", "")
        assert "processes" in second
        assert len(await o.agents()) == 2


@pytest.mark.parametrize(
    ("model", "allowed", "outcome"),
    [
        ("ollama:small", (), "not allowed for subagents; allowed: scripted, extractive (subagents.models"),
        ("anthropic:claude", ("ollama:*",), "'anthropic:claude' is not allowed for subagents"),
        ("ollama:small", ("ollama:*",), '"name"'),
    ],
)
async def test_model_of_a_subagent_is_on_the_allow_list(
    tmp_path: Path, model: str, allowed: tuple[str, ...], outcome: str
) -> None:
    """A model can choose only models of `subagents.models` for its subagents. Keys are checked after the list."""
    config = nesting()
    config = msgspec.structs.replace(config, subagents=msgspec.structs.replace(config.subagents, models=allowed))
    call = msgspec.to_builtins(SPAWN) | {"input": {"task": "t", "model": model}}
    async with opened(tmp_path, config=config) as o:
        lead = await o.scripted(call, "done", tools=NEST)
        await lead.query("go")
        assert outcome in (await results((await lead.state()).folder))[0]
        assert o.supervisor.tree.agents[lead.id].spec.subagent_models == allowed


def test_allow_list_defaults_to_the_own_model() -> None:
    """`subagents.models` is empty by default: a subagent has the model of its parent."""
    assert SubagentsConfig().models == ()
