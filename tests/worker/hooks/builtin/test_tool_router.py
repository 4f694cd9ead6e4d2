"""The tool router, which tells an agent which tools succeeded in earlier turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hook_events import Ctx, call, returned
from orch_protocol.hooks.events import BeforeTurn, Failed, ProviderRequest, ToolCall, TurnEnd
from orch_protocol.hooks.options import HookOptions, ToolRouter
from orch_worker.hooks.builtin import tool_router
from orch_worker.hooks.loader import configured_hooks
from orch_worker.hooks.outcome_ranking import OutcomeLog

QUESTION = "Which port does the pump use?"
TOOLS = ("fetch_url", "grep_files", "read_file")


class Agent:
    """An agent whose turns use the router, with a separate hook object for each agent."""

    def __init__(self, folder: Path, **options: Any) -> None:
        given = HookOptions(tool_router=ToolRouter(**options), evidence=str(folder))
        self.tell, self.measure = configured_hooks(["tool_router"], given)
        self.evidence = OutcomeLog(folder / tool_router.FILE)

    def begins(self, prompt: str = QUESTION) -> Any:
        """Begin a turn. Return the patch of the hook."""
        return call(self.tell, BeforeTurn(prompt=prompt, tools=TOOLS))

    def asked(self, step: int = 0, tail: str = "") -> str:
        """Return the tail of the next request."""
        request = ProviderRequest(provider="p", model="m", system="s", tools=TOOLS, messages=(), tail=tail, step=step)
        patch = call(self.tell, request, Ctx())
        return tail if patch is None else str(patch.tail)

    def uses(self, name: str, *, fails: bool = False, seconds: float = 1.0) -> None:
        """Call a tool."""
        for event in (
            ToolCall(id="1", name=name, input={}, at=100.0),
            returned(name, is_error=fails, at=100.0 + seconds),
        ):
            assert call(self.measure, event) is None

    def turn(self, *tools: str, prompt: str = QUESTION, stop: Any = "end_turn", **options: Any) -> None:
        """Run a whole turn that uses `tools`."""
        self.begins(prompt)
        for tool in tools:
            self.uses(tool, **options)
        assert call(self.measure, TurnEnd(text="4711", stop_reason=stop)) is None


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock to the time of all outcomes."""
    monkeypatch.setattr(tool_router.time, "time", lambda: 0.0)


def test_agent_learns_which_tools_worked_for_similar_questions(tmp_path: Path) -> None:
    """The advice appears only in the first request of a turn with a similar question."""
    for _ in range(3):
        Agent(tmp_path).turn("grep_files")
    agent = Agent(tmp_path)
    agent.begins()
    assert "grep_files did well 80% of the time, 1.0 s a turn" in agent.asked()
    assert agent.asked(step=1) == ""
    agent.begins("How long is the train?")
    assert agent.asked() == ""


def test_tool_advice_precedes_the_existing_tail(tmp_path: Path) -> None:
    for _ in range(3):
        Agent(tmp_path).turn("grep_files")
    agent = Agent(tmp_path)
    agent.begins()
    assert agent.asked(tail="Live subagents: none").endswith(".)\n\nLive subagents: none")


def test_no_advice_below_the_minimum_of_turns(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.turn("grep_files")
    agent.turn("grep_files")
    agent.begins()
    assert agent.asked() == ""


@pytest.mark.parametrize("how", ["the call fails", "the turn does not end", "the turn fails"])
def test_tools_with_failed_calls_or_turns_are_not_recommended(tmp_path: Path, how: str) -> None:
    """A failed call, and a turn that fails or ends at a limit, count against the used tools."""
    agent = Agent(tmp_path)
    for _ in range(4):
        if how == "the turn fails":
            agent.begins()
            agent.uses("grep_files")
            call(agent.measure, Failed(kind="BackendError", message="no"))
        else:
            agent.turn("grep_files", fails=how == "the call fails", stop="end_turn" if "call" in how else "max_turns")
    assert [each.good for each in agent.evidence.outcomes()] == [()] * 4
    agent.begins()
    assert agent.asked() == ""


def test_better_tool_is_recommended_first(tmp_path: Path) -> None:
    """A tool that sometimes failed is listed after a tool that never failed."""
    agent = Agent(tmp_path, most=2)
    for number in range(6):
        agent.turn("fetch_url", fails=number % 3 == 0)
        agent.turn("read_file")
    agent.begins()
    found = agent.asked()
    assert found.index("read_file") < found.index("fetch_url")


def test_equal_tools_are_ordered_by_speed(tmp_path: Path) -> None:
    """Of two tools with equal success, the faster tool is listed first."""
    agent = Agent(tmp_path)
    for _ in range(4):
        agent.turn("fetch_url", seconds=9.0)
        agent.turn("grep_files", seconds=0.1)
    agent.begins()
    found = agent.asked()
    assert found.index("grep_files") < found.index("fetch_url")


def test_narrow_removes_failing_tools_from_the_turn(tmp_path: Path) -> None:
    """Tools are removed only for similar questions, and only with `narrow`."""
    agent = Agent(tmp_path, narrow=True)
    for _ in range(3):
        assert agent.begins() is None
        agent.turn("fetch_url", fails=True)
    patch = agent.begins()
    assert patch.tools == ("grep_files", "read_file")
    assert agent.begins("How long is the train?") is None
    assert Agent(tmp_path).begins() is None
