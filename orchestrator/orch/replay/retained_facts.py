"""What a conversation has said that may be needed again, and whether it can still be had."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from orch_protocol.core.messages import Block, Message, Text, ToolResult, ToolUse
from orch_worker.conversation.receipt import NUMBER
from orch_worker.conversation.tokens import strings

from ..archival.store.index import message_text

__all__ = ["KINDS", "Share", "evidence_in", "reachable_shares", "sample_evenly"]

KINDS: Final = ("paths", "commands", "numbers", "edits")

_PATH: Final = re.compile(r"(?<![\w/.~-])(?:~|\.{1,2})?(?:/?[\w.@+-]+)?(?:/[\w.@+-]+)+/?(?![\w/])")
_COMMAND_KEYS: Final = ("command", "cmd", "script")
_EDIT_KEYS: Final = ("old_string", "new_string", "oldText", "newText", "old_str", "new_str", "content", "new_content")
_EDITS: Final = re.compile(r"write|edit|replace|create|patch", re.I)
LEAST_EDIT: Final = 8
MOST_CHARS: Final = 4_000


class Share(Struct, frozen=True):
    """How many of the `asked` items could still be had; `found` of those that were looked for, of `all` there were."""

    found: int = 0
    asked: int = 0
    all: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(self.found + other.found, self.asked + other.asked, self.all + other.all)

    @property
    def ratio(self) -> float:
        """Found of asked; 1.0 when there was nothing to ask for."""
        return self.found / self.asked if self.asked else 1.0


def evidence_in(messages: Iterable[Message]) -> dict[str, list[str]]:
    """Return the paths with a slash, full command lines, numbers (3+ digits or with a unit) and edited lines said."""
    found: dict[str, dict[str, None]] = {kind: {} for kind in KINDS}
    for message in messages:
        for block in message.content:
            for text in _texts(block):
                found["paths"].update((match[0], None) for match in _PATH.finditer(text))
                found["numbers"].update((match[0], None) for match in NUMBER.finditer(text))
            if isinstance(block, ToolUse):
                found["commands"].update((line, None) for line in _lines(block, _COMMAND_KEYS, 3))
                if _EDITS.search(block.name):
                    found["edits"].update((line, None) for line in _lines(block, _EDIT_KEYS, LEAST_EDIT))
    return {kind: [item for item in items if len(item) <= MOST_CHARS] for kind, items in found.items()}


def sample_evenly(items: Sequence[str], most: int) -> list[str]:
    """Return at most `most` of `items`, evenly spread."""
    if len(items) <= most:
        return list(items)
    return [items[place * len(items) // most] for place in range(most)]


def reachable_shares(
    items: dict[str, list[str]], context: Sequence[Message], recall: Callable[[str], str] | None, most: int
) -> dict[str, Share]:
    """Return, for each kind, which share of `items` stands in `context` or in what `recall` returns for the item."""
    there = "\n".join(message_text(message) for message in context)
    shares = {}
    for kind, all_items in items.items():
        asked = sample_evenly(all_items, most)
        found = sum(item in there or (recall is not None and item in recall(item)) for item in asked)
        shares[kind] = Share(found, len(asked), len(all_items))
    return shares


def _texts(block: Block) -> Iterator[str]:
    match block:
        case Text(text):
            yield text
        case ToolUse(input=input):
            yield from strings(input)
        case ToolResult(content=content):
            yield from (part.text for part in content if isinstance(part, Text))


def _lines(block: ToolUse, keys: Sequence[str], least: int) -> Iterator[str]:
    for key in keys:
        value = block.input.get(key)
        if isinstance(value, str):
            yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= least)
