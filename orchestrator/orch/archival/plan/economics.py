"""The expected savings and costs of archiving, at the prices of a prompt cache. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from orch_worker.backends.prices import Prices

__all__ = [
    "MIN_CALLS",
    "Account",
    "Change",
    "Gain",
    "cost_without_archiving",
    "estimate_gain",
    "expected_calls",
    "summary_cost",
]


MIN_CALLS: Final = 8
SUMMARY_PROMPT_TOKENS: Final = 200
MAX_LOSS: Final = 0.004
"""The share of the cost without archiving that archiving may have cost in addition at any time."""


class Change(Struct, frozen=True):
    """A change to a conversation. All sizes are in tokens.

    `removed` is the number of removed tokens, and `added` the number of inserted tokens. `uncached` counts the removed
    tokens that no request has contained so far. `invalidated` counts the remaining tokens after the change; these
    tokens lose their place in the prompt cache.
    """

    removed: int
    added: int
    invalidated: int = 0
    uncached: int = 0


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


class Account(Struct, frozen=True):
    """What archiving has saved so far, and what the conversation would have cost without archiving.

    Both are in uncached input tokens. `saved` is negative if archiving has cost more than it has saved. The next model
    call counts as made.
    """

    saved: float = 0.0
    without: float = 0.0

    @property
    def margin(self) -> float:
        """What archiving may cost beyond its own savings: 0.4 % of the cost without archiving."""
        return MAX_LOSS * self.without

    def allows(self, gain: Gain) -> bool:
        """Return whether archiving has cost at most `margin` in total after a change with `gain`.

        `gain` is the gain over the next model call. The conversation may end after any call.
        """
        return gain.net + self.saved + self.margin >= 0


def cost_without_archiving(messages: Iterable[tuple[int, int, int]], beside: int, prices: Prices) -> float:
    """Return a lower bound of the cost of a conversation without archives, up to the next model call.

    `messages` contains, for each message, its tokens without archiving, the number of model calls that it stands for,
    and the number of its tokens that a model call returned. `beside` is the number of other tokens of each request.
    """
    total, cost = beside, beside * (prices.write - prices.read)
    for tokens, calls, answered in messages:
        cost += calls * total * prices.read + tokens * prices.write + answered * prices.output
        total += tokens
    return cost


def expected_calls(past_calls: int) -> int:
    """Return the expected number of further model calls.

    The expected number equals the number of calls so far, but is at least 8.
    """
    return max(MIN_CALLS, past_calls)


def summary_cost(removed: int, context: int, summary: int, prices: Prices, *, unsent: int = 0) -> float:
    """Return the lowest cost of a summary. `summary` is its length in tokens, and 0 means no summary.

    There are two ways to request a summary. A request within the conversation reads the whole `context` from the prompt
    cache, and sends the last `unsent` tokens of the turn. A separate request sends only the tokens to remove
    (`removed`), without a cache. Both contain a prompt.
    """
    if not summary:
        return 0.0
    within = context * prices.read + unsent * prices.fresh
    return min(within, removed * prices.fresh) + SUMMARY_PROMPT_TOKENS * prices.fresh + summary * prices.output


def estimate_gain(change: Change, calls: int, prices: Prices) -> Gain:
    """Return the gain of `change` over the next `calls` model calls, without the cost of summaries.

    The gain may be negative. Does not raise.
    """
    saved = (change.removed - change.added) * prices.read * calls
    rewrite_cost = change.invalidated * (prices.write - prices.read) + (change.added - change.uncached) * prices.write
    return Gain(saved, rewrite_cost)
