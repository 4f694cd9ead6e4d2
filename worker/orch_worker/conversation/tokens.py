"""How many tokens something is, without a tokenizer: by its length and kind, corrected by what providers report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from string import digits, punctuation
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.messages import Block, Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse, Usage
from orch_protocol.session.entries import Custom, Label, MessageEntry, SessionInfo, TurnEndEntry, TurnStartEntry

__all__ = ["CHARS_PER_TOKEN", "PLAIN", "CharsPerToken", "TokenEstimator", "clip", "input_tokens", "strings"]


SAMPLE: Final = 600
IMAGE_TOKENS: Final = 1600
LEAST_FACTOR: Final = 0.25
MOST_FACTOR: Final = 4.0
PRIOR: Final = 2_000
"""So many tokens of growth speak for the ratios before any is observed: a few lines do not overrule them."""

MOST_LEARNED: Final = 400
DOUBT: Final = 1.5
UNSEEN: Final = 500
"""About the tokens in which a provider tells its model how to call tools."""

_WIDE: Final = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
_FIGURES: Final = re.compile(r"\d|\b[0-9a-f]{6,}\b")
_ANY_SYMBOLS: Final = re.compile(r"[^\w\s]")
# What is to be counted, as what `str.translate` takes out: ten times as fast as looking for it.
_DIGITS: Final = dict.fromkeys(map(ord, digits))
_MARKS: Final = dict.fromkeys(map(ord, "{}[]\"':,"))
_SYMBOLS: Final = dict.fromkeys(map(ord, punctuation.replace("_", "")))
_NOT_IN_CONTEXT: Final = (TurnStartEntry, TurnEndEntry, Custom, Label, SessionInfo)


class CharsPerToken(Struct, frozen=True):
    """Characters a token, by what the text is: sentences, source code, JSON and its kin, figures and logs, CJK.

    And the tokens that a message, a call and a result take besides what is in them.
    """

    prose: float
    code: float
    data: float
    figures: float
    wide: float
    message: float = 0.0
    call: float = 0.0
    result: float = 0.0


PLAIN: Final = CharsPerToken(4.0, 4.0, 4.0, 4.0, 4.0)
"""Four characters a token, whatever they are: the seed's rule."""


