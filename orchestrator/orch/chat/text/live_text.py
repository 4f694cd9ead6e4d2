"""Output of a chat as complete styled lines and incomplete text. Control characters are escaped."""

from __future__ import annotations

from collections.abc import Iterable

from .markdown import Markdown, Plain
from .styled_text import Piece, display_width, escape_control_characters

__all__ = ["LiveText"]

WIDTH = 80
MAX_LINE = 100_000
"""Longer lines are shown without formatting."""


class LiveText:
    """Collects the agent's text as it arrives, and formats the text with `formatter`.

    `take` returns lines that have become complete. `live` is the incomplete rest. Notes are inserted before the
    incomplete text, so that notes do not split the incomplete text.
    """

    def __init__(self, formatter: Markdown | Plain | None = None) -> None:
        self._formatter = formatter or Plain()
        self._lines: list[list[Piece]] = []
        self._last_line = ""
        self._width = WIDTH

    @property
    def live(self) -> list[list[Piece]]:
        """The lines that may still change."""
        return [*self._formatter.waiting_lines(), *self._partial_rows()]

    @property
    def pending(self) -> bool:
        """Whether there are complete lines to take."""
        return bool(self._lines)

    def text(self, text: str) -> None:
        """Add text of the agent, which may contain partial lines."""
        *lines, self._last_line = (self._last_line + escape_control_characters(text)).split("\n")
        for line in lines:
            self._lines += self._formatter.line(line, self._width) if len(line) <= MAX_LINE else [[("", line)]]

    def note(self, text: str, style: str = "note") -> None:
        """Add separate lines."""
        self._lines += [[(style, line)] if line else [] for line in escape_control_characters(text).split("\n")]

    def pieces(self, lines: Iterable[Iterable[Piece]]) -> None:
        """Add styled lines."""
        for line in lines:
            self._lines.append([(style, escape_control_characters(text).replace("\n", "\\n")) for style, text in line])

    def close(self) -> None:
        """End the current line."""
        if self._last_line:
            self.text("\n")

    def finish(self) -> None:
        """End the current text. The next text is formatted independently of this text."""
        self.close()
        self._lines += self._formatter.finish(self._width)

    def resize(self, width: int) -> None:
        """Set the width of later lines."""
        self._width = width

    def scroll(self, rows: int) -> None:
        """Complete the beginning of the current line. The remaining part of the line takes at most `rows` rows."""
        if len(self._last_line) > MAX_LINE:
            self.close()
        while len(self._last_line) > self._width * rows or sum(map(self._rows, self._partial_rows())) > rows:
            lines, self._last_line = self._formatter.head(self._last_line, self._width)
            self._lines += lines

    def take(self) -> list[list[Piece]]:
        """Return the complete lines that were not returned before."""
        lines, self._lines = self._lines, []
        return lines

    def _partial_rows(self) -> list[list[Piece]]:
        return self._formatter.partial(self._last_line, self._width) if self._last_line else []

    def _rows(self, line: list[Piece]) -> int:
        return max(1, -(-sum(display_width(text) for _, text in line) // self._width))
