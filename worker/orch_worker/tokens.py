"""Cutting text down to size."""

from __future__ import annotations

from typing import Final

__all__ = ["CHARS_PER_TOKEN", "clip"]

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
