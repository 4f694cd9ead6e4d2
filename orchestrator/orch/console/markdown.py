"""What an agent says, line by line as it comes, as a terminal shows Markdown. What was shown is never changed."""

from __future__ import annotations

import re
from typing import Final

from .diffs import coloured
from .inline import balanced, inline
from .pieces import TAB, Piece, cells, fitting, wrapped
from .table import is_ruler, table

__all__ = ["Markdown", "Plain"]

Lines = list[list[Piece]]

FENCE: Final = re.compile(r"\s*(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w+#.-]*)[^`]*\Z")
HEADING: Final = re.compile(r" {0,3}(?P<marks>#{1,6})\s+(?P<text>.*)\Z")
RULER: Final = re.compile(r"\s*\|[\s:|-]*\Z")
"""The line below the head of a table, or its beginning."""
RULE: Final = re.compile(r" {0,3}([-*_])(?:\s*\1){2,}\s*\Z")
QUOTE: Final = re.compile(r" {0,3}(?P<marks>(?:>\s?)+)(?P<text>.*)\Z")
ITEM: Final = re.compile(r"(?P<indent>\s*)(?P<mark>[-*+]|\d{1,9}[.)])\s+(?P<task>\[[ xX]\]\s+)?(?P<text>.*)\Z")
BULLETS: Final = "-*+"
LONGEST_RULE: Final = 40
DEEPEST: Final = 8
MOST_ROWS: Final = 1000
MOST_ROW: Final = 4000
MOST_TABLE: Final = 100_000
"""What of a table goes beyond so many rows or characters, and one with a longer row, is shown as it is written."""
LONG: Final = 2000
"""What is longer is parted before it is looked at: its markup is looked for in time that grows with its square."""
PART: Final = 3
"""Of a paragraph that is too long to stand above the prompt, so many rows leave at once."""


class Plain:
    """Shows what is said as it is."""

    def line(self, text: str, _: int) -> Lines:
        """Return the line `text`."""
        return [[("", text)]]

    def held(self) -> Lines:
        """Return the complete lines that are waited with."""
        return []

    def partial(self, text: str, _: int) -> Lines:
        """Return what to show of a line of which `text` is there."""
        return [[("", text.expandtabs(TAB))]]

    def head(self, text: str, width: int) -> tuple[Lines, str]:
        """Return the rows of the beginning of a line that go, and the text that stays."""
        text = text.expandtabs(TAB)
        at = _place(text, width)
        return [[("", text[:at])]], text[at:].removeprefix(" ")

    def over(self, _: int) -> Lines:
        """Return what was waited with; nothing of it has to do with what comes next."""
        return []


