"""Prices: the cost of a response, the cost of a request before it is sent, and prices relative to uncached input."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Usage
from orch_protocol.policy.budget import BudgetAmounts

from .base import MIN_ANSWER_TOKENS, TYPICAL_ANSWER_TOKENS, CostEstimate
from .models import Model

__all__ = [
    "Prices",
    "RequestCost",
    "check_priced",
    "cost",
    "dollars",
    "prices_for",
    "prices_of",
    "request_cost",
    "without_answer_limits",
]

NOTHING: Final = BudgetAmounts()
ONE_HOUR_FACTOR: Final = 1.6
"""A cache write for one hour costs twice the input price, and one for five minutes 1.25 times the input price."""
OUTPUT_FIELDS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def dollars(tokens: float, per_million: float) -> float:
    """Return the price of `tokens` tokens in USD."""
    return tokens * per_million / 1e6


def cost(model: Model, usage: Usage, written_1h: int = 0) -> Usage:
    """Return `usage` with its cost at the prices of `model`.

    `written_1h` is the part of the cache writes that are for one hour. If a price is unknown, the model's ceiling is
    charged. Without a ceiling, the cost is a lower bound.
    """
    price = model.charged_at(usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens)
    parts = (
        (usage.input_tokens, price.input),
        (usage.output_tokens, price.output),
        (usage.cache_read_tokens, price.input if price.cache_read is None else price.cache_read),
        (usage.cache_write_tokens, price.cache_write),
    )
    written = usage.cache_write_tokens * (price.input or 0.0) if price.cache_write is None else 0.0
    written += written_1h * (price.cache_write or 0.0) * (ONE_HOUR_FACTOR - 1)
    known = model.is_free or (model.price_known and all(each is not None for tokens, each in parts if tokens))
    usd = dollars(written + sum(tokens * (each or 0.0) for tokens, each in parts), 1.0)
    if model.ceiling is not None:
        return msgspec.structs.replace(usage, cost_usd=usd, cost_known=False, ceiling_usd=usd)
    return msgspec.structs.replace(usage, cost_usd=usd, cost_known=known)


class RequestCost(Struct, frozen=True):
    """The cost of a request and its answer. `tokens` is the size of the request.

    The request costs `request_usd`. The answer has `minimum` to `maximum` tokens; each of them costs
    `usd_per_answer_token`.
    """

    tokens: int
    request_usd: float
    usd_per_answer_token: float
    minimum: int
    maximum: int

    def estimate(self, before: BudgetAmounts = NOTHING) -> CostEstimate:
        """Return the estimate for the request.

        `before` contains amounts that were already used and are added to the estimate.
        """
        lengths = (self.minimum, min(max(TYPICAL_ANSWER_TOKENS, self.minimum), self.maximum), self.maximum)
        minimum, expected, limit = (before + self._amounts_for(length) for length in lengths)
        return CostEstimate(minimum, expected, limit)

    def max_answer_tokens(self, limit: BudgetAmounts, kinds: frozenset[str]) -> int:
        """Return the length in tokens of the longest answer that the amounts in `limit` cover.

        Only the kinds of budgets in `kinds` are considered. Return 0 if the answer would be too short to be useful.
        """
        tokens = self.maximum
        if "usd" in kinds and self.usd_per_answer_token > 0:
            # The small addition compensates for rounding errors, so that a reservation for n tokens covers n tokens.
            tokens = min(tokens, int((limit.usd - self.request_usd) / self.usd_per_answer_token + 1e-6))
        elif "usd" in kinds and limit.usd < self.request_usd:
            return 0
        if "tokens" in kinds:
            tokens = min(tokens, int(limit.tokens - self.tokens))
        return tokens if tokens >= self.minimum else 0

    def _amounts_for(self, length: int) -> BudgetAmounts:
        return BudgetAmounts(usd=self.request_usd + length * self.usd_per_answer_token, tokens=self.tokens + length)


def request_cost(model: Model, sent: int, maximum: int, *, priced: bool = True) -> RequestCost:
    """Return the cost of a request of at most `sent` tokens. If `priced` is False, the price is 0.

    `maximum` is the default limit of the answer; 0 means the maximum of the model. Raise ConfigError if `priced` is
    True, the price is unknown and no price is assumed.
    """
    asked = [limit for field in OUTPUT_FIELDS if isinstance(limit := model.body.get(field), int) and limit > 0]
    max_answer_tokens = min([*asked, maximum or model.context, model.context])
    thinking = model.body.get("thinking")
    thought = thinking.get("budget_tokens", 0) if isinstance(thinking, dict) else 0
    minimum = min(MIN_ANSWER_TOKENS + thought, max_answer_tokens)
    if not priced or model.is_free:
        return RequestCost(sent, 0.0, 0.0, minimum, max_answer_tokens)
    price = model.charged_at(sent)
    if not _is_covered(model) or price.input is None or price.output is None:
        raise ConfigError("the price of the model is unknown")
    # In the worst case, the whole request is written to the cache, and nothing is read from the cache.
    per_million = max(price.input, price.cache_write or 0.0, price.cache_read or 0.0)
    return RequestCost(sent, dollars(sent, per_million), dollars(1, price.output), minimum, max_answer_tokens)


def without_answer_limits(model: Model) -> Model:
    """Return `model` without answer limits in its request body."""
    body: dict[str, Any] = {name: value for name, value in model.body.items() if name not in OUTPUT_FIELDS}
    return msgspec.structs.replace(model, body=body)


def check_priced(spec: BackendSpec) -> None:
    """Raise ConfigError unless the price of the model in the complete `spec` is known or assumed.

    A budget requires a price.
    """
    if "api" not in spec.options:
        return  # The backend has no model.
    model = msgspec.convert(spec.options, Model)
    if not model.is_free and not _is_covered(model):
        name = f"{spec.provider}:{spec.model}" if spec.model else spec.provider
        needed = '"input": USD, "output": USD' + (', "cache_read": USD, "cache_write": USD' * model.flags.cache_markers)
        raise ConfigError(
            f"cannot set a budget for {name}: its price is unknown. Set budget.unknown_price in config.toml to the USD "
            "per million tokens, or add its prices to $ORCH_HOME/models.json: "
            f'{{"models": {{"{spec.provider}": {{"{spec.model}": {{"prices": [{{{needed}}}]}}}}}}}}'
        )


def _is_covered(model: Model) -> bool:
    return model.is_priced or model.ceiling is not None


class Prices(Struct, frozen=True):
    """Prices of a token relative to an uncached input token: cache read, cache write, uncached input and output."""

    read: float = 0.1
    write: float = 1.25
    fresh: float = 1.0
    output: float = 5.0

    def units(self, *, cached: int = 0, written: int = 0, fresh: int = 0, output: int = 0) -> float:
        """Return the price of a request, in uncached input tokens."""
        return cached * self.read + written * self.write + fresh * self.fresh + output * self.output


DEFAULT_PRICES: Final = Prices()


def prices_for(spec: BackendSpec, tokens: int = 0) -> Prices:
    """Return the prices of the model in the complete `spec` for requests of `tokens` tokens.

    If the backend has no model, return default prices.
    """
    return prices_of(msgspec.convert(spec.options, Model), tokens) if "api" in spec.options else DEFAULT_PRICES


def prices_of(model: Model, tokens: int = 0) -> Prices:
    """Return the prices of `model` for requests of `tokens` tokens.

    For an unknown price or a free model, return default prices. If an API has no cache markers and a model has no price
    for cached tokens, a cached token costs as much as an uncached token.
    """
    price = model.price_at(tokens)
    unit = price.input if model.price_known else None
    if not unit:
        return DEFAULT_PRICES
    otherwise = DEFAULT_PRICES if model.flags.cache_markers else Prices(read=1.0, write=1.0)
    return Prices(
        read=otherwise.read if price.cache_read is None else price.cache_read / unit,
        write=otherwise.write if price.cache_write is None else price.cache_write / unit,
        output=DEFAULT_PRICES.output if price.output is None else price.output / unit,
    )
