"""What a request may cost before it is made, and how long an answer some money buys."""

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
from orch_worker.backends.base import ENOUGH_ANSWER, LEAST_ANSWER
from orch_worker.backends.cost_estimate import RequestCost, check_priced, fare, narrowed
from orch_worker.backends.models import Model, ModelFlags, cost


def model(*prices: Price, **more: Any) -> Model:
    """Return a model with these prices, of 100,000 tokens."""
    return Model("chat", "http://acme", 100_000, prices=prices or (Price(2.0, 10.0),), **more)


def priced(model: Model, sent: int = 1_000, most: int = 20_000) -> RequestCost:
    """Return the fare of a request, which has one."""
    return fare(model, sent, most)


def buys(fare: RequestCost, usd: float) -> int:
    """Return how long an answer so much money buys."""
    return fare.longest(BudgetAmounts(usd=usd), frozenset({"usd"}))


class TestFare:
    """Tokens into what they cost at most."""

    def test_what_is_sent_and_the_longest_answer(self) -> None:
        """A request may cost all that it sends and the most tokens that it lets the model answer with."""
        quote = priced(model()).quote()
        assert quote.least.usd == pytest.approx((1_000 * 2 + LEAST_ANSWER * 10) / 1e6)
        assert quote.enough.usd == pytest.approx((1_000 * 2 + ENOUGH_ANSWER * 10) / 1e6)
        assert quote.most.usd == pytest.approx((1_000 * 2 + 20_000 * 10) / 1e6)

    def test_what_failed_before_is_paid_too(self) -> None:
        """Money that failed requests took comes on top."""
        fare = priced(model())
        assert fare.quote(BudgetAmounts(usd=0.5, tokens=7)).most.usd == pytest.approx(fare.quote().most.usd + 0.5)
        assert fare.quote(BudgetAmounts(usd=0.5, tokens=7)).most.tokens == 1_000 + 20_000 + 7

    def test_all_that_is_sent_may_be_written_to_the_cache(self) -> None:
        """Which may cost more than sending it, and is what the first request with it costs."""
        assert priced(model(Price(2.0, 10.0, 0.2, 2.5))).sent == pytest.approx(1_000 * 2.5 / 1e6)

    def test_long_requests_have_a_price_of_their_own(self) -> None:
        """Past its size the higher price counts, for the answer too."""
        tiers = model(Price(2.0, 10.0), Price(4.0, 20.0, above=5_000))
        assert (priced(tiers, 5_000).token, priced(tiers, 5_001).token) == (10 / 1e6, 20 / 1e6)

    @pytest.mark.parametrize(
        ("more", "most", "longest"),
        [
            ({}, 0, 100_000),
            ({}, 20_000, 20_000),
            ({"body": {"max_tokens": 300}}, 20_000, 300),
            ({"body": {"max_completion_tokens": 30_000}}, 0, 30_000),
            ({"body": {"max_output_tokens": 0}}, 20_000, 20_000),
        ],
    )
    def test_the_longest_answer_is_what_the_request_says(self, more: Any, most: int, longest: int) -> None:
        """The user's own word for it counts; where nobody says anything an answer may fill the context."""
        assert priced(model(**more), most=most).most == longest

    def test_a_model_that_may_not_answer_at_length_needs_no_more(self) -> None:
        """The least and the usual length are never more than the longest."""
        quote = priced(model(), most=300).quote()
        assert quote.least == quote.enough == quote.most

    def test_thinking_comes_before_the_answer(self) -> None:
        """A body that asks for so many tokens of thought needs them besides the least answer."""
        thinking = model(body={"thinking": {"type": "enabled", "budget_tokens": 9_000}})
        assert priced(thinking).least == 9_000 + LEAST_ANSWER
        assert priced(thinking).quote().enough == priced(thinking).quote().least

    def test_what_is_free_has_none(self) -> None:
        """A model without a price costs nothing when that is known."""
        quote = fare(Model("chat", "http://here", 1_000), 10, 10).quote()
        assert (quote.most.usd, quote.most.tokens) == (0.0, 20)

    @pytest.mark.parametrize(
        "unknown",
        [model(price_known=False), model(Price(None, 1.0)), model(Price(1.0)), model(Price(1, 1), Price(2, above=9))],
    )
    def test_without_a_price_there_is_none(self, unknown: Model) -> None:
        """A floor is no price, and neither is half of one."""
        with pytest.raises(ConfigError, match="not known"):
            fare(unknown, 10, 10)
        assert fare(unknown, 10, 10, priced=False).quote().most == BudgetAmounts(tokens=20)

    def test_with_a_ceiling_it_is_no_less_than_what_is_charged(self) -> None:
        """What has no price is put aside at the ceiling, whatever of the request comes from a cache."""
        for unknown in (
            model(price_known=False),
            model(Price(2.0, 1.0, None, 3.0), flags=ModelFlags(cache_markers=True)),
        ):
            ceiled = msgspec.structs.replace(unknown, ceiling=50.0)
            most = fare(ceiled, 100, 10).quote().most.usd
            for used in (Usage(100, 10), Usage(0, 10, 100), Usage(0, 10, 0, 100)):
                assert cost(ceiled, used).cost_usd <= most + 1e-12
            check_priced(BackendSpec("acme", "a", msgspec.to_builtins(ceiled)))


