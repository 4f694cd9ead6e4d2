"""The tools `chat` and `list_models`, which let an agent ask other models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_doubles import Root, Talk
from orch_protocol.agent.models import Price
from orch_protocol.core.errors import BackendError, BudgetExceededError, ConfigError
from orch_protocol.core.messages import Usage, text_of
from orch_protocol.policy.budget import BudgetAmounts
from orch_protocol.services.models.models import FindModel, ListModels, ModelRow
from orch_protocol.services.policy.budgets import BudgetReservationResult, BudgetSettled, ReserveBudget, SettleBudget
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
    """Return the text that `chat` returns if the model's scripted responses are `said`."""
    return (await CHAT.run(context(Root(ScriptedBackend(said).spec())), input)).text


def row(model: str, *prices: Price, known: bool = True, output: int | None = 8000) -> ModelRow:
    return ModelRow(model, None, "chat", 128_000, output, known, prices, (), None)


async def test_chat_result_is_the_models_text() -> None:
    """`chat` resolves the model through the root and returns the text of the model's response."""
    root = Root(ScriptedBackend(["Paris."]).spec())
    output = await CHAT.run(context(root), {"prompt": "Capital of France?", "model": "acme:large"})
    assert output.text == "Paris."
    assert root.asked == [("find_model", FindModel("acme:large"))]


async def test_chat_sends_only_prompt_and_system_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """`chat` sends no tools and no conversation, and closes its backend also after an error."""
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


async def test_truncated_or_empty_answer_is_marked() -> None:
    """The result of `chat` states that the response ended early or was empty."""
    assert await ask({"text": "So far", "stop_reason": "max_tokens"}, prompt="x") == (
        "So far\n\n[The response ended early: max_tokens.]"
    )
    assert await ask("", prompt="x") == "(an empty response)"


async def test_empty_chat_prompt_is_refused_without_a_request() -> None:
    """A blank prompt raises a ToolError before `chat` asks the root for a model."""
    root = Root()
    with pytest.raises(ToolError, match="prompt is empty"):
        await CHAT.run(context(root), {"prompt": " "})
    assert root.asked == []


async def test_unavailable_model_is_an_error_result() -> None:
    """If the root refuses the model, the result is an error with the message of the root."""
    box = Toolbox([CHAT], context(Root(ConfigError("'a:b' is no model. Models that can be asked: c:d"))))
    talk = Talk(ScriptedBackend([{"tool": "chat", "input": {"prompt": "x", "model": "a:b"}}, "oh"]))
    talk.box = box
    await talk.ask()
    assert talk.texts() == ["'a:b' is no model. Models that can be asked: c:d"]
    assert talk.results()[0].is_error


async def test_chat_usage_counts_for_the_agent() -> None:
    """The usage of a `chat` request is part of the usage in the reply and is recorded with the result."""
    usages = []
    for text in ("x", "x" * 4000):
        talk = Talk(ScriptedBackend([{"tool": "chat", "input": {"prompt": "x"}}, {"text": "done"}]))
        talk.box = Toolbox([CHAT], context(Root(ScriptedBackend([{"text": text}]).spec())))
        usages.append((await talk.ask()).usage)
        assert sum(talk.used, Usage()) == usages[-1]
    assert usages[1].output_tokens - usages[0].output_tokens == 999
    assert usages[0] != Usage()


async def test_models_are_listed_with_limits_and_prices() -> None:
    """Each line of `list_models` shows context size, maximum output and price, which can be free, unknown or tiered."""
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


async def test_empty_model_list_states_the_reason() -> None:
    """An empty list of models says that no provider's key is set."""
    assert "no provider's key is set" in (await LIST.run(context(Root([])), {})).text


WANT = ReserveBudget(BudgetAmounts(usd=1.0), BudgetAmounts(usd=2.0), BudgetAmounts(usd=MOST))


class TestBudget:
    """Requests of `chat` under a budget."""

    @pytest.fixture
    def paid(self, monkeypatch: pytest.MonkeyPatch) -> list[Paid]:
        """The backends that `chat` creates. Each of them costs money."""
        made: list[Paid] = []

        def make(spec: Any, *_: Any) -> Paid:
            made.append(Paid(spec.options["items"]))
            return made[-1]

        monkeypatch.setattr(module, "make_backend", make)
        return made

    async def pay(self, root: Root, budgeted: bool = True) -> str:
        """Call `chat`, with or without a budget in dollars, and return its text."""
        asking = context(root)
        asking.agent_object(BudgetClient).budgeted = frozenset({"usd"} if budgeted else ())
        try:
            return (await CHAT.run(asking, {"prompt": "why?"})).text
        finally:
            await asyncio.sleep(0)

    async def test_chat_is_reserved_and_settled(self, paid: list[Paid]) -> None:
        """The reservation limits the cost of the response, and a response that it truncates is marked."""
        root = Root(
            ScriptedBackend([price(3, "because ")]).spec(),
            BudgetReservationResult("r", BudgetAmounts(usd=2.0)),
            BudgetSettled(),
        )
        assert await self.pay(root) == "because $3\n\n[The response ended early: budget.]"
        assert paid[0].covered == [2.0]
        assert root.asked[1:] == [("reserve", WANT), ("settle", SettleBudget("r", BudgetAmounts(usd=2.0)))]

    async def test_failed_chat_releases_its_reservation(self, paid: list[Paid]) -> None:
        """The reservation of a failed request is settled with an amount of zero."""
        root = Root(
            ScriptedBackend([{"error": "BackendError"}]).spec(),
            BudgetReservationResult("r", BudgetAmounts(usd=2.0)),
            BudgetSettled(),
        )
        with pytest.raises(BackendError):
            await self.pay(root)
        assert (len(paid), root.asked[2:]) == (1, [("settle", SettleBudget("r", BudgetAmounts()))])

    async def test_uncovered_chat_is_not_sent(self, paid: list[Paid]) -> None:
        """If the root refuses the reservation, `chat` raises the error of the root and sends no request."""
        root = Root(ScriptedBackend(["because"]).spec(), BudgetExceededError("$0.1 is left"))
        with pytest.raises(BudgetExceededError, match=r"\$0\.1 is left"):
            await self.pay(root)
        assert paid[0].covered == []

    async def test_chat_without_a_budget_reserves_nothing(self, paid: list[Paid]) -> None:
        """Without a budget, `chat` sends its request without a limit on the cost."""
        root = Root(ScriptedBackend(["because"]).spec())
        assert await self.pay(root, budgeted=False) == "because"
        assert paid[0].covered == [None]
