"""Whether taking something out of a conversation is expected to pay, at the prices of a prompt cache. No I/O."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec
from orch_worker.backends.models import Model, price_at

__all__ = [
    "LEAST_CALLS",
    "Change",
    "Gain",
    "Prices",
    "estimate_gain",
    "expected_calls",
    "prices_for",
    "prices_of",
    "summary_cost",
]


LEAST_CALLS: Final = 8


class Prices(Struct, frozen=True):
    """What a token costs, in uncached input tokens: read from the cache, written to it, plain, and as output."""

    read: float = 0.1
    write: float = 1.25
    fresh: float = 1.0
    output: float = 5.0


class Change(Struct, frozen=True):
    """A change to a conversation, in tokens.

    `removed` leaves it, of which `uncached` was in no request yet; `added` takes its place; `behind` stays behind the
    place, so that its part of the cache is lost. `tail` is what every later request carries uncached because of it.
    `context` is the whole request before; `summary` how long the model's summary is, 0 when none is asked for.
    """

    removed: int
    added: int
    behind: int = 0
    uncached: int = 0
    tail: int = 0
    context: int = 0
    summary: int = 0


class Gain(Struct, frozen=True):
    """What a change is expected to save and to cost, in uncached input tokens."""

    saved: float
    cost: float

    @property
    def pays(self) -> bool:
        """Whether more is saved than spent."""
        return self.saved > self.cost

    @property
    def net(self) -> float:
        """What remains of the savings."""
        return self.saved - self.cost


def expected_calls(so_far: int) -> int:
    """Return how many model calls are still to be expected: as many as there were, and at least 8."""
    return max(LEAST_CALLS, so_far)


def summary_cost(removed: int, context: int, summary: int, prices: Prices) -> float:
    """Return what a summary of `summary` tokens costs where asking is cheapest.

    That is beside the conversation, whose `context` is cached, or apart from it, where what is `removed` is read anew.
    """
    if not summary:
        return 0.0
    return min(context * prices.read, removed * prices.fresh) + summary * prices.output


def estimate_gain(change: Change, calls: int, prices: Prices) -> Gain:
    """Return what `change` brings over the next `calls` model calls. Never raises; may be negative."""
    saved = (change.removed - change.added) * prices.read * calls
    rewrite = change.behind * (prices.write - prices.read) + (change.added - change.uncached) * prices.write
    extra = change.tail * prices.fresh * calls
    return Gain(saved, rewrite + extra + summary_cost(change.removed, change.context, change.summary, prices))


# --- What a model's tokens cost in units of its own uncached input ---

DEFAULT_PRICES: Final = Prices()


def prices_for(spec: BackendSpec, tokens: int = 0) -> Prices:
    """Return the prices of the complete `spec`'s model for requests of that many tokens; usual ones for no model."""
    return prices_of(msgspec.convert(spec.options, Model), tokens) if "api" in spec.options else DEFAULT_PRICES


def prices_of(model: Model, tokens: int = 0) -> Prices:
    """Return the prices of `model` for requests of that many tokens; usual ones for what is not known, or free.

    Where nothing marks what is to be cached, a cached token without a price of its own costs what any other does.
    """
    price = price_at(model, tokens)
    unit = price.input if model.price_known else None
    if not unit:
        return DEFAULT_PRICES
    otherwise = DEFAULT_PRICES if model.flags.cache_markers else Prices(read=1.0, write=1.0)

    return Prices(
        read=otherwise.read if price.cache_read is None else price.cache_read / unit,
        write=otherwise.write if price.cache_write is None else price.cache_write / unit,
        output=DEFAULT_PRICES.output if price.output is None else price.output / unit,
    )
