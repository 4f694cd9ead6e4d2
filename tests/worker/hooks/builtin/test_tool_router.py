"""The tool router: what was measured of tools, and what an agent is told of it."""

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
    """An agent whose turns go through the router; a process of its own each."""

    def __init__(self, folder: Path, **options: Any) -> None:
        given = HookOptions(tool_router=ToolRouter(**options), evidence=str(folder))
        self.tell, self.measure = configured_hooks(["tool_router"], given)
        self.evidence = OutcomeLog(folder / tool_router.FILE)

    def begins(self, prompt: str = QUESTION) -> Any:
        """Begin a turn; return what is said of its tools."""
        return call(self.tell, BeforeTurn(prompt=prompt, tools=TOOLS))

    def asked(self, step: int = 0, tail: str = "") -> str:
        """Return the end of the next request."""
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
        """Play a whole turn that uses `tools`."""
        self.begins(prompt)
        for tool in tools:
            self.uses(tool, **options)
        assert call(self.measure, TurnEnd(text="4711", stop_reason=stop)) is None


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes are of now."""
    monkeypatch.setattr(tool_router.time, "time", lambda: 0.0)


def test_an_agent_is_told_what_did_well_for_such_questions(tmp_path: Path) -> None:
    """After enough turns the first request of the next one says so; later ones, and other questions, do not."""
    for _ in range(3):
        Agent(tmp_path).turn("grep_files")
    agent = Agent(tmp_path)
    agent.begins()
    assert "grep_files did well 80% of the time, 1.0 s a turn" in agent.asked()
    assert agent.asked(step=1) == ""
    agent.begins("How long is the train?")
    assert agent.asked() == ""


def test_other_last_words_stay_last(tmp_path: Path) -> None:
    """What the request ends with anyway comes behind what is said of tools."""
    for _ in range(3):
        Agent(tmp_path).turn("grep_files")
    agent = Agent(tmp_path)
    agent.begins()
    assert agent.asked(tail="Live subagents: none").endswith(".)\n\nLive subagents: none")


def test_nothing_is_said_before_enough_was_measured(tmp_path: Path) -> None:
    """Fewer turns than `least` say nothing."""
    agent = Agent(tmp_path)
    agent.turn("grep_files")
    agent.turn("grep_files")
    agent.begins()
    assert agent.asked() == ""


@pytest.mark.parametrize("how", ["the call fails", "the turn does not end", "the turn fails"])
def test_what_does_not_do_well_is_not_named(tmp_path: Path, how: str) -> None:
    """Calls that fail and turns that come to no good count against the tools that were used."""
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


def test_the_better_tool_is_named_first(tmp_path: Path) -> None:
    """Evidence decides the order: what failed at times comes behind what never did."""
    agent = Agent(tmp_path, most=2)
    for number in range(6):
        agent.turn("fetch_url", fails=number % 3 == 0)
        agent.turn("read_file")
    agent.begins()
    said = agent.asked()
    assert said.index("read_file") < said.index("fetch_url")


def test_of_equals_the_faster_tool_is_named_first(tmp_path: Path) -> None:
    """Seconds decide between tools that do equally well."""
    agent = Agent(tmp_path)
    for _ in range(4):
        agent.turn("fetch_url", seconds=9.0)
        agent.turn("grep_files", seconds=0.1)
    agent.begins()
    said = agent.asked()
    assert said.index("grep_files") < said.index("fetch_url")


def test_narrow_takes_hopeless_tools_from_the_turn(tmp_path: Path) -> None:
    """A tool that kept failing at such questions cannot be used in one; at others it can, and where it is not set."""
    agent = Agent(tmp_path, narrow=True)
    for _ in range(3):
        assert agent.begins() is None
        agent.turn("fetch_url", fails=True)
    patch = agent.begins()
    assert patch.tools == ("grep_files", "read_file")
    assert agent.begins("How long is the train?") is None
    assert Agent(tmp_path).begins() is None
