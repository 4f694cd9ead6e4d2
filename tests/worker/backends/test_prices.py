"""The cost of a request before it is sent, and the longest answer that a budget pays for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.agent.models import Price
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Usage
from orch_protocol.policy.budget import BudgetAmounts
from orch_worker.backends.base import MIN_ANSWER_TOKENS, TYPICAL_ANSWER_TOKENS
from orch_worker.backends.models import Model, ModelFlags
from orch_worker.backends.prices import RequestCost, check_priced, cost, request_cost, without_answer_limits


def model(*prices: Price, **more: Any) -> Model:
    """Return a model with these prices and a context window of 100,000 tokens."""
    return Model("chat", "http://acme", 100_000, prices=prices or (Price(2.0, 10.0),), **more)


def priced(model: Model, sent: int = 1_000, limit: int = 20_000) -> RequestCost:
    """Return the cost of a request to `model` that sends `sent` tokens and limits the answer to `limit` tokens."""
    return request_cost(model, sent, limit)


def longest_answer(request: RequestCost, usd: float) -> int:
    """Return the length of the longest answer that `usd` dollars pay for."""
    return request.max_answer_tokens(BudgetAmounts(usd=usd), frozenset({"usd"}))


class TestReservation:
    """The cost that is reserved for a request."""

    def test_reserved_cost_covers_input_and_longest_answer(self) -> None:
        """The maximum is the cost of the input and of the longest answer that the request allows."""
        estimate = priced(model()).estimate()
        assert estimate.minimum.usd == pytest.approx((1_000 * 2 + MIN_ANSWER_TOKENS * 10) / 1e6)
        assert estimate.expected.usd == pytest.approx((1_000 * 2 + TYPICAL_ANSWER_TOKENS * 10) / 1e6)
        assert estimate.maximum.usd == pytest.approx((1_000 * 2 + 20_000 * 10) / 1e6)

    def test_reserved_cost_includes_failed_attempts(self) -> None:
        """The cost and the tokens of failed attempts are added to the maximum."""
        request = priced(model())
        assert request.estimate(BudgetAmounts(usd=0.5, tokens=7)).maximum.usd == pytest.approx(
            request.estimate().maximum.usd + 0.5
        )
        assert request.estimate(BudgetAmounts(usd=0.5, tokens=7)).maximum.tokens == 1_000 + 20_000 + 7

    def test_reserved_cost_assumes_cache_writes_where_they_cost_more(self) -> None:
        """The reservation assumes that the whole input is written to the cache."""
        assert priced(model(Price(2.0, 10.0, 0.2, 2.5))).request_usd == pytest.approx(1_000 * 2.5 / 1e6)

    def test_reserved_cost_of_long_requests_uses_their_price(self) -> None:
        """The price for long requests also applies to the output."""
        tiers = model(Price(2.0, 10.0), Price(4.0, 20.0, above=5_000))
        assert (priced(tiers, 5_000).usd_per_answer_token, priced(tiers, 5_001).usd_per_answer_token) == (
            10 / 1e6,
            20 / 1e6,
        )

    @pytest.mark.parametrize(
        ("more", "limit", "longest"),
        [
            ({}, 0, 100_000),
            ({}, 20_000, 20_000),
            ({"body": {"max_tokens": 300}}, 20_000, 300),
            ({"body": {"max_completion_tokens": 30_000}}, 0, 30_000),
            ({"body": {"max_output_tokens": 0}}, 20_000, 20_000),
        ],
    )
    def test_longest_answer_follows_the_request_limit(self, more: Any, limit: int, longest: int) -> None:
        """Without a limit, an answer can fill the context window."""
        assert priced(model(**more), limit=limit).maximum == longest

    def test_least_answer_is_capped_by_the_models_output_limit(self) -> None:
        """The minimum and the expected length are at most the maximum length."""
        estimate = priced(model(), limit=300).estimate()
        assert estimate.minimum == estimate.expected == estimate.maximum

    def test_least_answer_includes_the_thinking_budget(self) -> None:
        """The minimum is the sum of the thinking budget in the body and the shortest answer."""
        thinking = model(body={"thinking": {"type": "enabled", "budget_tokens": 9_000}})
        assert priced(thinking).minimum == 9_000 + MIN_ANSWER_TOKENS
        assert priced(thinking).estimate().expected == priced(thinking).estimate().minimum

    def test_free_model_reserves_nothing(self) -> None:
        """A free model reserves tokens and no money."""
        estimate = request_cost(Model("chat", "http://here", 1_000), 10, 10).estimate()
        assert (estimate.maximum.usd, estimate.maximum.tokens) == (0.0, 20)

    @pytest.mark.parametrize(
        "unknown",
        [model(price_known=False), model(Price(None, 1.0)), model(Price(1.0)), model(Price(1, 1), Price(2, above=9))],
    )
    def test_model_with_incomplete_prices_has_no_reservation(self, unknown: Model) -> None:
        """A model with a lower bound or a partial price list can only reserve tokens."""
        with pytest.raises(ConfigError, match="is unknown"):
            request_cost(unknown, 10, 10)
        assert request_cost(unknown, 10, 10, priced=False).estimate().maximum == BudgetAmounts(tokens=20)

    def test_ceiling_reservation_is_at_least_the_charge(self) -> None:
        """A reservation at the ceiling covers the cost for each kind of tokens."""
        for unknown in (
            model(price_known=False),
            model(Price(2.0, 1.0, None, 3.0), flags=ModelFlags(cache_markers=True)),
        ):
            ceiled = msgspec.structs.replace(unknown, ceiling=50.0)
            limit = request_cost(ceiled, 100, 10).estimate().maximum.usd
            for used in (Usage(100, 10), Usage(0, 10, 100), Usage(0, 10, 0, 100)):
                assert cost(ceiled, used).cost_usd <= limit + 1e-12
            check_priced(BackendSpec("acme", "a", msgspec.to_builtins(ceiled)))


@given(st.integers(0, 90_000), st.integers(1, 64_000), st.floats(0, 2), st.floats(0, 1))
def test_affordable_answer_never_exceeds_the_amount(sent: int, limit: int, usd: float, spent: float) -> None:
    """The cost of an affordable answer is within the amount, and a quoted amount pays for the quoted tokens."""
    request = priced(model(), sent, limit)
    tokens = longest_answer(request, usd)
    assert tokens == 0 or request.minimum <= tokens <= request.maximum
    if tokens:
        assert request.request_usd + tokens * request.usd_per_answer_token <= usd + 1e-9
    estimate = request.estimate(BudgetAmounts(usd=spent))
    assert longest_answer(request, estimate.maximum.usd - spent) == request.maximum
    assert longest_answer(request, estimate.minimum.usd - spent) >= request.minimum


@given(st.integers(0, 90_000), st.integers(1, 64_000), st.integers(0, 200_000))
def test_affordable_tokens_never_exceed_the_reservation(sent: int, limit: int, tokens: int) -> None:
    """The sum of input and answer is within the reserved tokens."""
    request = priced(model(), sent, limit)
    answer = request.max_answer_tokens(BudgetAmounts(tokens=tokens), frozenset({"tokens"}))
    assert answer == 0 or (request.minimum <= answer <= request.maximum and sent + answer <= tokens)
    both = request.max_answer_tokens(
        BudgetAmounts(usd=request.request_usd, tokens=tokens), frozenset({"usd", "tokens"})
    )
    assert both == 0


def test_free_output_is_unlimited_once_the_input_is_paid() -> None:
    request = priced(model(Price(2.0, 0.0)))
    assert (longest_answer(request, request.request_usd), longest_answer(request, request.request_usd / 2)) == (
        request.maximum,
        0,
    )


def test_user_limit_on_the_answer_is_replaced() -> None:
    """Only the field that limits the answer is removed from the body."""
    assert without_answer_limits(model(body={"max_tokens": 5, "top_k": 1})).body == {"top_k": 1}


class TestCheckPriced:
    """Models for which a budget can be set."""

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"items": ["hi"]},
            msgspec.to_builtins(Model("chat", "http://here", 1_000)),
            msgspec.to_builtins(model()),
            msgspec.to_builtins(model(Price(1, 2, 0.1, 1.2), flags=ModelFlags(cache_markers=True))),
        ],
    )
    def test_free_and_priced_models_pass_the_price_check(self, options: dict[str, Any]) -> None:
        """A model that costs nothing needs no price."""
        check_priced(BackendSpec("acme", "a", options))

    @pytest.mark.parametrize(
        "unknown",
        [model(price_known=False), model(Price(1.0)), model(Price(1, 2), flags=ModelFlags(cache_markers=True))],
    )
    def test_unpriced_model_error_shows_a_working_override(self, unknown: Model) -> None:
        """The JSON text in the error sets the price if it is added to models.json."""
        with pytest.raises(ConfigError, match=r"cannot set a budget for acme:a.*models\.json") as raised:
            check_priced(BackendSpec("acme", "a", msgspec.to_builtins(unknown)))
        shown = str(raised.value).partition("models.json: ")[2].replace("USD", "1.5")
        [price] = msgspec.json.decode(shown)["models"]["acme"]["a"]["prices"]
        priced_model = msgspec.structs.replace(unknown, prices=(msgspec.convert(price, Price),), price_known=True)
        check_priced(BackendSpec("acme", "a", msgspec.to_builtins(priced_model)))
