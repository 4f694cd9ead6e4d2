"""The receipt of the gateway as a table."""

from __future__ import annotations

import time
from typing import Final

from ...config import paths
from ...gateway.receipt import PROVIDERS, ConversationReceipt, Receipt
from ...render.columns import format_columns, output_width, wrap
from ...render.terminal import count, pluralize, safe, to_json

__all__ = ["receipt_text", "savings_text"]

COLUMNS: Final = ["LAST", "MODEL", "REQS", "RECALL", "COST", "WITHOUT", "SAVED", "SEEN", "SENT", "READ", "WRITE"]
LISTED: Final = 10
MODEL_WIDTH: Final = 19
NO_REQUESTS: Final = "no requests yet: orch proxy"
EXPLANATION: Final = (
    "SEEN: tokens that clients sent\n"
    "SENT: tokens that servers got, with cache READ and WRITE\n"
    "COST: from the usage that servers report\n"
    "WITHOUT: the cost of what clients sent"
)


def receipt_text(receipt: Receipt, conversations: int = LISTED) -> str:
    """Return the last `conversations` of a receipt and the total, with at most 100 columns."""
    total = receipt.total
    if not total.requests:
        return NO_REQUESTS
    listed = receipt.conversations[:conversations]
    rows = [[_time(each), _short(each.model), *_numbers(each)] for each in listed]
    table = format_columns([COLUMNS, *rows, ["total", "", *_numbers(total)]], frozenset(range(2, len(COLUMNS))))
    unpriced = next((each for each in receipt.conversations if each.unpriced_requests), None)
    return "\n".join([table, "", EXPLANATION, *_gaps(total, unpriced)])


def savings_text(sums: ConversationReceipt) -> str:
    """Return what archiving saved, in one or more lines."""
    if not sums.requests:
        return "no requests"
    tokens = f"{count(sums.sent_tokens)} of {count(sums.received_tokens)} tokens sent"
    line = f"{pluralize(sums.requests, 'request')}, {tokens}, {pluralize(sums.recalls, 'recall')}"
    if sums.unpriced_requests + sums.uncounted_requests < sums.requests:
        line += f"; cost {_usd(sums.cost_usd)} instead of {_usd(sums.cost_without_usd)}"
        is_cheaper = sums.cost_usd <= sums.cost_without_usd
        line += f" ({_saved(sums)} saved)" if is_cheaper else ", because archiving pays in later requests only"
    return "\n".join([line, *_gaps(sums)])


def _time(sums: ConversationReceipt) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(sums.last_request_at))


def _short(model: str) -> str:
    name = safe(model)
    return name if len(name) <= MODEL_WIDTH else f"{name[: MODEL_WIDTH - 1]}~"


def _numbers(sums: ConversationReceipt) -> list[str]:
    tokens = (sums.received_tokens, sums.sent_tokens, sums.cache_read_tokens, sums.cache_write_tokens)
    costs = [_usd(sums.cost_usd), _usd(sums.cost_without_usd), _saved(sums)]
    if sums.unpriced_requests + sums.uncounted_requests == sums.requests:
        costs = ["?", "?", ""]
    return [count(sums.requests), count(sums.recalls), *costs, *map(count, tokens)]


def _usd(amount: float) -> str:
    if amount >= 1000:
        return f"${count(round(amount))}"
    return f"${amount:.2f}" if amount >= 10 else f"${amount:.4f}"


def _saved(sums: ConversationReceipt) -> str:
    if not sums.cost_without_usd:
        return ""
    return f"{100 - 100 * sums.cost_usd / sums.cost_without_usd:.0f}%"


def _gaps(sums: ConversationReceipt, unpriced: ConversationReceipt | None = None) -> list[str]:
    """Return lines about what the costs do not contain. `unpriced` is a conversation whose model has no price."""
    texts = []
    if sums.unpriced_requests:
        number = pluralize(sums.unpriced_requests, "request")
        texts.append(f"Costs do not contain {number} to models whose price is unknown.")
        texts.append(f"Add the price in US dollars per million tokens to {paths.home() / 'models.json'}:")
        texts.append(_price_example(unpriced or sums))
    if sums.uncounted_requests:
        number = pluralize(sums.uncounted_requests, "request")
        texts.append(f"Tokens and costs do not contain {number} for which the server reported no usage.")
    return [line for text in texts for line in wrap(text, output_width())]


def _price_example(sums: ConversationReceipt) -> str:
    """Return the entry of models.json for the model of `sums`."""
    provider = PROVIDERS.get(sums.api, "PROVIDER")
    return to_json({"models": {provider: {sums.model or "MODEL": {"prices": [{"input": 3, "output": 15}]}}}})
