"""How many tokens something is, without a tokenizer: by its length and kind, corrected by what providers report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import Struct

from orch_protocol.messages import Block, Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse

__all__ = ["PLAIN", "Estimator", "Ratios", "strings"]

SAMPLE: Final = 600
IMAGE_TOKENS: Final = 1600
LEAST_FACTOR: Final = 0.25
MOST_FACTOR: Final = 4.0

_WIDE: Final = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
_DIGITS: Final = re.compile(r"\d|\b[0-9a-f]{6,}\b")
_MARKS: Final = re.compile(r"[{}\[\]\"':,]")
_SYMBOLS: Final = re.compile(r"[^\w\s]")


class Ratios(Struct, frozen=True):
    """Characters a token, by what the text is: sentences, source code, JSON and its kin, figures and logs, CJK."""

    prose: float
    code: float
    data: float
    figures: float
    wide: float


PLAIN: Final = Ratios(4.0, 4.0, 4.0, 4.0, 4.0)
"""Four characters a token, whatever they are: the seed's rule."""


class Estimator:
    """Estimates tokens for one family of models; `observe` corrects it by what their provider reports."""

    def __init__(self, ratios: Ratios = PLAIN) -> None:
        self._ratios = ratios
        self._last: tuple[float, int] | None = None
        self._estimated = 0.0
        self._reported = 0

    @property
    def factor(self) -> float:
        """Tokens reported for each one estimated, over all growth observed; 1.0 before there is any."""
        if self._estimated <= 0 or self._reported <= 0:
            return 1.0
        return min(max(self._reported / self._estimated, LEAST_FACTOR), MOST_FACTOR)

    def text(self, text: str) -> int:
        """Return about how many tokens `text` is."""
        return _rounded(self._raw(text) * self.factor)

    def message(self, message: Message) -> int:
        """Return about how many tokens `message` is; every kind of block counts."""
        return _rounded(self.raw(message) * self.factor)

    def messages(self, messages: Iterable[Message]) -> int:
        """Return about how many tokens `messages` are together."""
        return _rounded(sum(map(self.raw, messages)) * self.factor)

    def raw(self, message: Message) -> float:
        """Return the estimate for `message` before correction."""
        return sum(map(self._block, message.content))

    def observe(self, raw: float, reported: int) -> None:
        """Learn that a request whose messages are `raw` by estimate was `reported` input tokens in all.

        The growth since the request before is what counts: prompt and tools, unknown here, fall out of it.
        """
        if self._last is not None:
            grown, told = raw - self._last[0], reported - self._last[1]
            if grown > 0 and told > 0:
                self._estimated += grown
                self._reported += told
        self._last = (raw, reported)

    def _block(self, block: Block) -> float:
        match block:
            case Text(text):
                return self._raw(text)
            case Thinking(thinking):
                return self._raw(thinking)
            case Image():
                return IMAGE_TOKENS
            case ToolUse(name=name, input=input):
                return self._raw(name) + sum(self._raw(text) + 1 for text in strings(input))
            case ToolResult(content=content):
                return sum(map(self._block, content))
            case Opaque(raw=raw):
                return sum(map(self._raw, strings(raw)))

    def _raw(self, text: str) -> float:
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

    def _ratio(self, sample: str) -> float:
        size = len(sample)
        if sum(map(len, _DIGITS.findall(sample))) > 0.3 * size:
            return self._ratios.figures
        if len(_MARKS.findall(sample)) > 0.18 * size:
            return self._ratios.data
        if len(_SYMBOLS.findall(sample)) > 0.07 * size:
            return self._ratios.code
        return self._ratios.prose


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
