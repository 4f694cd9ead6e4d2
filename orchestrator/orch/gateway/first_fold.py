"""Whether the first fold of a conversation pays.

The first fold adds the recall tools. Tools precede the system text and the conversation, so the server reads the whole
request again. `Archiver` does not know this cost. Later folds keep the tools.
"""

from __future__ import annotations

from typing import Final

from orch_worker.backends.prices import Prices

from ..archival.plan.economics import Change, estimate_gain, expected_calls
from ..config.archival_profiles import ArchivalRules

__all__ = ["can_pay", "pays"]

TOOL_TOKENS: Final = 300
"""Size of the recall tools and of the list of archives."""


def can_pay(rules: ArchivalRules, prices: Prices, tokens: int, beside: int, calls: int) -> bool:
    """Return whether a fold could pay that removed all `tokens` of a conversation after `calls` model calls.

    `beside` is the number of tokens of a request that are not in messages.
    """
    return pays(rules, prices, tokens, tokens, 0, 0, beside, calls)


def pays(
    rules: ArchivalRules, prices: Prices, tokens: int, removed: int, added: int, kept: int, beside: int, calls: int
) -> bool:
    """Return whether a fold pays that replaces `removed` tokens by `added` and keeps `kept` tokens.

    A conversation above the limit of the profile is folded in any case, and so are all conversations in profiles that
    do not compare costs.
    """
    if not rules.gate or tokens > rules.high_tokens:
        return True
    change = Change(removed, added + TOOL_TOKENS, invalidated=kept + beside)
    return estimate_gain(change, expected_calls(calls), prices).pays
