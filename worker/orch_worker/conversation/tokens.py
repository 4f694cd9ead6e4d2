"""Estimates token counts without a tokenizer, from the length and kind of text.

Token counts that the provider reports correct the estimate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from string import digits, punctuation
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.messages import Block, Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse, Usage
from orch_protocol.session.entries import Custom, Label, MessageEntry, SessionInfo, TurnEndEntry, TurnStartEntry

__all__ = [
    "CHARS_PER_TOKEN",
    "PLAIN",
    "CharsPerToken",
    "TokenEstimator",
    "clip",
    "image_tokens",
    "input_tokens",
    "is_clipped",
    "strings",
]


SAMPLE: Final = 600
IMAGE_TOKENS: Final = 1600
"""Tokens of an image of unknown size, and of the largest image after providers reduced its size."""
IMAGE_EDGE: Final = 1568
"""Maximum width and height of an image in pixels; a larger image is reduced in size."""
PIXELS_PER_TOKEN: Final = 750
MIN_FACTOR: Final = 0.25
MAX_FACTOR: Final = 4.0
PRIOR: Final = 2_000
"""Weight of the initial ratios, in tokens. This weight prevents a few observations from overriding the ratios."""

MAX_LEARNED: Final = 400
BELIEVED_SHARE: Final = 0.75
"""Minimum ratio of a reported size to the size that a refusal proved."""
SURE_SHARE: Final = (0.5, 0.75)
"""The part of an estimate that is a lower bound: the reported ratio within these limits. The larger one applies before
the first report."""
DOUBT: Final = 1.5
PROVIDER_OVERHEAD_TOKENS: Final = 500
"""Approximate number of tokens that a provider adds to a request to explain tool calls."""

_WIDE: Final = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
_HEX_WORDS: Final = re.compile(r"\b[a-f][0-9a-f]{5,}\b")
_ANY_SYMBOLS: Final = re.compile(r"[^\w\s]")
_DIGIT, _MARK, _SYMBOL, _HEX_LETTER, _OTHER = b"0", b",", b"+", b"f", b"z"


def _class_of(character: str) -> bytes:
    if character in digits:
        return _DIGIT
    if character in "{}[]\"':,":
        return _MARK
    if character in punctuation and character != "_":
        return _SYMBOL
    return _HEX_LETTER if character in "abcdef" else _OTHER


_CLASSES: Final = b"".join(map(_class_of, map(chr, range(256))))
"""The class of each byte. One translation and a count for each class is much faster than a regex for each class."""
_NOT_IN_CONTEXT: Final = (TurnStartEntry, TurnEndEntry, Custom, Label, SessionInfo)


class CharsPerToken(Struct, frozen=True):
    """Characters per token for prose, source code, data such as JSON, figures such as logs, and CJK text (`wide`).

    `message`, `call` and `result` are the additional tokens of each message, call and result.
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
"""Four characters per token for all text."""


