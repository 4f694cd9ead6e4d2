"""The cost of a series of requests to a provider with a prompt cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from orch_worker.backends.formats.messages import LOOKBACK
from orch_worker.backends.prices import Prices

__all__ = ["AUTOMATIC_STEP", "HOUR", "Beginning", "Bill", "Charge", "Mark", "Meter", "PromptCache"]

HOUR: Final = 3600.0


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


AUTOMATIC_STEP: Final = 128


class Charge(Struct, frozen=True):
    """The tokens of one request: read from the cache, written to the cache, and neither.

    `written` includes `written_1h`, the tokens that are written for one hour.
    """

    read: int = 0
    written: int = 0
    fresh: int = 0
    written_1h: int = 0


class Mark(NamedTuple):
    """A place up to which a request is written to the cache: the number of its first parts.

    What is written expires `seconds` after its last use; None means never.
    """

    parts: int
    seconds: float | None


class Beginning(NamedTuple):
    """A cached beginning of a request: its number of parts, the time of its last use, and its lifetime, in seconds."""

    parts: int
    used: float | None
    seconds: float | None

    def lives(self, at: float | None) -> bool:
        """Return whether the beginning can be read at the time `at`."""
        return self.seconds is None or at is None or self.used is None or at - self.used <= self.seconds


class PromptCache:
    """The cached beginnings of the requests of one conversation.

    With `step` 0, a request reads the longest cached beginning that it shares with the previous request and that ends
    at most 20 parts before one of its marks. Otherwise, the server caches automatically, and a request reads what it
    shares with the previous request, in steps of `step` tokens. Beginnings of less than `minimum` tokens are not
    cached.
    """

    def __init__(self, step: int = 1, minimum: int = 0) -> None:
        self._step = step
        self._minimum = minimum
        self.parts: Sequence[tuple[object, int]] = ()
        """The previous request."""
        self.beginnings: list[Beginning] = []
        """What is cached of the previous request."""
        self._counted = (0, 0)
        """The number of parts of the previous request, and their tokens."""

    def charge(self, parts: Sequence[tuple[object, int]], marks: Sequence[Mark], at: float | None = None) -> Charge:
        """Return what a request that consists of `parts` is charged for, and add it to the cache up to each mark.

        Each part is a pair of an object and its number of tokens. To pass a conversation that only grows, append to
        the list of the request before.
        """
        shared, tokens = self._shared(parts)
        same, known = self._counted if parts is self.parts else (0, 0)
        whole = known + sum(parts[place][1] for place in range(same, len(parts)))
        alive = [each for each in self.beginnings if each.lives(at)]
        if self._step:
            kept = []
            read = tokens // self._step * self._step if alive else 0
        else:
            kept = [each for each in alive if each.parts <= shared]
            reach = (each for each in kept if any(0 <= mark.parts - each.parts <= LOOKBACK for mark in marks))
            hit = max(reach, default=None)
            read = _tokens(parts, hit.parts) if hit else 0
            kept = [each._replace(used=at) if each is hit else each for each in kept]
        read = read if read >= self._minimum else 0
        written, hour = read, 0
        for mark in sorted(marks, key=lambda mark: mark.parts):
            size = whole if mark.parts == len(parts) else _tokens(parts, mark.parts)
            if size >= self._minimum:
                kept = [each for each in kept if each.parts != mark.parts]
                kept.append(Beginning(mark.parts, at, mark.seconds))
                hour += max(0, size - written) if mark.seconds == HOUR else 0
                written = max(written, size)
        self.parts, self.beginnings, self._counted = parts, kept, (len(parts), whole)
        return Charge(read, written - read, whole - written, hour)

    def _shared(self, parts: Sequence[tuple[object, int]]) -> tuple[int, int]:
        """Return the number of parts that begin both `parts` and the previous request, and their tokens."""
        if parts is self.parts:
            return self._counted
        count = tokens = 0
        for (before, _), (now, size) in zip(self.parts, parts, strict=False):
            if before is not now and before != now:
                break
            count, tokens = count + 1, tokens + size
        return count, tokens


def _tokens(parts: Sequence[tuple[object, int]], count: int) -> int:
    return sum(parts[place][1] for place in range(count))


class Meter:
    """Adds up the cost of requests.

    A request reads the prefix shared with the previous request from the cache. The request writes the rest to the
    cache. A provider that charges nothing for writing caches a prefix in steps of 128 tokens. A cache entry expires
    `lifetime` seconds after its last use. If `lifetime` is None, entries do not expire.
    """

    def __init__(self, prices: Prices, lifetime: float | None = None) -> None:
        self.bill = Bill()
        self._prices = prices
        self._lifetime = lifetime
        self._cache = PromptCache(1 if prices.write > prices.fresh else AUTOMATIC_STEP)

    def request(self, parts: Sequence[tuple[object, int]], output: int, *, at: float | None = None) -> int:
        """Count a request that consists of `parts`, as for `PromptCache.charge`. Return its number of tokens."""
        charge = self._cache.charge(parts, [Mark(len(parts), self._lifetime)], at)
        units = self._prices.units(cached=charge.read, written=charge.written, output=output)
        whole = charge.read + charge.written
        self.bill += Bill(units, whole, charge.read, output, whole, 1)
        return whole

    def extra(self, units: float) -> None:
        """Count a model call outside the conversation."""
        self.bill += Bill(units, extra_units=units)
