"""The cost tracker, which warns agents about the cost of all agents on a day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hook_events import Ctx, call, responded
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Usage
from orch_protocol.hooks.options import CostTracker, HookOptions
from orch_worker.hooks.builtin.cost_tracker import FILE
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


def test_spending_limit_reminds_once_per_turn(tmp_path: Path) -> None:
    """The spending of other agents counts, and a new day starts at zero."""
    Agent(tmp_path, warn_usd=9.0).asks(0.9)
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


def test_hook_without_a_limit_writes_nothing(tmp_path: Path) -> None:
    """`orch costs` reads the sessions, so that the hook has nothing to count."""
    Agent(tmp_path / "evidence").asks(0.9)
    assert not (tmp_path / "evidence").exists()


def test_unreadable_file_is_an_error_and_is_kept(tmp_path: Path) -> None:
    """The error names the file."""
    (tmp_path / FILE).write_text("{")
    with pytest.raises(ConfigError, match=f"cannot read .*{FILE}"):
        Agent(tmp_path, warn_usd=1.0).asks(0.1)
    assert (tmp_path / FILE).read_text() == "{"
