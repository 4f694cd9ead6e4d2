"""Emphasis, code and links within a line of Markdown. Data in, data out; markers without a partner stay as they are.

What is looked for in vain is not looked for again, so that time grows with the length of a line, whatever is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from .pieces import Piece, joined

__all__ = ["balanced", "inline", "styled"]

DEEPEST: Final = 8
SPECIAL: Final = re.compile(r"\\|`+|\*+|_+|~~+|!?\[")
RUNS: Final = {mark: re.compile(re.escape(mark) + "+") for mark in "`*_~"}
ESCAPED: Final = frozenset("\\`*_{}[]()#+.!|>~-")
LINK: Final = re.compile(r"!?\[(?P<label>[^\[\]]+)\]\((?P<to>(?:[^()\s]|\([^()\s]*\))+)\)")
STYLES: Final = {"*": "em", "**": "strong", "***": "strong,em", "~~": "strike"}


def inline(text: str, style: str = "") -> list[Piece]:
    """Return `text` without its markup, in the styles that this stands for, on top of `style`."""
    return joined(_Span(text, style, DEEPEST).pieces())


def styled(outer: str, inner: str) -> str:
    """Return both styles as one."""
    return f"{outer},{inner}" if outer and inner else outer or inner


def balanced(text: str) -> bool:
    """Say whether no emphasis and no code is open at the end of `text`, as far as counting tells."""
    return all(text.count(mark) % 2 == 0 for mark in ("`", "**", "~~")) and text.count("[") == text.count("]")


class _Span:
    """A text within a line, all of it in one style, as far as nothing in it says otherwise."""

    def __init__(self, text: str, style: str, deep: int) -> None:
        self._text = text
        self._style = style
        self._deep = deep
        self._vain: set[str] = set()
        """Markers of which none is left to close anything."""

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces, some of which may be empty."""
        at = start = 0
        while self._deep and (found := SPECIAL.search(self._text, at)) is not None:
            mark, at = found[0], found.end()
            made, end = self._made(mark, found.start())
            if end:
                yield self._style, self._text[start : found.start()]
                yield from made
                start = at = end
        yield self._style, self._text[start:]

    def _made(self, mark: str, at: int) -> tuple[list[Piece], int]:
        """Return what begins with the marker at `at`, and where it ends, 0 when nothing does."""
        if mark == "\\":
            following = self._text[at + 1 : at + 2]
            return ([(self._style, following)], at + 2) if following in ESCAPED and following else ([], 0)
        if mark[0] == "`":
            return self._code(mark, at)
        if mark[-1] == "[":
            return self._link(at)
        return self._emphasis(mark, at)

    def _code(self, mark: str, at: int) -> tuple[list[Piece], int]:
        begin = at + len(mark)
        if mark in self._vain:
            return [], 0
        for found in RUNS["`"].finditer(self._text, begin):
            if found[0] == mark:
                code = self._text[begin : found.start()]
                return [(styled(self._style, "code"), _bare(code))], found.end()
        self._vain.add(mark)
        return [], 0

    def _link(self, at: int) -> tuple[list[Piece], int]:
        found = LINK.match(self._text, at)
        if found is None:
            return [], 0
        label, to = found["label"], found["to"]
        pieces = self._within(label, "link")
        if to not in (label, f"mailto:{label}"):
            pieces.append((styled(self._style, "note"), f" ({to})"))
        return pieces, found.end()

    def _emphasis(self, mark: str, at: int) -> tuple[list[Piece], int]:
        begin = at + len(mark)
        style = STYLES.get(mark.replace("_", "*"))
        if style is None or mark in self._vain or self._text[begin : begin + 1].strip() == "":
            return [], 0
        if mark[0] == "_" and _is_word(self._text[at - 1 : at]):
            return [], 0
        close = self._close(mark, begin + 1)
        return (self._within(self._text[begin:close], style), close + len(mark)) if close else ([], 0)

    def _close(self, mark: str, at: int) -> int:
        """Return where the emphasis is closed, 0 for nowhere."""
        for found in RUNS[mark[0]].finditer(self._text, at):
            place = found.start()
            ends = found[0] == mark or (len(mark) > 1 and len(found[0]) == len(mark) + 1)
            inner = mark[0] == "_" and _is_word(self._text[place + len(mark) : place + len(mark) + 1])
            if ends and not inner and not self._text[place - 1].isspace():
                return place + len(found[0]) - len(mark)
        self._vain.add(mark)
        return 0

    def _within(self, text: str, style: str) -> list[Piece]:
        return list(_Span(text, styled(self._style, style), self._deep - 1).pieces())


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _bare(code: str) -> str:
    """Return code without the space on either side that stands between it and backticks of its own."""
    return code[1:-1] if code.startswith(" ") and code.endswith(" ") and code.strip() else code
