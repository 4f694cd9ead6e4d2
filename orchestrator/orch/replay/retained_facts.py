"""Facts in a conversation that may be needed again. This module checks whether these facts are still reachable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from orch_protocol.core.messages import Block, Message, Text, ToolResult, ToolUse
from orch_worker.conversation.archive_text import message_text
from orch_worker.conversation.records.prose import NUMBER
from orch_worker.conversation.tokens import strings

__all__ = ["KINDS", "Share", "evidence_in", "reachable_shares", "sample_evenly"]

KINDS: Final = ("paths", "commands", "numbers", "edits")

_PATH: Final = re.compile(r"(?<![\w/.~-])(?:~|\.{1,2})?(?:/?[\w.@+-]+)?(?:/[\w.@+-]+)+/?(?![\w/])")
_COMMAND_KEYS: Final = ("command", "cmd", "script")
_EDIT_KEYS: Final = ("old_string", "new_string", "oldText", "newText", "old_str", "new_str", "content", "new_content")
_EDITS: Final = re.compile(r"write|edit|replace|create|patch", re.I)
MIN_EDIT: Final = 8
MAX_CHARS: Final = 4_000


class Share(Struct, frozen=True):
    """The number of facts that are still reachable.

    `all` is the number of all facts. `asked` is the number of facts that were searched for, and `found` the number of
    reachable facts among them.
    """

    found: int = 0
    asked: int = 0
    all: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(self.found + other.found, self.asked + other.asked, self.all + other.all)

    @property
    def ratio(self) -> float:
        """`found` divided by `asked`, or 1.0 if `asked` is 0."""
        return self.found / self.asked if self.asked else 1.0


def evidence_in(messages: Iterable[Message]) -> dict[str, list[str]]:
    """Return the facts in `messages`, by kind.

    The kinds are paths with a slash, complete command lines, numbers and edited lines. A number counts if it has at
    least three digits or a unit.
    """
    found: dict[str, dict[str, None]] = {kind: {} for kind in KINDS}
    for message in messages:
        for block in message.content:
            for text in _texts(block):
                found["paths"].update((match[0].rstrip("."), None) for match in _PATH.finditer(text))
                found["numbers"].update((match[0], None) for match in NUMBER.finditer(text))
            if isinstance(block, ToolUse):
                found["commands"].update((line, None) for line in _lines(block, _COMMAND_KEYS, 3))
                if _EDITS.search(block.name):
                    found["edits"].update((line, None) for line in _lines(block, _EDIT_KEYS, MIN_EDIT))
    return {kind: [item for item in items if len(item) <= MAX_CHARS] for kind, items in found.items()}


def sample_evenly(items: Sequence[str], limit: int) -> list[str]:
    """Return at most `limit` of `items`, at even distances."""
    if len(items) <= limit:
        return list(items)
    return [items[place * len(items) // limit] for place in range(limit)]


def reachable_shares(
    items: dict[str, list[str]], context: Sequence[Message], recall: Callable[[str], str], limit: int
) -> dict[str, Share]:
    """Return the share of `items` that is still reachable, by kind.

    At most `limit` items of each kind are searched for. An item is reachable if it is in `context`. It is also
    reachable if `recall` returns a text that contains it.
    """
    there = "\n".join(message_text(message) for message in context)
    shares = {}
    for kind, all_items in items.items():
        asked = sample_evenly(all_items, limit)
        found = sum(item in there or item in recall(item) for item in asked)
        shares[kind] = Share(found, len(asked), len(all_items))
    return shares


def _texts(block: Block) -> Iterator[str]:
    match block:
        case Text(text):
            yield text
        case ToolUse(input=input):
            yield from strings(input)
        case ToolResult(content=content):
            yield from (part.text for part in content)


def _lines(block: ToolUse, keys: Sequence[str], minimum: int) -> Iterator[str]:
    for key in keys:
        value = block.input.get(key)
        if isinstance(value, str):
            yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= minimum)
