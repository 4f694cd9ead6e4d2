"""Features that become active or inactive while an agent lives: hooks, budgets, watchers and taint labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.errors import BudgetExceededError
from orch_protocol.policy.budget import Budget
from orch_worker.tools.api.base import tool
from orchestrator.root_double import opened


async def test_hook_registered_between_turns_takes_part_in_the_next(tmp_path: Path) -> None:
    """A hook changes the turns between its registration and its removal."""
    async with opened(tmp_path) as o:
        agent = await o.scripted({"loop": [{"echo": True}]})
        assert (await agent.query("one")).text == "one"

        def shout(event: Any, _ctx: Any) -> Any:
            return event.patch(prompt=event.prompt.upper())

        o.register_hook(shout, "before_turn", name="shout")
        assert (await agent.query("two")).text == "TWO"
        o.unregister_hook("shout")
        assert (await agent.query("three")).text == "three"


async def test_budget_set_between_turns_limits_the_next(tmp_path: Path) -> None:
    """After a budget is set for a run that had none, model calls are reserved and counted."""
    async with opened(tmp_path) as o:
        agent = await o.scripted({"loop": ["ok"]})
        await agent.query("one")
        assert o.supervisor.tree.agents.has_budgets is False
        await o.budget.set(budget=Budget(max_model_calls=2))
        await agent.query("two")
        with pytest.raises(BudgetExceededError):
            await agent.query("three")


async def test_watcher_of_a_later_turn_receives_its_events(tmp_path: Path) -> None:
    """A turn with `on_event` reports its events, and the turn after it has no watcher."""
    async with opened(tmp_path) as o:
        agent = await o.scripted({"loop": ["ok"]})
        await agent.query("one")
        kinds: list[str] = []
        await agent.query("two", on_event=lambda event: kinds.append(event.kind))
        assert kinds == ["text", "message"]
        assert o.supervisor.watchers.active is False
        await agent.query("three")
        assert kinds == ["text", "message"]


async def test_label_of_a_tool_result_is_in_the_reply_of_the_same_turn(tmp_path: Path) -> None:
    """The first taint label of an agent is in the reply of the turn that adds it, and in later replies."""

    @tool(bits=["untrusted"])
    def look() -> str:
        """Look."""
        return "seen"

    async with opened(tmp_path) as o:
        agent = await o.scripted("plain", {"tool": "look"}, "seen it", "still", tools=[look])
        assert (await agent.query("one")).marks == ()
        assert [mark.bit for mark in (await agent.query("two")).marks] == ["untrusted"]
        assert [mark.bit for mark in (await agent.query("three")).marks] == ["untrusted"]
