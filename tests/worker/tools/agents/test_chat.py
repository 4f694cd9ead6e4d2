"""The tools that ask other models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_doubles import Root, Talk
from orch_protocol.agent.models import FindModel, ListModels, ModelRow, Price
from orch_protocol.core.errors import BackendError, BudgetExceededError, ConfigError
from orch_protocol.core.messages import Usage, text_of
from orch_protocol.policy.budget import (
    BudgetAmounts,
    BudgetReservationResult,
    BudgetSettled,
    ReserveBudget,
    SettleBudget,
)
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.tools.agents import chat as module
from orch_worker.tools.api.base import ToolContext, ToolError
from orch_worker.tools.dispatch.budget_client import BudgetClient
from orch_worker.tools.dispatch.presets import load
from orch_worker.tools.dispatch.toolbox import Toolbox
from paid_backend import MOST, Paid, price

CHAT, LIST = load(["chat"])


def context(root: Root) -> ToolContext:
    return ToolContext(Path("/"), call_root=root, seconds=100.0)


async def ask(*said: Any, **input: Any) -> str:
    """Return what `chat` answers when the model says `said`."""
    return (await CHAT.run(context(Root(ScriptedBackend(said).spec())), input)).text


def row(model: str, *prices: Price, known: bool = True, output: int | None = 8000) -> ModelRow:
    return ModelRow(model, None, "chat", 128_000, output, known, prices, (), None)


async def test_the_answer_is_the_models_text() -> None:
    """The root says who the model is; what it says is the result."""
    root = Root(ScriptedBackend(["Paris."]).spec())
    output = await CHAT.run(context(root), {"prompt": "Capital of France?", "model": "acme:large"})
    assert output.text == "Paris."
    assert root.asked == [("find_model", FindModel("acme:large"))]


async def test_the_model_sees_prompt_and_system_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tools, no conversation, no tail; and its connections are given up, whatever happens."""
    made: list[ScriptedBackend] = []
    closed: list[object] = []

    class Watched(ScriptedBackend):
        async def close(self) -> None:
            closed.append(self)

    def make(spec: Any, *_: Any) -> ScriptedBackend:
        made.append(Watched(spec.options["items"]))
        return made[-1]

    monkeypatch.setattr(module, "make_backend", make)
    await ask("fine", prompt="why?", system="Be brief.")
    with pytest.raises(Exception, match="too many"):
        await ask({"error": "RateLimitError", "message": "too many"}, prompt="why?")
    assert (made[0].system, made[0].tools) == ("Be brief.", ())
    assert [text_of(message) for message in made[0].transcript()] == ["why?"]
    assert closed == made


async def test_an_early_end_is_told() -> None:
    """An answer that was cut off says so, and no answer is said to be none."""
    assert await ask({"text": "So far", "stop_reason": "max_tokens"}, prompt="x") == (
        "So far\n\n[The response ended early: max_tokens.]"
    )
    assert await ask("", prompt="x") == "(an empty response)"


async def test_an_empty_prompt_is_refused() -> None:
    """Before any model is asked."""
    root = Root()
    with pytest.raises(ToolError, match="prompt is empty"):
        await CHAT.run(context(root), {"prompt": " "})
    assert root.asked == []


async def test_a_model_that_is_not_allowed_is_an_error_result() -> None:
    """With what the root says there is."""
    box = Toolbox([CHAT], context(Root(ConfigError("'a:b' is no model. Models that can be asked: c:d"))))
    talk = Talk(ScriptedBackend([{"tool": "chat", "input": {"prompt": "x", "model": "a:b"}}, "oh"]))
    talk.box = box
    await talk.ask()
    assert talk.texts() == ["'a:b' is no model. Models that can be asked: c:d"]
    assert talk.results()[0].is_error


