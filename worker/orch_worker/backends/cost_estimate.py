"""What a request may take before it is made, and how long an answer some money, or so many tokens, buy."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.policy.budget import BudgetAmounts

from .base import ENOUGH_ANSWER, LEAST_ANSWER, CostEstimate
from .models import Model, charged_at, is_free, is_priced

__all__ = ["RequestCost", "check_priced", "fare"]

NOTHING: Final = BudgetAmounts()
OUTPUT_FIELDS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class RequestCost(Struct, frozen=True):
    """What a request takes: it holds `tokens`, which cost `sent` USD; each token of its answer, which has `least` to
    `most`, costs `token` USD."""

    tokens: int
    sent: float
    token: float
    least: int
    most: int

    def quote(self, before: BudgetAmounts = NOTHING) -> CostEstimate:
        """Return what the request may take; what was used `before` comes on top."""
        lengths = (self.least, min(max(ENOUGH_ANSWER, self.least), self.most), self.most)
        least, enough, most = (before + self._taken(length) for length in lengths)
        return CostEstimate(least, enough, most)

    def longest(self, most: BudgetAmounts, kinds: frozenset[str]) -> int:
        """Return how long an answer the request may ask for when it may take `most` of each of `kinds`; 0 when that is
        too little."""
        tokens = self.most
        if "usd" in kinds and self.token > 0:
            # A hair more than was reckoned, so that what was put aside for a number of tokens buys that number.
            tokens = min(tokens, int((most.usd - self.sent) / self.token + 1e-6))
        elif "usd" in kinds and most.usd < self.sent:
            return 0
        if "tokens" in kinds:
            tokens = min(tokens, int(most.tokens - self.tokens))
        return tokens if tokens >= self.least else 0

    def _taken(self, length: int) -> BudgetAmounts:
        return BudgetAmounts(usd=self.sent + length * self.token, tokens=self.tokens + length)


def fare(model: Model, sent: int, most: int, *, priced: bool = True) -> RequestCost:
    """Return what a request of at most `sent` tokens takes; it costs nothing when nobody wants to know the price.

    `most` is how long its answer can be when nobody says otherwise, 0 for as long as the model can. Raises ConfigError
    when a price is not known that is to be, and nothing is charged for such a one.
    """
    asked = [said for field in OUTPUT_FIELDS if isinstance(said := model.body.get(field), int) and said > 0]
    longest = min([*asked, most or model.context, model.context])
    thinking = model.body.get("thinking")
    thought = thinking.get("budget_tokens", 0) if isinstance(thinking, dict) else 0
    least = min(LEAST_ANSWER + thought, longest)
    if not priced or is_free(model):
        return RequestCost(sent, 0.0, 0.0, least, longest)
    price = charged_at(model, sent)
    if not _is_covered(model) or price.input is None or price.output is None:
        raise ConfigError("the model's price is not known")
    # Whatever is sent may be written to the cache, and nothing of it be read from there.
    dollars = max(price.input, price.cache_write or 0.0, price.cache_read or 0.0)
    return RequestCost(sent, sent * dollars / 1e6, price.output / 1e6, least, longest)


def narrowed(model: Model) -> Model:
    """Return `model` without what its body says of how long an answer may be."""
    body: dict[str, Any] = {name: value for name, value in model.body.items() if name not in OUTPUT_FIELDS}
    return msgspec.structs.replace(model, body=body)


def check_priced(spec: BackendSpec) -> None:
    """Raise ConfigError unless it is known what the model of a complete `spec` costs, or said what it is charged, so
    that a budget can be held."""
    if "api" not in spec.options:
        return  # no model at all
    model = msgspec.convert(spec.options, Model)
    if not is_free(model) and not _is_covered(model):
        name = f"{spec.provider}:{spec.model}"
        needed = '"input": USD, "output": USD' + (', "cache_read": USD, "cache_write": USD' * model.flags.cache_markers)
        raise ConfigError(
            f"cannot set a budget for {name}: its price is unknown. Set budget.unknown_price in config.toml to the USD "
            "per million tokens, or add its prices to $ORCH_HOME/models.json and restart the daemon "
            f'(orch daemon stop): {{"models": {{"{spec.provider}": {{"{spec.model}": {{"prices": [{{{needed}}}]}}}}}}}}'
        )


def _is_covered(model: Model) -> bool:
    return is_priced(model) or model.ceiling is not None