@given(st.integers(0, 90_000), st.integers(1, 64_000), st.floats(0, 2), st.floats(0, 1))
def test_money_buys_no_more_than_it_pays(sent: int, most: int, usd: float, spent: float) -> None:
    """The answer that an amount buys costs no more than that, and the quoted amounts buy what they were quoted for."""
    fare = priced(model(), sent, most)
    tokens = buys(fare, usd)
    assert tokens == 0 or fare.least <= tokens <= fare.most
    if tokens:
        assert fare.sent + tokens * fare.token <= usd + 1e-9
    quote = fare.quote(BudgetAmounts(usd=spent))
    assert buys(fare, quote.most.usd - spent) == fare.most
    assert buys(fare, quote.least.usd - spent) >= fare.least


@given(st.integers(0, 90_000), st.integers(1, 64_000), st.integers(0, 200_000))
def test_tokens_buy_no_more_than_there_are(sent: int, most: int, tokens: int) -> None:
    """What is sent and the answer together are no more than was put aside, whatever that costs."""
    fare = priced(model(), sent, most)
    answer = fare.longest(BudgetAmounts(tokens=tokens), frozenset({"tokens"}))
    assert answer == 0 or (fare.least <= answer <= fare.most and sent + answer <= tokens)
    both = fare.longest(BudgetAmounts(usd=fare.sent, tokens=tokens), frozenset({"usd", "tokens"}))
    assert both == 0


def test_a_free_answer_is_as_long_as_it_likes() -> None:
    """Where the answer costs nothing, what is sent has to be paid, and is enough."""
    fare = priced(model(Price(2.0, 0.0)))
    assert (buys(fare, fare.sent), buys(fare, fare.sent / 2)) == (fare.most, 0)


def test_the_users_word_for_the_length_gives_way() -> None:
    """Of the body only what bounds the answer is left out."""
    assert narrowed(model(body={"max_tokens": 5, "top_k": 1})).body == {"top_k": 1}


class TestCheckPriced:
    """Who can have a budget."""

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
    def test_no_model_a_free_one_and_one_with_prices(self, options: dict[str, Any]) -> None:
        """What costs nothing needs no price."""
        check_priced(BackendSpec("acme", "a", options))

    @pytest.mark.parametrize(
        "unknown",
        [model(price_known=False), model(Price(1.0)), model(Price(1, 2), flags=ModelFlags(cache_markers=True))],
    )
    def test_the_error_says_how_to_give_a_price(self, unknown: Model) -> None:
        """What it shows, laid over what is known, does."""
        with pytest.raises(ConfigError, match=r"cannot set a budget for acme:a.*models\.json") as raised:
            check_priced(BackendSpec("acme", "a", msgspec.to_builtins(unknown)))
        shown = str(raised.value).partition("(orch daemon stop): ")[2].replace("USD", "1.5")
        [price] = msgspec.json.decode(shown)["models"]["acme"]["a"]["prices"]
        mended = msgspec.structs.replace(unknown, prices=(msgspec.convert(price, Price),), price_known=True)
        check_priced(BackendSpec("acme", "a", msgspec.to_builtins(mended)))
