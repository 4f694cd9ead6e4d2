"""The cost tracker: what is counted of all agents, day by day."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hook_events import Ctx, call, responded, returned
from orch.cli import run
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Usage
from orch_protocol.hooks.events import Failed, ToolCall, TurnEnd
from orch_protocol.hooks.options import CostTracker, HookOptions
from orch_worker.hooks.builtin.cost_tracker import FILE
from orch_worker.hooks.builtin.usage_log import KEPT_DAYS, DailyUsage, ModelUsage, ToolUsage, UsageLog, day_of
from orch_worker.hooks.loader import configured_hooks

NOON = 1_800_014_400.0
DAY = 86400.0


class Agent:
    """An agent whose turns are counted; a process of its own each."""

    def __init__(self, folder: Path, **options: Any) -> None:
        given = HookOptions(cost_tracker=CostTracker(**options), evidence=str(folder))
        [self.hook] = configured_hooks(["cost_tracker"], given)
        self.ctx = Ctx()

    def hears(self, event: Any) -> None:
        """Let the hook hear of an event."""
        assert call(self.hook, event, self.ctx) is None

    def asks(self, cost: float, at: float = NOON) -> None:
        """Ask the model."""
        self.hears(responded("x", usage=Usage(100, 10, cost_usd=cost), at=at))


def test_requests_and_calls_of_all_agents_are_added_up(tmp_path: Path) -> None:
    """Models by tokens and dollars, tools by calls, errors and seconds; one file, whoever adds to it."""
    for _ in range(2):
        agent = Agent(tmp_path)
        agent.asks(0.25)
        agent.hears(ToolCall(id="1", name="bash", input={}, at=NOON))
        agent.hears(returned("bash", is_error=True, at=NOON + 2))
        agent.hears(TurnEnd(text="", stop_reason="end_turn", at=NOON + 3))
    [(day, sums)] = UsageLog(tmp_path / FILE).days().items()
    assert day == day_of(NOON)
    assert sums.models == {"scripted:scripted": ModelUsage(2, Usage(200, 20, cost_usd=0.5))}
    assert sums.tools == {"bash": ToolUsage(2, 2, 4.0)}


def test_a_turn_that_fails_is_counted_too(tmp_path: Path) -> None:
    """What was used before a failure was used; calls that did not run were not made."""
    agent = Agent(tmp_path)
    agent.hears(returned("bash", at=NOON))
    agent.hears(returned("bash", ran=False, at=NOON))
    agent.hears(Failed(kind="BackendError", message="no", at=NOON))
    assert UsageLog(tmp_path / FILE).days()[day_of(NOON)].tools["bash"].calls == 1


def test_days_are_apart_and_the_oldest_go(tmp_path: Path) -> None:
    """The last one is first, and so many are kept."""
    ledger = UsageLog(tmp_path / FILE)
    for number in range(KEPT_DAYS + 2):
        ledger.add(day_of(NOON + number * DAY), DailyUsage(tools={"bash": ToolUsage(1)}))
    days = list(ledger.days())
    assert (len(days), days[0]) == (KEPT_DAYS, day_of(NOON + (KEPT_DAYS + 1) * DAY))


def test_past_a_limit_agents_are_told_once_a_turn(tmp_path: Path) -> None:
    """What others have spent counts; the next turn is told again, another day is not."""
    Agent(tmp_path).asks(0.9)
    agent = Agent(tmp_path, warn_usd=1.0)
    agent.asks(0.05)
    assert agent.ctx.said == []
    agent.asks(0.1)
    agent.asks(0.1)
    [said] = agent.ctx.said
    assert "cost $1.05 today, past the $1.00" in said
    agent.ctx.turn_state = {}
    agent.asks(0.1)
    assert len(agent.ctx.said) == 2
    agent.ctx.turn_state = {}
    agent.asks(0.1, at=NOON + DAY)
    assert len(agent.ctx.said) == 2


class TestCommand:
    """`orch costs`."""

    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A home of its own."""
        monkeypatch.setenv("ORCH_HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        return tmp_path

    def test_it_shows_days_models_and_tools(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """As a table, and as data; the days asked for, the sum of their dollars, a price that is missing."""
        for number, known in ((0, True), (1, False)):
            used = ModelUsage(3, Usage(1000, 50, 400, cost_usd=0.5, cost_known=known))
            sums = DailyUsage({"anthropic:x": used}, {"bash": ToolUsage(7, 1, 2.5)})
            UsageLog(home / "evidence" / FILE).add(day_of(NOON + number * DAY), sums)
        assert run(["costs"]) == 0
        out = capsys.readouterr().out
        assert "$0.5000 or more" in out
        assert "$1.0000 in all" in out
        assert "bash     14       2      5.0" in out
        assert run(["costs", "--days", "1", "--json"]) == 0
        [(day, sums)] = json.loads(capsys.readouterr().out).items()
        assert (day, sums["models"]["anthropic:x"]["requests"]) == (day_of(NOON + DAY), 3)

    def test_nothing_counted_says_how_to_count(self, capsys: pytest.CaptureFixture[str]) -> None:
        """It names the setting."""
        assert run(["costs"]) == 0
        assert 'set load = ["cost_tracker"] under [hooks]' in capsys.readouterr().out

    def test_a_file_that_cannot_be_read_is_an_error(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Nothing is thrown away in silence, by the command or the hook."""
        (home / "evidence").mkdir()
        (home / "evidence" / FILE).write_text("{")
        assert run(["costs"]) != 0
        assert "costs.json cannot be read" in capsys.readouterr().err
        with pytest.raises(ConfigError, match="cannot be read"):
            Agent(home / "evidence").asks(0.1)
        assert (home / "evidence" / FILE).read_text() == "{"

    @pytest.mark.parametrize("days", ["0", "-1"])
    def test_days_are_a_number_from_one(self, days: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Others are refused."""
        assert run(["costs", "--days", days]) == 2
        assert f"argument --days: '{days}' is no number from 1" in capsys.readouterr().err
