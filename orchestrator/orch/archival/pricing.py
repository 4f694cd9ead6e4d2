"""What a model's tokens cost in units of its own uncached input: the prices by which archiving pays or does not."""

from __future__ import annotations

from typing import Final

import msgspec

from orch_protocol.spec import BackendSpec
from orch_worker.backends.models import Model, price_at

from .gate import Prices

__all__ = ["prices_for", "prices_of"]

USUAL: Final = Prices()


def prices_for(spec: BackendSpec, tokens: int = 0) -> Prices:
    """Return the prices of the complete `spec`'s model for requests of that many tokens; usual ones for no model."""
    return prices_of(msgspec.convert(spec.options, Model), tokens) if "api" in spec.options else USUAL


def prices_of(model: Model, tokens: int = 0) -> Prices:
    """Return the prices of `model` for requests of that many tokens; usual ones for what is not known, or free.

    Where nothing marks what is to be cached, a cached token without a price of its own costs what any other does.
    """
    price = price_at(model, tokens)
    unit = price.input if model.price_known else None
    if not unit:
        return USUAL
    otherwise = USUAL if model.flags.cache_markers else Prices(read=1.0, write=1.0)

    return Prices(
        read=otherwise.read if price.cache_read is None else price.cache_read / unit,
        write=otherwise.write if price.cache_write is None else price.cache_write / unit,
        output=USUAL.output if price.output is None else price.output / unit,
    )
