"""The notice about a turn that the user interrupted, also from another process or another root."""

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
    """Return an agent whose turn was cancelled while it waited at `gate`."""
    agent = await world.scripted(CALL, "here", "there", tools=[gate.tool()])
    future = agent.submit("Go")
    await gate.called.wait()
    await agent.cancel(hard=hard)
    if not hard:
        assert (await future).unfinished == ("gate",)
    return agent


async def prompt_sent(agent: AsyncSubagent) -> str:
    """Query the agent and return the prompt in its conversation."""
    await agent.query("And now?")
    return text_of((await agent.show()).messages[-2])


@virtual
async def test_next_root_reports_an_interrupted_turn(tmp_path: Path) -> None:
    """The next root reads the interruption from the transcript."""
    gate = Gate()
    async with World(tmp_path, run="r") as world:
        id = (await halted(world, gate)).id
    async with World(tmp_path, run="r") as world:
        agent = await world.get(id)
        assert (await prompt_sent(agent)).startswith(TOLD)
        assert await prompt_sent(agent) == "And now?"


@virtual
@pytest.mark.parametrize("hard", [False, True])
async def test_turn_aborted_by_a_hook_does_not_consume_the_notice(tmp_path: Path, hard: bool) -> None:
    """The aborted turn is not recorded, so the turn after it has the notice."""
    gate = Gate()
    async with World(tmp_path) as world:
        agent = await halted(world, gate, hard=hard)

        @world.on("before_turn", name="too-early")
        async def refuse(event: Any, _ctx: Any) -> Abort | None:
            return Abort("not now") if event.prompt == "Too early" else None

        assert (await agent.query("Too early")).stop_reason == "aborted"
        text = await prompt_sent(agent)
        assert "turn before this one" in text
        assert "gate." in text
        assert await prompt_sent(agent) == "And now?"


@virtual
async def test_next_root_reports_who_ended_a_hard_cancelled_turn(tmp_path: Path) -> None:
    """The journal records that the user ended the turn together with its process."""
    gate = Gate()
    async with World(tmp_path, run="r") as world:
        id = (await halted(world, gate, hard=True)).id
        folded = world.refolded().agents[id].last
        assert folded is not None
        assert folded.ended
    async with World(tmp_path, run="r") as world:
        agent = await world.get(id)
        assert TOLD in await prompt_sent(agent)
        assert await prompt_sent(agent) == "And now?"


@virtual
async def test_finished_turn_causes_no_notice(tmp_path: Path) -> None:
    """The next prompt is sent without a notice."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("one", "two")
        await agent.query("Go")
        assert await prompt_sent(agent) == "And now?"
