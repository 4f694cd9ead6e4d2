"""Numbered events of a run from its journal, and hooks for events of subagents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from orch import Config, HooksConfig, SubagentsConfig
from orch_protocol.hooks.stages import STAGES
from orchestrator.root_double import World, nesting
from virtual_clock import virtual

SPAWN = {"tool": "spawn_subagent", "input": {"task": "dig", "query": "go"}}
HOOKS = """
from orch import hook

@hook("subagent_spawned", "subagent_finished", name="below")
async def below(event, ctx):
    with open({told!r}, "a") as file:
        file.write(f"{{event.stage}} {{event.name}} of {{ctx.agent_id}} {{getattr(event, 'stop_reason', '')}}\\n")
"""
EXTENSION = """
def register(extension):
    @extension.hook("subagent_spawned")
    async def below(event, ctx):
        with open({told!r}, "a") as file:
            file.write(f"{{event.stage}} of {{ctx.agent_id}}\\n")
"""


@virtual
async def test_events_are_replayed_from_a_number(tmp_path: Path) -> None:
    """Each event has a number, a time and a run. A caller can request only later events or those of one agent."""
    async with World(tmp_path, run="r") as world:
        agent = await world.scripted("one", "two")
        await agent.query("Go")
        first = await world.events()
        assert [event.n for event in first] == list(range(1, len(first) + 1))
        assert {event.run for event in first} == {"r"}
        assert [event.at for event in first] == sorted(event.at for event in first)
        kinds = [event.kind for event in first]
        assert [
            kind for kind in kinds if kind in ("agent_spawned", "worker_ready", "query_started", "query_finished")
        ] == [*("agent_spawned", "worker_ready", "query_started", "query_finished")]
        [asked, answered] = [event for event in first if event.turn]
        assert asked.turn == answered.turn
        assert (answered.agent_id, answered.data["stop_reason"]) == (agent.id, "end_turn")
        assert "one" not in str(answered)
        await agent.query("Go on")
        later = await world.events(first[-1].n)
        assert [(event.n, event.kind) for event in later] == [
            (len(first) + 1, "query_started"),
            (len(first) + 2, "query_finished"),
        ]
        other = await world.scripted("x")
        assert {event.agent_id for event in await world.events(ref=other.id)} == {other.id}


@virtual
async def test_event_numbers_continue_after_a_restart(tmp_path: Path) -> None:
    """Old events keep their numbers."""
    async with World(tmp_path, run="r") as world:
        await (await world.scripted("one")).query("Go")
        before = await world.events()
    async with World(tmp_path, run="r") as world:
        after = await world.events()
        assert after[: len(before)] == before
        assert after[len(before)].n == before[-1].n + 1


@virtual
async def test_events_can_be_awaited_with_a_timeout(tmp_path: Path) -> None:
    """Without new events, the call returns an empty list after the timeout."""
    async with World(tmp_path) as world:
        last = (await world.events())[-1].n
        waiting = asyncio.create_task(world.events(last, timeout=60.0))
        agent = await world.scripted("one")
        first = (await waiting)[0]
        assert (first.kind, first.agent_id) == ("agent_spawned", agent.id)
        last = (await world.events())[-1].n
        assert await world.events(last, timeout=0.5) == []


@virtual
async def test_program_hooks_receive_events_of_every_agent(tmp_path: Path) -> None:
    """The hooks receive events of agents that the program itself has spawned."""
    async with World(tmp_path) as world:
        seen: list[Any] = []

        @world.on("subagent_spawned", "subagent_finished", name="watch")
        async def watch(event: Any, ctx: Any) -> None:
            seen.append((event.stage, event.name, ctx.agent_id))

        assert world.supervisor.hooks.rows == ()
        agent = await world.scripted("one", name="digger")
        await agent.query("Go")
        for _ in range(20):
            await asyncio.sleep(0)
        assert seen == [("subagent_spawned", "digger", agent.id), ("subagent_finished", "digger", agent.id)]


@virtual
async def test_hooks_of_an_extension_receive_events_of_subagents(tmp_path: Path) -> None:
    """The permissions of the extension list the stage."""
    found, folder = tmp_path / "told", tmp_path / "home" / "extensions" / "below"
    folder.mkdir(parents=True)
    (folder / "extension.toml").write_text('name = "below"\n[permissions]\nstages = ["subagent_spawned"]\n')
    (folder / "extension.py").write_text(EXTENSION.format(told=str(found)))
    async with World(tmp_path / "home", config=nesting()) as world:
        agent = await world.scripted(SPAWN, "done", tools=["spawn_subagent", "query_subagent"])
        await agent.query("Go")
        for _ in range(50):
            await asyncio.sleep(0)
    assert found.read_text() == f"subagent_spawned of {agent.id}\n"


@virtual
async def test_parents_hooks_receive_events_of_subagents(tmp_path: Path) -> None:
    """The hooks run in the parent's process."""
    found, file = tmp_path / "told", tmp_path / "below.py"
    file.write_text(HOOKS.format(told=str(found)))
    config = Config(hooks=HooksConfig((str(file),)), subagents=SubagentsConfig(allow_nested=True))
    async with World(tmp_path / "home", config=config) as world:
        agent = await world.scripted(SPAWN, "done", tools=["spawn_subagent", "query_subagent"])
        await agent.query("Go")
        for _ in range(50):
            await asyncio.sleep(0)
        child = (await world.agents())[1].name
    assert found.read_text().splitlines()[0] == f"subagent_spawned {child} of {agent.id} "
    assert f"subagent_finished {child} of {agent.id} end_turn" in found.read_text()


def test_run_events_are_observe_only() -> None:
    """Events of a run report the past, so hooks can only observe them."""
    assert [STAGES[name].kinds for name in ("subagent_spawned", "subagent_finished")] == [("observe",)] * 2
    assert [name for name, stage in STAGES.items() if stage.by_root] == [
        "subagent_spawned",
        "subagent_finished",
        "custom_event",
    ]
