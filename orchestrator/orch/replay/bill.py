"""The cost of a series of requests to a provider with a prompt cache."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from orch_worker.backends.prices import Prices

__all__ = ["Bill", "Meter"]


class Bill(Struct, frozen=True):
    """The total cost. One unit is the price of an uncached input token.

    The token counts do not include summaries.
    """

    units: float = 0.0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    peak_tokens: int = 0
    requests: int = 0
    extra_units: float = 0.0

    def __add__(self, other: Bill) -> Bill:
        return Bill(
            self.units + other.units,
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            max(self.peak_tokens, other.peak_tokens),
            self.requests + other.requests,
            self.extra_units + other.extra_units,
        )


class Meter:
    """Adds up the cost of requests.

    A request reads the prefix shared with the previous request from the cache. The request writes the rest to the
    cache. A cache entry expires `lifetime` seconds after its last use. If `lifetime` is None, entries do not expire.
    """

    def __init__(self, prices: Prices, lifetime: float | None = None) -> None:
        self.bill = Bill()
        self._prices = prices
        self._lifetime = lifetime
        self._before: list[tuple[object, int]] = []
        self._at: float | None = None

    def request(
        self, parts: Sequence[tuple[object, int]], output: int, *, tail: int = 0, at: float | None = None
    ) -> None:
        """Count a request that consists of `parts`, followed by `tail` uncached tokens.

        Each part is a pair of an object and its number of tokens.
        """
        cached = self._cached(parts, at)
        whole = sum(tokens for _, tokens in parts)
        units = self._prices.units(cached=cached, written=whole - cached, fresh=tail, output=output)
        self.bill += Bill(units, whole + tail, cached, output, whole + tail, 1)
        self._before, self._at = list(parts), at

    def extra(self, units: float) -> None:
        """Count a model call outside the conversation."""
        self.bill += Bill(units, extra_units=units)

    def _cached(self, parts: Sequence[tuple[object, int]], at: float | None) -> int:
        if self._lifetime is not None and at is not None and self._at is not None and at - self._at > self._lifetime:
            return 0
        cached = 0
        for (before, _), (now, tokens) in zip(self._before, parts, strict=False):
            if before is not now:
                break
            cached += tokens
        return cached
