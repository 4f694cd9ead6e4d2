"""The prices by which the rules decide whether archiving pays."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from orch_protocol.agent.spec import BackendSpec
from orch_worker.backends.models import Model, load
from orch_worker.backends.prices import Prices, prices_for, prices_of
from orch_worker.backends.registry import complete

USUAL = Prices()
KEYS = {"ANTHROPIC_API_KEY", "MOONSHOT_API_KEY", "OPENAI_API_KEY"}


def model(*, markers: bool = False, known: bool = True, **price: float) -> Model:
    """Return a model with these prices."""
    prices = ({"input": 2.0, **price},)
    about = {"api": "chat", "base_url": "http://h", "context": 10, "prices": prices, "price_known": known}
    return prepared({**about, "flags": {"cache_markers": markers}})


def prepared(about: dict[str, Any]) -> Model:
    """Return the model that `about` describes."""
    return msgspec.convert(about, Model)


def test_prices_are_multiples_of_the_uncached_input_price() -> None:
    """Prices of cached and output tokens are divided by the price of uncached input."""
    assert prices_of(model(output=10.0, cache_read=0.5, cache_write=3.0)) == Prices(0.25, 1.5, 1.0, 5.0)


def test_missing_cache_prices_are_estimated() -> None:
    """The default is the input price or, for a provider with cache markers, the usual ratio."""
    assert prices_of(model(output=6.0)) == Prices(1.0, 1.0, 1.0, 3.0)
    assert prices_of(model(output=6.0, markers=True)) == Prices(USUAL.read, USUAL.write, 1.0, 3.0)
    assert prices_of(model(cache_read=0.2)) == Prices(0.1, 1.0, 1.0, USUAL.output)


def test_unknown_prices_have_default_ratios() -> None:
    """Free models have the default ratios, too, because each token read takes time."""
    assert prices_of(model(output=90.0, cache_read=1.0, known=False)) == USUAL
    assert prices_of(prepared({"api": "chat", "base_url": "http://h", "context": 10})) == USUAL
    assert prices_for(BackendSpec("extractive"), 5) == USUAL


@pytest.mark.parametrize(
    ("name", "tokens", "prices"),
    [
        ("anthropic:claude-haiku-4-5", 0, Prices(0.1, 1.25, 1.0, 5.0)),
        ("anthropic:claude-haiku-5-5", 200_000, Prices(0.1, 1.25, 1.0, 5.0)),
        ("moonshot:kimi-k3", 0, Prices(0.1, 1.0, 1.0, 5.0)),
        ("openai:gpt-4", 0, Prices(1.0, 1.0, 1.0, 2.0)),
    ],
)
def test_prices_come_from_the_spec_of_the_agent(name: str, tokens: int, prices: Prices) -> None:
    """A request above a model's size threshold has the prices for long requests."""
    spec = complete(BackendSpec(*name.split(":")), load(), {}, KEYS)
    found = prices_for(spec, tokens)
    assert [found.read, found.write, found.fresh, found.output] == pytest.approx(
        [prices.read, prices.write, prices.fresh, prices.output]
    )
