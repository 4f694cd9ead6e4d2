"""What is said to an agent while it works, or while it does nothing: heard, and a cancel obeyed, in real processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orch import ScriptedBackend
from orch_protocol.core.errors import AgentDiedError, ConfigError
from orch_protocol.core.messages import text_of

Open = Any


async def test_a_working_agent_is_steered_followed_up_and_cancelled(world: Open) -> None:
    """What is said is heard at its moment, told by events, and recorded; cancelling ends a turn, not an agent."""
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
    await agent.cancel()  # right behind the query: it may not have begun
    assert (await future).stop_reason == "cancelled"
    assert (await agent.state()).status == "idle"


async def test_a_hard_cancel_ends_the_process_and_not_the_agent(world: Open) -> None:
    """The query fails, the next one goes on."""
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


async def test_an_idle_agent_hears_with_its_next_query_and_a_follow_up_is_one(world: Open) -> None:
    """Nothing that was said is lost because nobody worked."""
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
