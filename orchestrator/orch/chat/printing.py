"""Where lines are printed at a terminal and no prompt stands below them: what an agent says as the Markdown it is."""

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
"""A paragraph that takes more is printed as far as it has come."""
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
    """Prints on stdout what is said, each line once it is complete, and everything else on stderr. Whoever is done says
    so with `over`: a table is printed at its end."""

    def __init__(self) -> None:
        self._sheet = LiveText(Markdown())

    def text(self, text: str) -> None:
        """Take a piece of what is said."""
        self._sheet.resize(shutil.get_terminal_size().columns)
        self._sheet.text(text)
        self._sheet.scroll(ROWS)
        self._print()

    def note(self, text: str, style: str = "") -> None:  # noqa: ARG002
        """Print a line about what is done."""
        self.over()
        print(text, file=sys.stderr, flush=True)

    def over(self) -> None:
        """Print what is left of what was said."""
        self._sheet.over()
        self._print()

    def _print(self) -> None:
        for line in self._sheet.take():
            sys.stdout.write(f"{_to_ansi(line)}\n")
        sys.stdout.flush()


def _to_ansi(line: Iterable[Piece]) -> str:
    return "".join(_styled(text, ";".join(SGR[each] for each in style.split(",") if each)) for style, text in line)


def _styled(text: str, codes: str) -> str:
    return f"\x1b[{codes}m{text}\x1b[0m" if codes else text


def turn_output() -> PlainOutput | MarkdownOutput:
    """Return the output of a turn or an answer: rendered Markdown on a terminal, plain text elsewhere."""
    can = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
    if not can or os.environ.get("NO_COLOR") or not terminal.supports_unicode(sys.stdout):
        return PlainOutput()

    return MarkdownOutput()
