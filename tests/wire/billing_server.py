"""What a provider bills for requests, computed from their bodies, as documented by Anthropic and OpenAI.

A prompt cache contains beginnings of requests. A request is charged by the longest beginning that it shares with a
cached one, byte by byte. The intentions of the client do not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from msgspec import Struct

from orch_worker.backends.prices import Prices
from wire.model_server import Answer, Request

__all__ = ["AutomaticCache", "Billing", "Charge", "MarkedCache", "tokens_in"]

CHARS_PER_TOKEN: Final = 4
MINIMUM: Final = 1024
LIFETIME: Final = 300.0
LOOKBACK: Final = 20
MARKERS: Final = 4
STEP: Final = 128
CONTENT: Final = ("messages", "input", "tools", "system", "instructions")
NO_SETTINGS: Final = (*CONTENT, "stream", "stream_options", "max_tokens")


class Charge(Struct, frozen=True):
    """The tokens of one request: read from the cache, written to the cache, and neither."""

    read: int
    written: int
    fresh: int


class Cache(Protocol):
    """The prompt cache of a provider."""

    def charge(self, body: dict[str, Any], now: float) -> Charge:
        """Return what the request `body` at the time `now`, in seconds, is charged for, and update the cache."""


class MarkedCache:
    """The cache of the Messages API: entries end at blocks with `cache_control`, and live 5 minutes after their use.

    For each marker, the cache looks for an entry that ends at the marker or at one of the 20 blocks before it.
    """

    def __init__(self) -> None:
        self._entries: dict[str, float] = {}

    def charge(self, body: dict[str, Any], now: float) -> Charge:
        """Return the charge for a request."""
        digests, ends, markers, tokens = [], [], [], 0
        digest = hashlib.sha256(_settings(body))
        for index, (kind, block) in enumerate(_blocks(body)):
            if "cache_control" in block:
                markers.append(index)
            text = _canonical({name: value for name, value in block.items() if name != "cache_control"})
            digest.update(kind.encode() + text)
            tokens += tokens_in(text)
            digests.append(digest.hexdigest())
            ends.append(tokens)
        assert len(markers) <= MARKERS, f"{len(markers)} cache markers"
        reach = (place for marker in markers for place in range(marker, max(marker - LOOKBACK, -1), -1))
        hit = max((place for place in reach if self._entries.get(digests[place], -1.0) >= now), default=-1)
        read = ends[hit] if hit >= 0 else 0
        kept = [marker for marker in markers if ends[marker] >= MINIMUM]
        for place in (*kept, *([hit] if hit >= 0 else [])):
            self._entries[digests[place]] = now + LIFETIME
        written = max(0, max((ends[marker] for marker in kept), default=0) - read)
        return Charge(read, written, tokens - read - written)


class AutomaticCache:
    """The cache of OpenAI's APIs: the beginning of every request of the last minutes, in steps of 128 tokens."""

    def __init__(self) -> None:
        self._requests: dict[bytes, float] = {}

    def charge(self, body: dict[str, Any], now: float) -> Charge:
        """Return the charge for a request."""
        head = {name: body.get(name) for name in ("model", "tools", "instructions")}
        messages = body.get("messages") or body["input"]
        text = b"".join(map(_canonical, (head, *messages)))
        self._requests = {old: until for old, until in self._requests.items() if until >= now}
        shared = max((_shared(text, old) for old in self._requests), default=0)
        read = tokens_in(text[:shared]) // STEP * STEP
        read = read if read >= MINIMUM else 0
        self._requests[text] = now + LIFETIME
        return Charge(read, 0, tokens_in(text) - read)


class Billing:
    """Answers requests with the results of `answer`, and reports and adds up what they cost at `prices`.

    `answer` returns the answer and its number of tokens. `clock` returns the time in seconds. `units` is the total cost
    in uncached input tokens.
    """

    def __init__(
        self,
        cache: Cache,
        prices: Prices,
        answer: Callable[[Request], tuple[Answer, int]],
        clock: Callable[[], float],
    ) -> None:
        self.units = 0.0
        self.charges: list[Charge] = []
        self._cache, self._prices, self._answer, self._clock = cache, prices, answer, clock

    def __call__(self, request: Request) -> Answer:
        """Return the answer to `request` with its usage."""
        charge = self._cache.charge(request.body, self._clock())
        answer, output = self._answer(request)
        self.charges.append(charge)
        self.units += self._prices.units(cached=charge.read, written=charge.written, fresh=charge.fresh, output=output)
        answer.usage = {
            "input": charge.fresh,
            "cache_read": charge.read,
            "cache_write": charge.written,
            "output": output,
        }
        return answer


def tokens_in(text: bytes) -> int:
    """Return the number of tokens of `text`: one for each four bytes."""
    return len(text) // CHARS_PER_TOKEN


def _blocks(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the blocks of a request of the Messages API in the order of the cache: tools, system text, messages."""
    yield from (("tool", tool) for tool in body.get("tools") or ())
    yield from (("system", part) for part in body.get("system") or ())
    for message in body["messages"]:
        yield from ((message["role"], part) for part in message["content"])


def _settings(body: dict[str, Any]) -> bytes:
    """Return the settings whose change invalidates the cache, such as the model."""
    return _canonical({name: value for name, value in body.items() if name not in NO_SETTINGS})


def _canonical(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True).encode()


def _shared(one: bytes, other: bytes) -> int:
    """Return the length of the beginning that both texts share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low
