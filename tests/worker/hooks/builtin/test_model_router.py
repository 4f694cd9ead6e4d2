"""The model router: which model answers, and what was measured of each."""

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
    """An agent whose turns go through the router; a process of its own each."""

    def __init__(self, folder: Path, *models: str, **options: Any) -> None:
        settings = ModelRouter(models or (DEAR, CHEAP), **options)
        given = HookOptions(model_router=settings, evidence=str(folder))
        self.choose, self.measure = configured_hooks(["model_router"], given)
        self.evidence = OutcomeLog(folder / model_router.FILE)

    def did(self, model: str, *, cost: float, good: bool = True, about: str = QUESTION) -> None:
        """Keep what came of a turn that `model` answered."""
        self.evidence.add(
            RecordedOutcome(0.0, question_terms(about), (model,), (model,) if good else (), {model: cost})
        )

    def begins(self, prompt: str = QUESTION) -> str:
        """Begin a turn; return the model that answers it."""
        return str(call(self.choose, BeforeTurn(prompt=prompt, model=DEAR)).model)

    def ends(self, stop: Any = "end_turn", cost: float = 0.0) -> None:
        """End the turn."""
        event = TurnEnd(text="4711", stop_reason=stop, usage=Usage(cost_usd=cost))
        assert call(self.measure, event) is None


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes are of now."""
    monkeypatch.setattr(model_router.time, "time", lambda: 0.0)


def test_each_model_is_tried_and_the_one_that_does_well_goes_on(tmp_path: Path) -> None:
    """The first fails, so another one is tried; that one does well, and answers from then on, in every process."""
    agent = Agent(tmp_path)
    assert agent.begins() == DEAR
    agent.ends("max_turns")
    assert agent.begins() == CHEAP
    agent.ends()
    assert Agent(tmp_path).begins() == CHEAP


def test_of_two_that_do_well_the_cheaper_one_answers(tmp_path: Path) -> None:
    """Dollars decide where the outcomes do not; without thrift they do not count."""
    agent = Agent(tmp_path)
    for _ in range(3):
        agent.did(DEAR, cost=0.50)
        agent.did(CHEAP, cost=0.01)
    assert agent.begins() == CHEAP
    assert Agent(tmp_path, thrift=0.0).begins() == DEAR


def test_a_dear_model_answers_where_the_cheap_one_fails(tmp_path: Path) -> None:
    """What the cheap one could not do goes to the dear one; other questions do not suffer from that."""
    agent, other = Agent(tmp_path), "How long is the train?"
    for _ in range(4):
        agent.did(CHEAP, cost=0.01, good=False)
        agent.did(CHEAP, cost=0.01, about=other)
        for about in (QUESTION, other):
            agent.did(DEAR, cost=0.50, about=about)
    assert agent.begins() == DEAR
    assert agent.begins(other) == CHEAP


def test_calls_that_fail_speak_against_a_model(tmp_path: Path) -> None:
    """A turn most of whose calls failed did not do well, whatever its end."""
    agent = Agent(tmp_path)
    agent.begins()
    for fails in (True, True, False):
        call(agent.measure, returned(is_error=fails))
    agent.ends()
    assert [each.good for each in agent.evidence.outcomes()] == [()]


@pytest.mark.parametrize("stop", sorted(model_router.NOT_ITS_DOING))
def test_ends_that_say_nothing_of_the_model_are_left_out(tmp_path: Path, stop: str) -> None:
    """What a person, a limit or a hook ended is no evidence."""
    agent = Agent(tmp_path)
    agent.begins()
    agent.ends(stop)
    assert agent.evidence.outcomes() == ()


def test_failures_count_when_they_are_the_models(tmp_path: Path) -> None:
    """A provider's error is evidence against its model; a budget that is spent is none."""
    agent = Agent(tmp_path)
    agent.begins()
    call(agent.measure, Failed(kind="BudgetExceededError", message="spent"))
    assert agent.evidence.outcomes() == ()
    agent.begins()
    call(agent.measure, Failed(kind="RateLimitError", message="later"))
    [outcome] = agent.evidence.outcomes()
    assert (outcome.tried, outcome.good) == ((DEAR,), ())


def test_one_model_is_no_choice() -> None:
    """Without two models the hook is refused where it is loaded, and says what to set."""
    with pytest.raises(ConfigError, match=r"hooks.model_router.models is to name two models or more"):
        configured_hooks(["model_router"], HookOptions())
