"""Forced recalls: edits whose old text has left the conversation, so that the agent has to look the text up first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

from orch_protocol.core.messages import Message, tool_uses
from orch_worker.backends.prices import Prices
from orch_worker.conversation.archive_text import message_text, replaced_texts

from .readers import Recording, Scale

__all__ = ["RECALL_CHARS", "Need", "RecallMeter", "edit_needs", "recall_tokens"]

RECALL_CHARS: Final = 1_000
"""The characters of a lookup in archives: `benchmarks/bench_lookups.py` prints 915 and 981 for two long recordings."""
RECALL_OUTPUT: Final = 120
"""The output tokens of the call that asks for the text."""
MIN_LINE: Final = 12
"""An edit with shorter lines needs no recall, because such lines are not found by their text."""


class Need(Struct, frozen=True):
    """The longest line of the old text of an edit, and the indexes of the earlier messages that contain it."""

    line: str
    places: tuple[int, ...]


def edit_needs(recording: Recording) -> dict[int, list[Need]]:
    """Return what the edits of each model call need, by the index of the call.

    Edits of text that no earlier message contains need nothing.
    """
    edits = [(place, line) for place in recording.calls for line in _edited_lines(recording, place)]
    if not edits:
        return {}
    texts = [message_text(each.message) for each in recording.messages]
    ends = list(accumulate(len(text) + 1 for text in texts))
    whole = "\n".join(texts)
    needs: dict[int, list[Need]] = {}
    for place, line in edits:
        if places := tuple(_places(whole, ends, line, ends[place - 1] if place else 0)):
            needs.setdefault(place, []).append(Need(line, places))
    return needs


def _edited_lines(recording: Recording, place: int) -> Iterator[str]:
    for each in recording.messages[place:]:
        if each.message.role != "assistant":
            return
        for call in tool_uses(each.message):
            for old in replaced_texts(call):
                line = max((line.strip() for line in old.split("\n")), key=len)
                if len(line) >= MIN_LINE:
                    yield line


def _places(whole: str, ends: Sequence[int], line: str, stop: int) -> Iterator[int]:
    at = whole.find(line, 0, stop)
    while at >= 0:
        place = bisect_right(ends, at)
        yield place
        at = whole.find(line, ends[place], stop)


def recall_tokens(scale: Scale) -> int:
    """Return the tokens of the text that a recall returns."""
    return scale.estimator.text(("lines of archived text " * RECALL_CHARS)[:RECALL_CHARS])


class RecallMeter:
    """Counts the forced recalls of one conversation under one policy, and their cost.

    A recall is one more request. It reads the whole conversation from the cache, and its call and its text are written
    to the cache. Later requests read them as long as they contain the result of the edit.
    """

    def __init__(self, recording: Recording, needs: dict[int, list[Need]], scale: Scale, prices: Prices) -> None:
        self.units = 0.0
        self.recalls = 0
        self._messages = [each.message for each in recording.messages]
        self._recorded = set(map(id, self._messages))
        self._needs = needs
        self._prices = prices
        self._tokens = recall_tokens(scale) + RECALL_OUTPUT
        self._kept: list[Message] = []

    def request(self, place: int, context: Sequence[Message], live: int) -> None:
        """Count the request of the call `place`. It contains `context`, and has `live` tokens in total."""
        needs = self._needs.get(place, ())
        if not needs and not self._kept:
            return
        shown = set(map(id, context))
        self._kept = [message for message in self._kept if id(message) in shown]
        self.units += len(self._kept) * self._tokens * self._prices.read
        inserted = [message for message in context if id(message) not in self._recorded]
        for need in needs:
            if any(id(self._messages[each]) in shown for each in need.places):
                continue
            if any(need.line in message_text(message) for message in inserted):
                continue
            self.recalls += 1
            read, written = live * self._prices.read, self._tokens * self._prices.write
            self.units += read + written + RECALL_OUTPUT * self._prices.output
            after = (self._messages[each] for each in range(place + 1, len(self._messages)))
            self._kept += [next((message for message in after if message.role != "assistant"), self._messages[place])]