class Markdown:
    """Shows headings, emphasis, lists, quotes, code and tables. A table is waited for until its end."""

    def __init__(self) -> None:
        self._fence = ""
        self._language = ""
        self._rows: list[str] = []
        self._hang: str | None = None
        """What the rest of a line stands behind whose beginning has gone, None when nothing has."""

    def line(self, text: str, width: int) -> Lines:
        """Return what to show now that the line `text` is complete."""
        text = text.expandtabs(TAB)
        if self._fence:
            self._hang = None
            return self._code(text)
        if self._is_row(text):
            self._rows.append(text)
            whole = len(self._rows) >= MOST_ROWS or sum(map(len, self._rows)) >= MOST_TABLE
            return self._table(width) if whole else []
        rows = self._table(width)
        while len(text) > LONG:
            part, text = self.head(text, width)
            rows += part
        hang, self._hang = self._hang, None
        if hang is not None:
            return [*rows, *_shown(text, width, hang)]
        if (found := FENCE.match(text)) is not None:
            self._fence, self._language = found["fence"], found["language"]
            return [*rows, [("note", text)]]
        return [*rows, *_shown(text, width)]

    def held(self) -> Lines:
        """Return the complete lines that are waited with: a table, as it is written."""
        return [[("", row)] for row in self._rows]

    def partial(self, text: str, width: int) -> Lines:
        """Return what to show of a line of which `text` is there."""
        text = text.expandtabs(TAB)
        if self._fence:
            return [[(_code_style(self._language, text), text)]]
        if self._is_row(text):
            return [[("", text)]]
        if len(text) > LONG:
            return wrapped([("", text[-LONG:])], width)
        return _shown(text, width, self._hang)

    def head(self, text: str, width: int) -> tuple[Lines, str]:
        """Return the rows of the beginning of a line that go, and the text that stays. Where emphasis is open a line is
        not parted, if it can be parted elsewhere."""
        text = text.expandtabs(TAB)
        if self._fence:
            at = _place(text, width, words=False)
            return [[(_code_style(self._language, text), text[:at])]], text[at:]
        most = _place(text, width * PART)
        places = (found.start() for found in re.finditer(r" ", text[: most + 1]))
        at = max((place for place in places if place and balanced(text[:place])), default=most)
        hang = _hang(text[:LONG])[: width // 2] if self._hang is None else self._hang
        rows = [*self._table(width), *_shown(text[:at], width, self._hang)]
        self._hang = hang
        return rows, text[at:].removeprefix(" ")

    def over(self, width: int) -> Lines:
        """Return what was waited with; nothing of it has to do with what comes next."""
        rows = self._table(width)
        self._fence, self._hang = "", None
        return rows

    def _is_row(self, text: str) -> bool:
        """Say whether a table goes on, or may begin, with the line."""
        if self._hang is not None or len(text) > MOST_ROW or not text.lstrip().startswith("|"):
            return False
        return len(self._rows) != 1 or RULER.match(text) is not None

    def _table(self, width: int) -> Lines:
        """Return the table that was waited for, if it is one."""
        rows, self._rows = self._rows, []
        if len(rows) < 2 or not is_ruler(rows[1]):
            return [line for row in rows for line in _shown(row, width)]
        return table(rows, width)

    def _code(self, text: str) -> Lines:
        bare = text.strip()
        if len(bare) >= len(self._fence) and not bare.strip(self._fence[0]):
            self._fence = ""
            return [[("note", text)]]
        return [[(_code_style(self._language, text), text)]]


def _shown(text: str, width: int, hang: str | None = None) -> Lines:
    """Return a line that is neither of code nor of a table; with `hang` it is the rest of one, and stands behind it."""
    if hang is not None:
        return wrapped(inline(text), width, [("", hang)], hang)
    if (found := HEADING.match(text)) is not None:
        style = "heading" if len(found["marks"]) < 3 else "strong"
        return wrapped(inline(found["text"].rstrip().rstrip("#").rstrip() or found["text"], style), width)
    if RULE.match(text):
        return [[("note", "─" * min(width, LONGEST_RULE))]]
    if (found := QUOTE.match(text)) is not None:
        bar = _bar(found["marks"])
        rows = wrapped(inline(found["text"], "quote"), max(1, width - len(bar)))
        return [[("note", bar), *row] for row in rows]
    if (found := ITEM.match(text)) is not None:
        first = _before(found)
        return wrapped(inline(found["text"]), width, [("", first)], " " * cells(first))
    lead = text[: len(text) - len(text.lstrip())]
    return wrapped(inline(text[len(lead) :]), width, [("", lead)], lead)


def _before(found: re.Match[str]) -> str:
    """Return what stands before the text of an item."""
    mark = "•" if found["mark"] in BULLETS else found["mark"]
    task = {"": "", " ": "☐ "}.get((found["task"] or "")[1:2], "☑ ")
    return f"{found['indent']}{mark} {task}"


def _bar(marks: str) -> str:
    """Return what stands before a quote; one within many others has to have room."""
    return "│ " * min(DEEPEST, marks.count(">"))


def _hang(text: str) -> str:
    """Return what the rows of the line `text` after its first stand behind."""
    if (found := ITEM.match(text)) is not None:
        return " " * cells(_before(found))
    if (quote := QUOTE.match(text)) is not None:
        return _bar(quote["marks"])
    return text[: len(text) - len(text.lstrip())]


def _code_style(language: str, text: str) -> str:
    return coloured(text) if language == "diff" else "code"


def _place(text: str, width: int, *, words: bool = True) -> int:
    """Return how many characters of `text` have room in `width` columns, up to a space where there is one."""
    at = max(1, len(fitting(text, width)))
    if at == len(text):
        return at
    space = text.rfind(" ", 1, at + 1) if words else -1
    return space if space > 0 else at
