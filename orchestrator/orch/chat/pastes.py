"""Long pastes: whole in what is said, folded to a mark in what is shown."""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = ["Pastes", "format_folded", "format_prompt"]

MOST_CHARACTERS: Final = 1000
MOST_LINES: Final = 8
MARK: Final = re.compile(r"\[pasted ([0-9a-f]{8}): [\d,]+ characters, [\d,]+ lines?\]")
HEAD: Final = 3


class Pastes:
    """The long texts that were pasted, each with the mark that stands for it."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """Return what to show of a paste: the text itself, or, of a long one, a mark."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.count("\n") + 1
        if len(text) <= MOST_CHARACTERS and lines <= MOST_LINES:
            return text
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        self._texts[key] = text
        return f"[pasted {key}: {len(text):,} characters, {lines:,} line{'s' * (lines > 1)}]"

    def unfold(self, text: str) -> tuple[str, list[str]]:
        """Return `text` with each mark replaced by what it stands for, and the marks that stand for nothing known."""
        unknown = [found[0] for found in MARK.finditer(text) if found[1] not in self._texts]
        return MARK.sub(lambda found: self._texts.get(found[1], found[0]), text), unknown


def format_prompt(text: str) -> str:
    """Return `text` as a prompt is shown: behind its sign, the other lines below its beginning."""
    return "> " + format_folded(text).replace("\n", "\n  ")


def format_folded(text: str) -> str:
    """Return `text` as it is shown once it is said: its first lines, and how much more there is."""
    lines = text.split("\n")
    if len(lines) <= MOST_LINES and len(text) <= MOST_CHARACTERS:
        return text
    head = "\n".join(lines[:HEAD])[: MOST_CHARACTERS // 2]
    return f"{head} … ({len(text):,} characters in all)"
