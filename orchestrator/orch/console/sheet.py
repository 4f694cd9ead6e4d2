"""What is to be shown: styled lines that are complete, and the one that is still written. Nothing here is obeyed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from ..cli import render

__all__ = ["Piece", "Sheet", "cleaned", "cut"]

Piece: TypeAlias = tuple[str, str]
"""A style and a text. Styles: "" for what the agent says, and `call error task note you ask add del hunk strong`."""
TAB = 4


def cleaned(text: str) -> str:
    """Return `text` as a terminal may have it: control characters written out, line ends as one character."""
    return render.safe(text.replace("\r\n", "\n"))


def cut(pieces: Iterable[Piece], width: int) -> list[Piece]:
    """Return what of `pieces` fits into `width` characters, and an ellipsis where something does not."""
    left, found = width, []
    for style, text in pieces:
        if len(text) > left:
            found.append((style, text[: max(0, left - 1)] + "…" * (left > 0)))
            break
        found.append((style, text))
        left -= len(text)
    return found


class Sheet:
    """Takes texts as they come; `take` gives the lines that are complete since, `live` is the one under way."""

    def __init__(self) -> None:
        self._lines: list[list[Piece]] = []
        self._live: list[Piece] = []

    @property
    def live(self) -> list[Piece]:
        """The line that is not complete yet."""
        return [(style, text.expandtabs(TAB)) for style, text in self._live]

    @property
    def pending(self) -> bool:
        """Whether there are complete lines to take."""
        return bool(self._lines)

    def text(self, text: str, style: str = "") -> None:
        """Add `text`, which may begin, go on with, and end lines."""
        first, *others = cleaned(text).split("\n")
        self._add(style, first)
        for each in others:
            self._end()
            self._add(style, each)

    def note(self, text: str, style: str = "note") -> None:
        """Add lines of their own."""
        self.close()
        self.text(text, style)
        self._end()

    def pieces(self, lines: Iterable[Iterable[Piece]]) -> None:
        """Add lines that are styled already."""
        self.close()
        for line in lines:
            for style, text in line:
                self._add(style, cleaned(text).replace("\n", "\\n"))
            self._end()

    def close(self) -> None:
        """Let the next text begin a line."""
        if self._live:
            self._end()

    def wrap(self, width: int, rows: int) -> None:
        """Complete as many rows of `width` of the line under way as go beyond `rows`, at spaces where there are any."""
        while sum(len(text) for _, text in self.live) > width * rows:
            style, text = self._live[0]
            if len(text) <= width:
                self._lines.append([self._live.pop(0)])
                continue
            end = text.rfind(" ", 1, width + 1)
            end = end if end > 0 else width
            self._lines.append([(style, text[:end])])
            self._live[0] = style, text[end:].removeprefix(" ")

    def take(self) -> list[list[Piece]]:
        """Return the complete lines that were not taken yet."""
        lines, self._lines = self._lines, []
        return lines

    def _add(self, style: str, text: str) -> None:
        if not text:
            return
        if self._live and self._live[-1][0] == style:
            self._live[-1] = style, self._live[-1][1] + text
        else:
            self._live.append((style, text))

    def _end(self) -> None:
        self._lines.append(self._live)
        self._live = []
