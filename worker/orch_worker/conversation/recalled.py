"""What a model reads of what was archived: places found, entries shown. Bounded, and says how to get at the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from orch_protocol.core.messages import Message
from orch_protocol.services.recall import SearchHit

from .rendering import render_message
from .tokens import clip

__all__ = ["hits_in", "shown_entries", "shown_hits", "split_hits", "with_hits"]

SEARCH_CHARS: Final = 4_500
READ_CHARS: Final = 12_000
_WHERE: Final = re.compile(r"([a-f][0-9a-f]{11} entry \d+) \(")
FOUND: Final = "[Found by search in what you hold:]"


def shown_hits(hits: Sequence[SearchHit]) -> str:
    """Return `hits` as text of at most about 1,500 tokens."""
    if not hits:
        return "Nothing in the archives resembles that."
    parts: list[str] = []
    left = SEARCH_CHARS
    for hit in hits:
        part = f"{hit.id} entry {hit.entry} ({hit.task}){'' if hit.exact else ', similar'}:\n{hit.text}"
        if parts and len(part) > left:
            parts.append(f"{len(hits) - len(parts)} more: ask for something more particular")
            break
        parts.append(part)
        left -= len(part) + 2
    return "\n\n".join(parts)


def with_hits(question: str, hits: Sequence[SearchHit]) -> str:
    """Return `question` for whoever holds an era, with what a search in that found for it."""
    return f"{question}\n\n{FOUND}\n\n{shown_hits(hits)}" if hits else question


def split_hits(question: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return what `with_hits` put together: the question, and the passages, each with where it is from."""
    asked, _, found = question.partition(f"\n\n{FOUND}\n\n")
    return asked, hits_in(found)


def hits_in(shown: str) -> tuple[tuple[str, str], ...]:
    """Return the passages that `shown_hits` showed, each with where it is from: `<id> entry <number>`."""
    parts = [part.partition(":\n") for part in shown.split("\n\n") if _WHERE.match(part)]
    return tuple((_WHERE.match(head)[1], text) for head, _, text in parts)  # type: ignore[index]


def shown_entries(first: int, messages: Sequence[Message]) -> str:
    """Return `messages`, the first of which is entry `first`, as text of at most 12,000 characters."""
    parts: list[str] = []
    left = READ_CHARS
    for number, message in enumerate(messages, first):
        part = f"[entry {number}]\n{render_message(message)}"
        if parts and len(part) > left:
            parts.append(f"[more: read_archive with first={number}]")
            break
        parts.append(clip(part, READ_CHARS, "search_archive finds passages in it"))
        left -= len(part)
    return "\n\n".join(parts) or "There is no such entry."
