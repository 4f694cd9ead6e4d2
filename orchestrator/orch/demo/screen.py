"""Output of the demo. On a terminal, lines are styled and can be replaced; elsewhere, the output is plain lines."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TextIO

from ..render import terminal

__all__ = ["REFRESH_SECONDS", "DemoScreen", "make_screen"]

NARROWEST: Final = 80
WIDEST: Final = 120
INDENT: Final = "   "
QUOTED_LINES: Final = 2
REFRESH_SECONDS: Final = 0.2
"""Interval between updates of live lines."""


class DemoScreen:
    """Writes lines of at most `width` columns to `out`, which shows `height` lines.

    `live` means that lines may be replaced. `color` means that lines may be styled.
    """

    def __init__(
        self, out: TextIO, *, width: int = 80, height: int = 24, live: bool = False, color: bool = False
    ) -> None:
        self.width = width
        self.live = live
        self.unicode = terminal.supports_unicode(out)
        """Whether the output supports characters outside ASCII."""
        self._out, self._height, self._color = out, height, color
        self._replaceable = 0
        """The number of last lines that the next `update` replaces."""

    def heading(self, text: str) -> None:
        """Write the title of a part."""
        self._write(["", *map(self._bold, textwrap.wrap(text, self.width))])

    def say(self, text: str) -> None:
        """Write a paragraph, wrapped and indented."""
        self._write(self._wrapped(text))

    def figure(self, text: str) -> None:
        """Write what a part has measured, wrapped and indented, in bold."""
        self._write([*map(self._bold, self._wrapped(f"=> {text}"))])

    def quote(self, text: str) -> None:
        """Write a quotation of at most two lines. Each line begins with `>`."""
        mark = f"{INDENT}> "
        wrapped = textwrap.wrap(
            terminal.safe(" ".join(text.splitlines())),
            self.width,
            initial_indent=mark,
            subsequent_indent=mark,
            max_lines=QUOTED_LINES,
            placeholder=" …" if self.unicode else " ...",
            break_on_hyphens=False,
        )
        self._write(wrapped)

    def lines(self, lines: Iterable[str]) -> None:
        """Write lines without wrapping. The lines are indented and truncated to the width."""
        self._write([self._cut(line) for line in lines])

    def untruncated(self, line: str) -> None:
        """Write an indented line without truncation, such as a command or path to copy."""
        self._write([f"{INDENT}{terminal.safe(line)}"])

    def update(self, lines: Sequence[str]) -> None:
        """On a terminal, replace the lines of the last `update`. On other outputs, write nothing.

        If the terminal is lower than the lines, only the last lines are shown, because others cannot be replaced.
        """
        if self.live:
            self._erase()
            cut = [self._cut(line) for line in lines[-max(self._height - 1, 1) :]]
            self._out.write("".join(f"{line}\n" for line in cut))
            self._out.flush()
            self._replaceable = len(cut)

    def _write(self, lines: Sequence[str]) -> None:
        self._erase()
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()

    def _erase(self) -> None:
        if self._replaceable:
            self._out.write(f"\x1b[{self._replaceable}A\x1b[J")
            self._replaceable = 0

    def _bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self._color else text

    def _wrapped(self, text: str) -> list[str]:
        return textwrap.wrap(text, self.width, initial_indent=INDENT, subsequent_indent=INDENT, break_long_words=False)

    def _cut(self, line: str) -> str:
        return f"{INDENT}{terminal.safe(line)}"[: self.width].rstrip()


def make_screen(out: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> DemoScreen:
    """Return a screen for `out`; None selects stdout. On a terminal the screen is live and styled, otherwise plain.

    With the variable CI or TERM=dumb, the screen is also plain. NO_COLOR disables styles but not live lines. COLUMNS
    sets the width, also for a pipe.
    """
    out = out or sys.stdout
    columns, rows = shutil.get_terminal_size((NARROWEST, 24))
    rich = out.isatty() and environ.get("TERM") != "dumb" and not environ.get("CI")
    return DemoScreen(
        out,
        width=min(max(columns, NARROWEST), WIDEST),
        height=rows,
        live=rich and columns >= NARROWEST,  # in a narrow terminal lines wrap, and wrapped lines cannot be replaced
        color=rich and not environ.get("NO_COLOR"),
    )