class TokenEstimator:
    """Estimates tokens for one model, of the family that `ratios` are of; what its provider reports corrects it.

    `factor` is where the correction begins: what another estimator of the same model has learned.
    """

    def __init__(self, ratios: CharsPerToken = PLAIN, factor: float = 1.0) -> None:
        self._ratios = ratios
        self._begin = factor
        self._last: tuple[float, int] | None = None
        self._grows = False
        self._estimated = 0.0
        self._reported = 0

    @property
    def factor(self) -> float:
        """Tokens reported for each one estimated, over all growth observed."""
        found = (self._reported + PRIOR * self._begin) / (self._estimated + PRIOR)
        return min(max(found, LEAST_FACTOR), MOST_FACTOR)

    def text(self, text: str) -> int:
        """Return about how many tokens `text` is."""
        return _rounded(self.raw_text(text) * self.factor)

    def message(self, message: Message) -> int:
        """Return about how many tokens `message` is; every kind of block counts."""
        return _rounded(self.raw(message) * self.factor)

    def messages(self, messages: Iterable[Message]) -> int:
        """Return about how many tokens `messages` are together."""
        return _rounded(sum(map(self.raw, messages)) * self.factor)

    def request(self, raw: float) -> int:
        """Return about how many tokens a request is whose parts are `raw` before correction.

        That is what the last one was reported to be, and what it has grown by: what is never seen of a request, such as
        how a provider explains tools to its model, is in the report.
        """
        if self._last is None:
            return _rounded(raw * self.factor)
        return max(0, _rounded(self._last[1] + (raw - self._last[0]) * self.factor))

    def most_of_request(self, raw: float) -> int:
        """Return how many tokens such a request is at most, or nearly so.

        What was not reported may be half as much again; where nothing was, there is what a provider adds of its own.
        """
        if self._last is None:
            return _rounded(raw * self.factor * DOUBT) + UNSEEN
        grown = (raw - self._last[0]) * self.factor
        return max(0, _rounded(self._last[1] + (grown * DOUBT if grown > 0 else grown / DOUBT)))

    def raw(self, message: Message) -> float:
        """Return the estimate for `message` before correction."""
        return self._ratios.message + sum(map(self._block, message.content))

    def raw_text(self, text: str) -> float:
        """Return the estimate for `text` before correction."""
        if not text:
            return 0.0
        ratios = self._ratios
        if ratios is PLAIN:
            return len(text) / ratios.prose
        sample = text if len(text) <= 3 * SAMPLE else _three_pieces(text)
        wide = 0 if text.isascii() else len(_WIDE.findall(sample))
        narrow = len(sample) - wide
        tokens = wide / ratios.wide + narrow / self._ratio(sample)
        return tokens * len(text) / len(sample)

    def observe(self, raw: float, reported: int) -> None:
        """Learn that a request whose parts are `raw` by estimate was `reported` input tokens in all.

        The growth since the request before is what counts: what is not seen of a request falls out of it. A growth that
        no ratio explains is not believed: part of it was something else.
        """
        if reported <= 0:
            return
        if self._last is not None and self._grows:
            grown, told = raw - self._last[0], reported - self._last[1]
            if grown > 0 and LEAST_FACTOR <= told / grown <= MOST_FACTOR:
                self._estimated += grown
                self._reported += told
        self._last, self._grows = (raw, reported), True

    def changed(self) -> None:
        """Learn that the next request is not the last one and more: its growth tells nothing."""
        self._grows = False

    def learn(self, entries: Sequence[object]) -> None:
        """Learn what the last entries of a transcript tell: responses tell what their requests were.

        Where a conversation branched off, or lost something, nothing can be told from growth.
        """
        raw, before = 0.0, None
        for entry in entries[-MOST_LEARNED:]:
            follows = getattr(entry, "parent_id", None) == before
            before = getattr(entry, "id", None)
            if not follows or not isinstance(entry, (MessageEntry, *_NOT_IN_CONTEXT)):
                self.changed()
            if not isinstance(entry, MessageEntry):
                continue
            if entry.usage is not None and entry.message.role == "assistant":
                self.observe(raw, input_tokens(entry.usage))
            raw += self.raw(entry.message)
        self._last, self._grows = None, False

    def _block(self, block: Block) -> float:
        match block:
            case Text(text):
                return self.raw_text(text)
            case Thinking(thinking):
                return self.raw_text(thinking)
            case Image():
                return IMAGE_TOKENS
            case ToolUse(name=name, input=input):
                inner = sum(self.raw_text(text) + 1 for text in strings(input))
                return self._ratios.call + self.raw_text(name) + inner
            case ToolResult(content=content):
                return self._ratios.result + sum(map(self._block, content))
            case Opaque(raw=raw):
                return sum(map(self.raw_text, strings(raw)))

    def _ratio(self, sample: str) -> float:
        size = len(sample)
        # Of hex words half are digits: where there are few of these, nobody need look for words.
        if _count(sample, _DIGITS) > 0.1 * size and sum(map(len, _FIGURES.findall(sample))) > 0.3 * size:
            return self._ratios.figures
        if _count(sample, _MARKS) > 0.18 * size:
            return self._ratios.data
        symbols = _count(sample, _SYMBOLS) if sample.isascii() else len(_ANY_SYMBOLS.findall(sample))
        return self._ratios.code if symbols > 0.07 * size else self._ratios.prose


def _count(text: str, table: dict[int, None]) -> int:
    return len(text) - len(text.translate(table))


def input_tokens(usage: Usage) -> int:
    """Return how many tokens the request was, cached ones included."""
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens


def strings(value: Any) -> Iterator[str]:
    """Yield every name and value in `value` (JSON-like data) as text, in order."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            for key, inner in reversed(item.items()):
                waiting += (inner, str(key))
        elif isinstance(item, (list, tuple)):
            waiting += reversed(item)
        elif item is not None:
            yield str(item)


def _three_pieces(text: str) -> str:
    middle = len(text) // 2
    return text[:SAMPLE] + text[middle : middle + SAMPLE] + text[-SAMPLE:]


def _rounded(tokens: float) -> int:
    return -int(-tokens // 1)


# --- Cutting text down to size ---

CHARS_PER_TOKEN: Final = 4
"""Where tokens are a bound for text and nothing more exact is asked for."""
ROOM_FOR_NOTE: Final = 120


def clip(text: str, limit: int, hint: str) -> str:
    """Return `text` in at most `limit` characters: head and tail, and between them how much was left out and `hint`.

    A limit too small for head, tail and note keeps the head alone.
    """
    if len(text) <= limit:
        return text
    room = limit - ROOM_FOR_NOTE - len(hint)
    if room < ROOM_FOR_NOTE:
        return text[: max(limit, 0)]
    head, tail = room * 2 // 3, room // 3
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} of {len(text):,} characters left out: {hint} ...]\n{text[-tail:]}"
