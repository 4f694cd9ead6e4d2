"""The expected savings and costs of archiving, at the prices of a prompt cache. No I/O."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from orch_worker.backends.prices import Prices

__all__ = [
    "MIN_CALLS",
    "Change",
    "Gain",
    "estimate_gain",
    "expected_calls",
    "summary_cost",
]


MIN_CALLS: Final = 8


class Change(Struct, frozen=True):
    """A change to a conversation. All sizes are in tokens.

    `removed` is the number of removed tokens, and `added` the number of inserted tokens. `uncached` counts the removed
    tokens that no request has contained so far. `invalidated` counts the tokens after the change; these tokens lose
    their place in the prompt cache. `tail` counts the uncached tokens that every later request contains in addition.
    """

    removed: int
    added: int
    invalidated: int = 0
    uncached: int = 0
    tail: int = 0


class Gain(Struct, frozen=True):
    """The expected savings and the cost of a change, in uncached input tokens."""

    saved: float
    cost: float

    @property
    def pays(self) -> bool:
        """Whether the savings exceed the cost."""
        return self.saved > self.cost

    @property
    def net(self) -> float:
        """Savings minus cost."""
        return self.saved - self.cost


def expected_calls(past_calls: int) -> int:
    """Return the expected number of further model calls.

    The expected number equals the number of calls so far, but is at least 8.
    """
    return max(MIN_CALLS, past_calls)


def summary_cost(removed: int, context: int, summary: int, prices: Prices) -> float:
    """Return the lowest cost of a summary. `summary` is its length in tokens, and 0 means no summary.

    There are two ways to request a summary. A request within the conversation reads the whole `context` from the prompt
    cache. A separate request sends only the tokens to remove (`removed`), without a cache.
    """
    if not summary:
        return 0.0
    return min(context * prices.read, removed * prices.fresh) + summary * prices.output


def estimate_gain(change: Change, calls: int, prices: Prices) -> Gain:
    """Return the gain of `change` over the next `calls` model calls, without the cost of summaries.

    The gain may be negative. Does not raise.
    """
    saved = (change.removed - change.added) * prices.read * calls
    rewrite_cost = change.invalidated * (prices.write - prices.read) + (change.added - change.uncached) * prices.write
    tail_cost = change.tail * prices.fresh * calls
    return Gain(saved, rewrite_cost + tail_cost)
