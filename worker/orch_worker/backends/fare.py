"""What a request may cost before it is made, and how long an answer some money buys."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.errors import ConfigError
from orch_protocol.spec import BackendSpec

from .base import Quote
from .models import Model, price_at

__all__ = ["Fare", "check_priced", "fare"]

LEAST_OUTPUT: Final = 1_000
"""An answer of fewer tokens is not worth what is sent for it."""
ENOUGH_OUTPUT: Final = 8_000
"""Nearly every answer has fewer tokens."""
OUTPUT_FIELDS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class Fare(Struct, frozen=True):
    """USD for what a request sends and for each token of its answer, which has `least` to `most` tokens."""

    sent: float
    token: float
    least: int
    most: int

    def quote(self, spent: float = 0.0) -> Quote:
        """Return what the request may cost; `spent` comes on top."""
        before = spent + self.sent
        enough = min(max(ENOUGH_OUTPUT, self.least), self.most)
        return Quote(before + self.least * self.token, before + enough * self.token, before + self.most * self.token)

    def tokens(self, usd: float) -> int:
        """Return how long an answer the request may ask for when it may cost `usd`; 0 when that is too little."""
        if self.token <= 0:
            return self.most if usd >= self.sent else 0
        # A hair more than was reckoned, so that what was put aside for a number of tokens buys that number.
        tokens = min(self.most, int((usd - self.sent) / self.token + 1e-6))
        return tokens if tokens >= self.least else 0


def fare(model: Model, sent: int, most: int) -> Fare | None:
    """Return what a request of at most `sent` tokens costs, None for nothing.

    `most` is how long its answer can be when nobody says otherwise, 0 for as long as the model can. Raises ConfigError
    when a price is not known.
    """
    if is_free(model):
        return None
    price = price_at(model, sent)
    if not _is_priced(model) or price.input is None or price.output is None:
        raise ConfigError("the model's price is not known")
    asked = [said for field in OUTPUT_FIELDS if isinstance(said := model.body.get(field), int) and said > 0]
    longest = min([*asked, most or model.context, model.context])
    # Whatever is sent may be written to the cache, and nothing of it be read from there.
    dollars = max(price.input, price.cache_write or 0.0)
    thinking = model.body.get("thinking")
    thought = thinking.get("budget_tokens", 0) if isinstance(thinking, dict) else 0
    return Fare(sent * dollars / 1e6, price.output / 1e6, min(LEAST_OUTPUT + thought, longest), longest)


def narrowed(model: Model) -> Model:
    """Return `model` without what its body says of how long an answer may be."""
    body: dict[str, Any] = {name: value for name, value in model.body.items() if name not in OUTPUT_FIELDS}
    return msgspec.structs.replace(model, body=body)


def is_free(model: Model) -> bool:
    """Whether the model costs nothing."""
    return model.price_known and not model.prices


def check_priced(spec: BackendSpec) -> None:
    """Raise ConfigError unless it is known what the model of a complete `spec` costs, so that a budget can be held."""
    if "api" not in spec.options:
        return  # no model at all
    model = msgspec.convert(spec.options, Model)
    if not is_free(model) and not _is_priced(model):
        name = f"{spec.provider}:{spec.model}"
        needed = '"input": USD, "output": USD' + (', "cache_read": USD, "cache_write": USD' * model.flags.cache_markers)
        raise ConfigError(
            f"{name} cannot have a budget: what it costs is not known. Say so in $ORCH_HOME/models.json, which a "
            "daemon reads when it starts (orch daemon stop), in USD per million tokens: "
            f'{{"models": {{"{spec.provider}": {{"{spec.model}": {{"prices": [{{{needed}}}]}}}}}}}}'
        )


def _is_priced(model: Model) -> bool:
    kinds = ("input", "output", *(("cache_read", "cache_write") if model.flags.cache_markers else ()))
    return model.price_known and all(getattr(price, kind) is not None for price in model.prices for kind in kinds)
