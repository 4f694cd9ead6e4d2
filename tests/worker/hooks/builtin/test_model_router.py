"""The model router, which chooses the model of a turn by the outcomes of earlier turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hook_events import call, returned
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Usage
from orch_protocol.hooks.events import BeforeTurn, Failed, TurnEnd
from orch_protocol.hooks.options import HookOptions, ModelRouter
from orch_worker.hooks.builtin import model_router
from orch_worker.hooks.loader import configured_hooks
from orch_worker.hooks.outcome_ranking import OutcomeLog, RecordedOutcome, question_terms

QUESTION = "Which port does the pump use?"
DEAR, CHEAP = "anthropic:dear", "openai:cheap"


class Agent:
    """An agent whose turns use the router, with a separate hook object for each agent."""

    def __init__(self, folder: Path, *models: str, **options: Any) -> None:
        settings = ModelRouter(models or (DEAR, CHEAP), **options)
        given = HookOptions(model_router=settings, evidence=str(folder))
        self.choose, self.measure = configured_hooks(["model_router"], given)
        self.evidence = OutcomeLog(folder / model_router.FILE)

    def did(self, model: str, *, cost: float, good: bool = True, about: str = QUESTION) -> None:
        """Record the outcome of a turn that `model` answered."""
        self.evidence.add(
            RecordedOutcome(0.0, question_terms(about), (model,), (model,) if good else (), {model: cost})
        )

    def begins(self, prompt: str = QUESTION) -> str:
        """Begin a turn. Return the model of the turn."""
        return str(call(self.choose, BeforeTurn(prompt=prompt, model=DEAR)).model)

    def ends(self, stop: Any = "end_turn", cost: float = 0.0) -> None:
        """End the turn."""
        event = TurnEnd(text="4711", stop_reason=stop, usage=Usage(cost_usd=cost))
        assert call(self.measure, event) is None


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock to the time of all outcomes."""
    monkeypatch.setattr(model_router.time, "time", lambda: 0.0)


def test_each_model_is_tried_and_the_best_is_kept(tmp_path: Path) -> None:
    """The choice is shared by all processes."""
    agent = Agent(tmp_path)
    assert agent.begins() == DEAR
    agent.ends("max_turns")
    assert agent.begins() == CHEAP
    agent.ends()
    assert Agent(tmp_path).begins() == CHEAP


def test_equal_outcomes_choose_the_cheaper_model(tmp_path: Path) -> None:
    """With `thrift=0`, the cost has no influence."""
    agent = Agent(tmp_path)
    for _ in range(3):
        agent.did(DEAR, cost=0.50)
        agent.did(CHEAP, cost=0.01)
    assert agent.begins() == CHEAP
    assert Agent(tmp_path, thrift=0.0).begins() == DEAR


def test_expensive_model_is_used_where_the_cheap_one_fails(tmp_path: Path) -> None:
    """Other questions still use the cheap model."""
    agent, other = Agent(tmp_path), "How long is the train?"
    for _ in range(4):
        agent.did(CHEAP, cost=0.01, good=False)
        agent.did(CHEAP, cost=0.01, about=other)
        for about in (QUESTION, other):
            agent.did(DEAR, cost=0.50, about=about)
    assert agent.begins() == DEAR
    assert agent.begins(other) == CHEAP


def test_turn_with_mostly_failed_calls_counts_as_a_failure(tmp_path: Path) -> None:
    """The stop reason of the turn has no influence."""
    agent = Agent(tmp_path)
    agent.begins()
    for fails in (True, True, False):
        call(agent.measure, returned(is_error=fails))
    agent.ends()
    assert [each.good for each in agent.evidence.outcomes()] == [()]


@pytest.mark.parametrize("stop", sorted(model_router.NEUTRAL_STOPS))
def test_turns_ended_by_user_limit_or_hook_are_not_counted(tmp_path: Path, stop: str) -> None:
    """Such turns give no information about the model."""
    agent = Agent(tmp_path)
    agent.begins()
    agent.ends(stop)
    assert agent.evidence.outcomes() == ()


def test_provider_errors_count_against_the_model(tmp_path: Path) -> None:
    """An exceeded budget does not count against the model."""
    agent = Agent(tmp_path)
    agent.begins()
    call(agent.measure, Failed(kind="BudgetExceededError", message="spent"))
    assert agent.evidence.outcomes() == ()
    agent.begins()
    call(agent.measure, Failed(kind="RateLimitError", message="later"))
    [outcome] = agent.evidence.outcomes()
    assert (outcome.tried, outcome.good) == ((DEAR,), ())


def test_single_model_is_refused() -> None:
    """Loading the hook with fewer than two models raises an error that names the setting."""
    with pytest.raises(ConfigError, match=r"hooks.model_router.models must name at least two models"):
        configured_hooks(["model_router"], HookOptions())
