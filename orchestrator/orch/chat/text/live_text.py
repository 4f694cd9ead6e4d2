"""What is to be shown: styled lines that are complete, and what is still written. Nothing here is obeyed."""

from __future__ import annotations

from collections.abc import Iterable

from .markdown import Markdown, Plain
from .styled_text import Piece, display_width, escape_control_characters

__all__ = ["LiveText"]

WIDTH = 80
LONGEST = 100_000
"""A longer line is no paragraph: it is shown as it is."""


class LiveText:
    """Takes what the agent says as it comes, which `form` gives its shape; `take` gives the lines that are complete
    since, `live` is what is under way. Notes stand before that: they part nothing that is being said."""

    def __init__(self, form: Markdown | Plain | None = None) -> None:
        self._form = form or Plain()
        self._lines: list[list[Piece]] = []
        self._said = ""
        self._width = WIDTH

    @property
    def live(self) -> list[list[Piece]]:
        """The lines that may look otherwise yet."""
        return [*self._form.held(), *self._under_way()]

    @property
    def pending(self) -> bool:
        """Whether there are complete lines to take."""
        return bool(self._lines)

    def text(self, text: str) -> None:
        """Add what the agent says, which may begin, go on with, and end lines."""
        *lines, self._said = (self._said + escape_control_characters(text)).split("\n")
        for line in lines:
            self._lines += self._form.line(line, self._width) if len(line) <= LONGEST else [[("", line)]]

    def note(self, text: str, style: str = "note") -> None:
        """Add lines of their own."""
        self._lines += [[(style, line)] if line else [] for line in escape_control_characters(text).split("\n")]

    def pieces(self, lines: Iterable[Iterable[Piece]]) -> None:
        """Add lines that are styled already."""
        for line in lines:
            self._lines.append([(style, escape_control_characters(text).replace("\n", "\\n")) for style, text in line])

    def close(self) -> None:
        """Let the next text begin a line."""
        if self._said:
            self.text("\n")

    def over(self) -> None:
        """What the agent says next has nothing to do with what it said."""
        self.close()
        self._lines += self._form.over(self._width)

    def resize(self, width: int) -> None:
        """Lines that come have room in `width` columns."""
        self._width = width

    def scroll(self, rows: int) -> None:
        """Complete so much of the line under way that it stands in so many `rows`."""
        if len(self._said) > LONGEST:
            self.close()
        while len(self._said) > self._width * rows or sum(map(self._rows, self._under_way())) > rows:
            lines, self._said = self._form.head(self._said, self._width)
            self._lines += lines

    def take(self) -> list[list[Piece]]:
        """Return the complete lines that were not taken yet."""
        lines, self._lines = self._lines, []
        return lines

    def _under_way(self) -> list[list[Piece]]:
        return self._form.partial(self._said, self._width) if self._said else []

    def _rows(self, line: list[Piece]) -> int:
        return max(1, -(-sum(display_width(text) for _, text in line) // self._width))
