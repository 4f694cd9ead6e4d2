"""Steering messages, follow-ups and cancels for busy and idle agents, in real processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orch import ScriptedBackend
from orch_protocol.core.errors import AgentDiedError, ConfigError
from orch_protocol.core.messages import text_of

Open = Any


async def test_busy_agent_is_steered_followed_up_and_cancelled(world: Open) -> None:
    """Steering is delivered before the next step and a follow-up after the turn. A cancel does not end the agent."""
    looking, go_on = asyncio.Event(), asyncio.Event()

    async def look() -> str:
        """Look."""
        looking.set()
        await go_on.wait()
        return "seen"

    script = [{"tool": "look"}, "brief", "summary", {"text": "slow", "sleep": 60}, "after"]
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(script), tools=[look])
    seen: list[Any] = []
    reply = asyncio.ensure_future(agent.query("go", on_event=seen.append))
    await looking.wait()
    await agent.steer("be brief")
    await agent.follow_up("now sum up")
    go_on.set()
    assert (await reply).text == "summary"
    assert [event.n for event in seen] == list(range(1, len(seen) + 1))
    assert [event.text for event in seen if event.kind == "steered"] == ["be brief", "now sum up"]
    assert [event.name for event in seen if event.kind == "tool_call"] == ["look"]
    assert "[Steering]\nbe brief" in [text_of(message) for message in (await agent.show()).messages]
    future = agent.submit("slowly")
    await agent.cancel()  # directly after the query, whose turn may not have begun
    assert (await future).stop_reason == "cancelled"
    assert (await agent.state()).status == "idle"


async def test_hard_cancel_ends_the_process_and_not_the_agent(world: Open) -> None:
    """The query raises AgentDiedError, and the next query is answered."""
    called = asyncio.Event()

    async def hang() -> None:
        """Never return."""
        called.set()
        await asyncio.Event().wait()

    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend([{"tool": "hang"}, "fine"]), tools=[hang])
    future = agent.submit("go")
    await called.wait()
    await agent.cancel(hard=True)
    with pytest.raises(AgentDiedError):
        await future
    assert (await agent.query("again")).text == "fine"


async def test_idle_agent_gets_steering_with_its_next_query(world: Open) -> None:
    """A follow-up to an idle agent becomes a query, and an empty message is an error."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(["one", "two", "three"]))
    await agent.steer("in French")
    assert (await agent.query("hello")).text == "one"
    assert "[Steering]\nin French" in text_of((await agent.show()).messages[0])
    await agent.follow_up("and now?")
    reply = await agent.collect()
    assert reply is not None
    assert reply.text == "two"
    with pytest.raises(ConfigError, match="is empty"):
        await agent.steer(" ")
