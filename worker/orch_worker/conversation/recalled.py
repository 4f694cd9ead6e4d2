"""Renders search hits and archived entries for a model. The text has a limited size and explains how to read more."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from orch_protocol.core.messages import Message
from orch_protocol.services.archives.recall import SearchHit

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
            parts.append(f"{len(hits) - len(parts)} more: use a more specific query")
            break
        parts.append(part)
        left -= len(part) + 2
    return "\n\n".join(parts)


def with_hits(question: str, hits: Sequence[SearchHit]) -> str:
    """Return `question` for the holder of an era, with the passages that a search in the era found."""
    return f"{question}\n\n{FOUND}\n\n{shown_hits(hits)}" if hits else question


def split_hits(question: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the question and the passages in a text made by `with_hits`. Each passage comes with its source."""
    asked, _, found = question.partition(f"\n\n{FOUND}\n\n")
    return asked, hits_in(found)


def hits_in(shown: str) -> tuple[tuple[str, str], ...]:
    """Return the passages in a text made by `shown_hits`. Each passage comes with its source: `<id> entry <number>`."""
    parts = [part.partition(":\n") for part in shown.split("\n\n") if _WHERE.match(part)]
    return tuple((_WHERE.match(head)[1], text) for head, _, text in parts)  # type: ignore[index]


def shown_entries(first: int, messages: Sequence[Message]) -> str:
    """Return `messages` as text of at most 12,000 characters. The first message is entry number `first`."""
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
