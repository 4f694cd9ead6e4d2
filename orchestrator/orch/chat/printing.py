"""Output on a terminal without an input line. The agent's Markdown is rendered as it arrives."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from typing import Final

from ..render import terminal
from ..render.transcript import PlainOutput
from .text.live_text import LiveText
from .text.markdown import Markdown
from .text.styled_text import Piece

__all__ = ["MarkdownOutput", "turn_output"]

ROWS: Final = 3
"""The maximum height in rows of an incomplete paragraph. The first rows of a higher paragraph are printed."""
SGR: Final = {
    "strong": "1",
    "em": "3",
    "heading": "1;4",
    "code": "36",
    "link": "4",
    "quote": "3",
    "strike": "9",
    "note": "90",
    "add": "32",
    "del": "31",
    "hunk": "35",
}


class MarkdownOutput:
    """Prints the agent's text on stdout when a line is complete, and all other output on stderr.

    Call `finish` at the end, because a table is printed only when it is complete.
    """

    def __init__(self) -> None:
        self._output = LiveText(Markdown())

    def text(self, text: str) -> None:
        """Print a part of the agent's text."""
        self._output.resize(shutil.get_terminal_size().columns)
        self._output.text(text)
        self._output.scroll(ROWS)
        self._print()

    def note(self, text: str, style: str = "") -> None:  # noqa: ARG002
        """Print a line on stderr."""
        self.finish()
        print(text, file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Print the rest of the agent's text."""
        self._output.finish()
        self._print()

    def _print(self) -> None:
        for line in self._output.take():
            sys.stdout.write(f"{_to_ansi(line)}\n")
        sys.stdout.flush()


def _to_ansi(line: Iterable[Piece]) -> str:
    return "".join(_styled(text, ";".join(SGR[each] for each in style.split(",") if each)) for style, text in line)


def _styled(text: str, codes: str) -> str:
    return f"\x1b[{codes}m{text}\x1b[0m" if codes else text


def turn_output() -> PlainOutput | MarkdownOutput:
    """Return the output for a turn or an answer. On a terminal it renders Markdown, elsewhere it prints plain text."""
    is_capable = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
    if not is_capable or os.environ.get("NO_COLOR") or not terminal.supports_unicode(sys.stdout):
        return PlainOutput()

    return MarkdownOutput()
