"""The cost tracker, which sums the usage of all agents by day."""

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
from orch_worker.hooks.builtin.usage_log import MAX_DAYS, DailyUsage, ModelUsage, ToolUsage, UsageLog, day_of
from orch_worker.hooks.loader import configured_hooks

NOON = 1_800_014_400.0
DAY = 86400.0


class Agent:
    """An agent whose turns are counted, with a separate hook object for each agent."""

    def __init__(self, folder: Path, **options: Any) -> None:
        given = HookOptions(cost_tracker=CostTracker(**options), evidence=str(folder))
        [self.hook] = configured_hooks(["cost_tracker"], given)
        self.ctx = Ctx()

    def hears(self, event: Any) -> None:
        """Pass an event to the hook."""
        assert call(self.hook, event, self.ctx) is None

    def asks(self, cost: float, at: float = NOON) -> None:
        """Pass the response of a model to the hook."""
        self.hears(responded("x", usage=Usage(100, 10, cost_usd=cost), at=at))


def test_usage_of_all_agents_is_summed_in_one_file(tmp_path: Path) -> None:
    """The file has tokens and dollars by model, and calls, errors and seconds by tool."""
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


def test_failed_turn_is_counted(tmp_path: Path) -> None:
    """The calls of a failed turn are counted, except for calls that did not run."""
    agent = Agent(tmp_path)
    agent.hears(returned("bash", at=NOON))
    agent.hears(returned("bash", ran=False, at=NOON))
    agent.hears(Failed(kind="BackendError", message="no", at=NOON))
    assert UsageLog(tmp_path / FILE).days()[day_of(NOON)].tools["bash"].calls == 1


def test_usage_is_grouped_by_day_and_old_days_are_dropped(tmp_path: Path) -> None:
    """The newest day comes first, and `MAX_DAYS` days are kept."""
    ledger = UsageLog(tmp_path / FILE)
    for number in range(MAX_DAYS + 2):
        ledger.add(day_of(NOON + number * DAY), DailyUsage(tools={"bash": ToolUsage(1)}))
    days = list(ledger.days())
    assert (len(days), days[0]) == (MAX_DAYS, day_of(NOON + (MAX_DAYS + 1) * DAY))


def test_spending_limit_reminds_once_per_turn(tmp_path: Path) -> None:
    """The spending of other agents counts, and a new day starts at zero."""
    Agent(tmp_path).asks(0.9)
    agent = Agent(tmp_path, warn_usd=1.0)
    agent.asks(0.05)
    assert agent.ctx.said == []
    agent.asks(0.1)
    agent.asks(0.1)
    [found] = agent.ctx.said
    assert "cost $1.05 today, more than the limit of $1.00" in found
    agent.ctx.turn_state = {}
    agent.asks(0.1)
    assert len(agent.ctx.said) == 2
    agent.ctx.turn_state = {}
    agent.asks(0.1, at=NOON + DAY)
    assert len(agent.ctx.said) == 2


class TestCommand:
    """The command `orch costs`."""

    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A separate ORCH_HOME."""
        monkeypatch.setenv("ORCH_HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        return tmp_path

    def test_costs_command_shows_days_models_and_tools(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The output is a table or JSON, with sums and a mark for unknown prices."""
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

    def test_costs_command_without_data_names_the_setting(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["costs"]) == 0
        assert 'set load = ["cost_tracker"] under [hooks]' in capsys.readouterr().out

    def test_unreadable_usage_file_is_an_error(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Neither the command nor the hook overwrites the file."""
        (home / "evidence").mkdir()
        (home / "evidence" / FILE).write_text("{")
        assert run(["costs"]) != 0
        assert "costs.json (Input data was truncated): remove the file" in capsys.readouterr().err
        with pytest.raises(ConfigError, match="cannot read"):
            Agent(home / "evidence").asks(0.1)
        assert (home / "evidence" / FILE).read_text() == "{"

    @pytest.mark.parametrize("days", ["0", "-1"])
    def test_number_of_days_below_one_is_refused(self, days: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["costs", "--days", days]) == 2
        assert f"argument --days: '{days}' is not a whole number above 0" in capsys.readouterr().err