class TokenEstimator:
    """Estimates tokens for one model. The estimates use the `ratios` of the model family, and reported token counts.

    `factor` is the initial correction, for example the correction of another estimator of the same model.
    """

    def __init__(self, ratios: CharsPerToken = PLAIN, factor: float = 1.0) -> None:
        self._ratios = ratios
        self._begin = factor
        self.factor = min(max(factor, MIN_FACTOR), MAX_FACTOR)
        """The ratio of reported to estimated tokens over all observed growth."""
        self._last: tuple[float, int] | None = None
        self._proven = 0.0
        """The ratio of tokens to the uncorrected estimate of a refused request. 0 means that no refusal proved it."""
        self._grows = False
        self._estimated = 0.0
        self._reported = 0

    def text(self, text: str) -> int:
        """Return the estimated tokens of `text`."""
        return math.ceil(self.raw_text(text) * self.factor)

    def message(self, message: Message) -> int:
        """Return the estimated tokens of `message`, with all kinds of blocks."""
        return math.ceil(self.raw(message) * self.factor)

    def messages(self, messages: Iterable[Message]) -> int:
        """Return the estimated tokens of `messages` together."""
        return math.ceil(sum(map(self.raw, messages)) * self.factor)

    def request(self, raw: float) -> int:
        """Return the corrected estimate of a request's size, in tokens. `raw` is the uncorrected estimate.

        The estimate is the reported size of the last request plus the estimated growth since then. The reported size
        includes parts that are not visible here, such as the provider's tool instructions.
        """
        if self._last is None:
            return math.ceil(raw * self.factor)
        return math.ceil(max(0.0, raw * MIN_FACTOR, self._last[1] + (raw - self._last[0]) * self.factor))

    def min_request_tokens(self, raw: float) -> int:
        """Return an approximate lower bound for the tokens of a request. `raw` is the uncorrected estimate."""
        low, high = SURE_SHARE
        reported = self._last[1] / self._last[0] if self._last is not None and self._last[0] > 0 else high
        return math.floor(raw * (self._proven or min(max(reported, low), high)))

    def chars(self, tokens: float) -> int:
        """Return a number of characters of text or source code that have about `tokens` tokens."""
        return max(0, math.floor(tokens * min(self._ratios.prose, self._ratios.code) / self.factor))

    def max_request_tokens(self, raw: float) -> int:
        """Return an approximate upper bound for the tokens of a request. `raw` is the uncorrected estimate.

        Growth since the last report is multiplied by 1.5, and a decrease is divided by 1.5. Before the first report,
        the estimate includes an allowance for text that the provider adds.
        """
        if self._last is None:
            return math.ceil(raw * self.factor * DOUBT) + PROVIDER_OVERHEAD_TOKENS
        grown = (raw - self._last[0]) * self.factor
        return max(0, math.ceil(self._last[1] + (grown * DOUBT if grown > 0 else grown / DOUBT)))

    def raw(self, message: Message) -> float:
        """Return the uncorrected estimate for `message`."""
        return self._ratios.message + sum(map(self._block, message.content))

    def raw_text(self, text: str) -> float:
        """Return the uncorrected estimate for `text`."""
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

    def observe(self, raw: float, reported: int) -> bool:
        """Record that a request with the uncorrected estimate `raw` had `reported` input tokens.

        Only the growth since the previous request is evaluated, because a request also has parts that are not visible
        here. Implausible growth is ignored. Return False if the whole report is ignored because it is far below the
        estimate: some servers leave out cached tokens.
        """
        if reported <= 0:
            return True
        if reported < raw * (self._proven * BELIEVED_SHARE or MIN_FACTOR):
            self.changed()
            return False
        if self._last is not None and self._grows:
            grown, counted = raw - self._last[0], reported - self._last[1]
            if grown > 0 and MIN_FACTOR <= counted / grown <= MAX_FACTOR:
                self._estimated += grown
                self._reported += counted
                found = (self._reported + PRIOR * self._begin) / (self._estimated + PRIOR)
                self.factor = min(max(found, MIN_FACTOR), MAX_FACTOR)
        self._last, self._grows = (raw, reported), True
        return True

    def refused(self, raw: float, tokens: int) -> None:
        """Record that a request with the uncorrected estimate `raw` was refused, because it has at least `tokens`
        tokens.

        If the estimate was lower, earlier reports were wrong, and this refusal replaces what they taught.
        """
        if raw <= 0 or tokens <= self.request(raw):
            return
        self._proven = self._begin = self.factor = min(max(tokens / raw, MIN_FACTOR), MAX_FACTOR)
        self._last, self._grows, self._estimated, self._reported = None, False, 0.0, 0

    def changed(self) -> None:
        """Mark the next request as unrelated to the last request. The growth between the two requests is ignored."""
        self._grows = False

    def learn(self, entries: Sequence[object]) -> None:
        """Learn from the last entries of a transcript. The usage of a response contains the size of its request.

        Where the conversation branched or entries are missing, growth is ignored.
        """
        raw, before = 0.0, None
        for entry in entries[-MAX_LEARNED:]:
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
                return image_tokens(*block.size)
            case ToolUse(name=name, input=input):
                inner = sum(self.raw_text(text) + 1 for text in strings(input))
                return self._ratios.call + self.raw_text(name) + inner
            case ToolResult(content=content):
                return self._ratios.result + sum(map(self._block, content))
            case Opaque(raw=raw):
                return sum(map(self.raw_text, strings(raw)))

    def _ratio(self, sample: str) -> float:
        size, classes = len(sample), sample.encode(errors="surrogatepass").translate(_CLASSES)
        # About half of the characters of a hex number are digits, so a text with few digits needs no search for hex
        # numbers.
        figures = classes.count(_DIGIT)
        if 0.1 * size < figures <= 0.3 * size < figures + classes.count(_HEX_LETTER):
            letters = "".join(_HEX_WORDS.findall(sample))
            figures += len(letters) - sum(map(letters.count, digits))
        if figures > 0.3 * size:
            return self._ratios.figures
        marks = classes.count(_MARK)
        if marks > 0.18 * size:
            return self._ratios.data
        symbols = marks + classes.count(_SYMBOL) if sample.isascii() else len(_ANY_SYMBOLS.findall(sample))
        return self._ratios.code if symbols > 0.07 * size else self._ratios.prose


def image_tokens(width: int, height: int) -> float:
    """Return the tokens of an image of this size in pixels; a size of 0 is unknown.

    Providers reduce a large image and count its pixels, or tiles of 512x512 pixels. This function counts pixels, which
    gives more tokens than tiles for most images.
    """
    if not width or not height:
        return IMAGE_TOKENS
    scale = min(1.0, IMAGE_EDGE / max(width, height))
    return min(IMAGE_TOKENS, max(1.0, width * scale * height * scale / PIXELS_PER_TOKEN))


def input_tokens(usage: Usage) -> int:
    """Return the number of input tokens of a request, including cached tokens."""
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens


def strings(value: Any) -> Iterator[str]:
    """Yield all keys and values in `value` (JSON-like data) as text, in order."""
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


# --- Shortening text ---

CHARS_PER_TOKEN: Final = 4
"""Number of characters per token, for limits in tokens that need no exact estimate."""
ROOM_FOR_NOTE: Final = 120


_LEFT_OUT: Final = re.compile(r"\n\[\.\.\. [0-9,]+ of [0-9,]+ characters left out: .*? \.\.\.\]\n")


def clip(text: str, limit: int, hint: str) -> str:
    """Return `text` in at most `limit` characters.

    A longer text is reduced to its beginning and end. Between these stand the number of omitted characters and `hint`.
    If the limit is too small for this, return only the beginning.
    """
    if len(text) <= limit:
        return text
    room = limit - ROOM_FOR_NOTE - len(hint)
    if room < ROOM_FOR_NOTE:
        return text[: max(limit, 0)]
    head, tail = room * 2 // 3, room // 3
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} of {len(text):,} characters left out: {hint} ...]\n{text[-tail:]}"


def is_clipped(short: str, text: str) -> bool:
    """Return whether `short` can be a result of `clip` for `text`."""
    return text.startswith(short) or any(
        text.startswith(short[: note.start()]) and text.endswith(short[note.end() :])
        for note in _LEFT_OUT.finditer(short)
    )
