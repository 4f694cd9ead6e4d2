"""Long pastes. A long paste is sent in full, and shown as a short marker in the input line."""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = ["Pastes", "format_folded", "format_prompt"]

MAX_CHARACTERS: Final = 1000
MAX_LINES: Final = 8
MARKER: Final = re.compile(r"\[pasted ([0-9a-f]{8}): [\d,]+ characters, [\d,]+ lines?\]")
HEAD_LINES: Final = 3


class Pastes:
    """The long pasted texts by their markers."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """Return a pasted text as it is shown. A short text is unchanged, a long text is replaced by a marker."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.count("\n") + 1
        if len(text) <= MAX_CHARACTERS and lines <= MAX_LINES:
            return text
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        self._texts[key] = text
        return f"[pasted {key}: {len(text):,} characters, {lines:,} line{'s' * (lines > 1)}]"

    def unfold(self, text: str) -> tuple[str, list[str]]:
        """Return `text` with each marker replaced by the pasted text, and the list of unknown markers."""
        unknown = [found[0] for found in MARKER.finditer(text) if found[1] not in self._texts]
        return MARKER.sub(lambda found: self._texts.get(found[1], found[0]), text), unknown


def format_prompt(text: str) -> str:
    """Return `text` as prompts are shown. The first line follows "> ", and further lines are indented."""
    return "> " + format_folded(text).replace("\n", "\n  ")


def format_folded(text: str) -> str:
    """Return `text` in the form in which it is shown after sending.

    The result contains the first lines. If the text is long, the result also contains its length.
    """
    lines = text.split("\n")
    if len(lines) <= MAX_LINES and len(text) <= MAX_CHARACTERS:
        return text
    head = "\n".join(lines[:HEAD_LINES])[: MAX_CHARACTERS // 2]
    return f"{head} … ({len(text):,} characters in all)"
