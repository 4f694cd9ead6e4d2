"""What an agent is told of a turn that the user ended, also when another process, or another root, tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import Abort, AsyncSubagent
from orch_protocol.core.messages import text_of
from orchestrator.root_double import Gate, World, opened
from virtual_clock import virtual

CALL = {"tool": "gate"}
TOLD = "[The user interrupted the turn before this one. Not run, or not to the end: gate."


async def halted(world: World, gate: Gate, *, hard: bool = False) -> AsyncSubagent:
    """Return an agent whose turn was ended while it waited at `gate`."""
    agent = await world.scripted(CALL, "here", "there", tools=[gate.tool()])
    future = agent.submit("Go")
    await gate.called.wait()
    await agent.cancel(hard=hard)
    if not hard:
        assert (await future).unfinished == ("gate",)
    return agent


async def told(agent: AsyncSubagent) -> str:
    """Ask the agent and return how it was asked."""
    await agent.query("And now?")
    return text_of((await agent.show()).messages[-2])


@virtual
async def test_it_is_told_by_the_next_root(tmp_path: Path) -> None:
    """That a turn was ended is read from the transcript: a root that was opened anew tells it just the same."""
    gate = Gate()
    async with World(tmp_path, run="r") as world:
        id = (await halted(world, gate)).id
    async with World(tmp_path, run="r") as world:
        agent = await world.get(id)
        assert (await told(agent)).startswith(TOLD)
        assert await told(agent) == "And now?"


@virtual
@pytest.mark.parametrize("hard", [False, True])
async def test_a_hook_that_ends_the_next_turn_does_not_swallow_it(tmp_path: Path, hard: bool) -> None:
    """Of a turn that a hook ended before it began nothing is on record: the one after that is told."""
    gate = Gate()
    async with World(tmp_path) as world:
        agent = await halted(world, gate, hard=hard)

        @world.on("before_turn", name="too-early")
        async def refuse(event: Any, _ctx: Any) -> Abort | None:
            return Abort("not now") if event.prompt == "Too early" else None

        assert (await agent.query("Too early")).stop_reason == "aborted"
        text = await told(agent)
        assert "turn before this one" in text
        assert "gate." in text
        assert await told(agent) == "And now?"


@virtual
async def test_a_hard_end_is_told_by_the_next_root(tmp_path: Path) -> None:
    """Of a turn that was ended with its process the journal knows who ended it."""
    gate = Gate()
    async with World(tmp_path, run="r") as world:
        id = (await halted(world, gate, hard=True)).id
        folded = world.refolded().agents[id].last
        assert folded is not None
        assert folded.ended
    async with World(tmp_path, run="r") as world:
        agent = await world.get(id)
        assert TOLD in await told(agent)
        assert await told(agent) == "And now?"


@virtual
async def test_a_turn_that_ended_by_itself_is_not_told_of(tmp_path: Path) -> None:
    """After a reply the next prompt is what was asked, no more."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("one", "two")
        await agent.query("Go")
        assert await told(agent) == "And now?"