async def test_what_the_model_used_is_the_agents_usage() -> None:
    """The reply's usage holds that of every model asked on the way, and it is on record with the result."""
    usages = []
    for said in ("x", "x" * 4000):
        talk = Talk(ScriptedBackend([{"tool": "chat", "input": {"prompt": "x"}}, {"text": "done"}]))
        talk.box = Toolbox([CHAT], context(Root(ScriptedBackend([{"text": said}]).spec())))
        usages.append((await talk.ask()).usage)
        assert sum(talk.used, Usage()) == usages[-1]
    assert usages[1].output_tokens - usages[0].output_tokens == 999
    assert usages[0] != Usage()


async def test_models_are_listed_with_limits_and_prices() -> None:
    """One line each; free and unknown prices say so, and steps of a price are all there."""
    rows = [
        row("a:x", Price(2.5, 10.0, 0.25), Price(5.0, 20.0, above=200_000)),
        row("a:y-*", Price(1.0, 1.0), known=False),
        row("home:z", output=None),
    ]
    root = Root(rows)
    lines = (await LIST.run(context(root), {})).text.splitlines()
    assert root.asked == [("models", ListModels())]
    assert lines[1:] == [
        "a:x | 128000 | 8000 | 2.5, 10, 0.25; 5, 20, ? above 200000 tokens",
        "a:y-* | 128000 | 8000 | unknown",
        "home:z | 128000 | unknown | free",
    ]


async def test_no_model_at_all_is_told() -> None:
    """An empty list says why it is empty."""
    assert "no provider's key is set" in (await LIST.run(context(Root([])), {})).text


WANT = ReserveBudget(BudgetAmounts(usd=1.0), BudgetAmounts(usd=2.0), BudgetAmounts(usd=MOST))


class TestBudget:
    """Questions that are paid for."""

    @pytest.fixture
    def paid(self, monkeypatch: pytest.MonkeyPatch) -> list[Paid]:
        """Let every model that is asked cost money; the backends that were made."""
        made: list[Paid] = []

        def make(spec: Any, *_: Any) -> Paid:
            made.append(Paid(spec.options["items"]))
            return made[-1]

        monkeypatch.setattr(module, "make_backend", make)
        return made

    async def pay(self, root: Root, budgeted: bool = True) -> str:
        """Ask something, from a purse that is counted or not."""
        asking = context(root)
        asking.own(BudgetClient).budgeted = frozenset({"usd"} if budgeted else ())
        try:
            return (await CHAT.run(asking, {"prompt": "why?"})).text
        finally:
            await asyncio.sleep(0)

    async def test_a_question_is_covered_before_and_settled_after(self, paid: list[Paid]) -> None:
        """The answer is cut short by what was put aside, and says so."""
        root = Root(
            ScriptedBackend([price(3, "because ")]).spec(),
            BudgetReservationResult("r", BudgetAmounts(usd=2.0)),
            BudgetSettled(),
        )
        assert await self.pay(root) == "because $3\n\n[The response ended early: budget.]"
        assert paid[0].covered == [2.0]
        assert root.asked[1:] == [("reserve", WANT), ("settle", SettleBudget("r", BudgetAmounts(usd=2.0)))]

    async def test_a_question_that_fails_gives_the_money_back(self, paid: list[Paid]) -> None:
        """The turn goes on without its answer."""
        root = Root(
            ScriptedBackend([{"error": "BackendError"}]).spec(),
            BudgetReservationResult("r", BudgetAmounts(usd=2.0)),
            BudgetSettled(),
        )
        with pytest.raises(BackendError):
            await self.pay(root)
        assert (len(paid), root.asked[2:]) == (1, [("settle", SettleBudget("r", BudgetAmounts()))])

    async def test_a_question_that_is_not_covered_is_not_asked(self, paid: list[Paid]) -> None:
        """The root says why."""
        root = Root(ScriptedBackend(["because"]).spec(), BudgetExceededError("$0.1 is left"))
        with pytest.raises(BudgetExceededError, match=r"\$0\.1 is left"):
            await self.pay(root)
        assert paid[0].covered == []

    async def test_nobody_counts_without_a_budget(self, paid: list[Paid]) -> None:
        """Nothing is put aside then."""
        root = Root(ScriptedBackend(["because"]).spec())
        assert await self.pay(root, budgeted=False) == "because"
        assert paid[0].covered == [None]
