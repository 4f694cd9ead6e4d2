"""What an agent says, line by line as it comes, as a terminal shows Markdown. What was shown is never changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from .diffs import diff_line_style
from .styled_text import TAB, Piece, display_width, join_neighbors, prefix_of_width, wrap

__all__ = ["Markdown", "Plain", "combine_styles", "is_balanced", "is_ruler", "render_inline", "render_table"]


# --- Emphasis, code and links within a line of Markdown ---

DEEPEST: Final = 8
SPECIAL: Final = re.compile(r"\\|`+|\*+|_+|~~+|!?\[")
RUNS: Final = {mark: re.compile(re.escape(mark) + "+") for mark in "`*_~"}
ESCAPED: Final = frozenset("\\`*_{}[]()#+.!|>~-")
LINK: Final = re.compile(r"!?\[(?P<label>[^\[\]]+)\]\((?P<to>(?:[^()\s]|\([^()\s]*\))+)\)")
STYLES: Final = {"*": "em", "**": "strong", "***": "strong,em", "~~": "strike"}


def render_inline(text: str, style: str = "") -> list[Piece]:
    """Return `text` without its markup, in the styles that this stands for, on top of `style`."""
    return join_neighbors(_Span(text, style, DEEPEST).pieces())


def combine_styles(outer: str, inner: str) -> str:
    """Return both styles as one."""
    return f"{outer},{inner}" if outer and inner else outer or inner


def is_balanced(text: str) -> bool:
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
                return [(combine_styles(self._style, "code"), _bare(code))], found.end()
        self._vain.add(mark)
        return [], 0

    def _link(self, at: int) -> tuple[list[Piece], int]:
        found = LINK.match(self._text, at)
        if found is None:
            return [], 0
        label, to = found["label"], found["to"]
        pieces = self._within(label, "link")
        if to not in (label, f"mailto:{label}"):
            pieces.append((combine_styles(self._style, "note"), f" ({to})"))
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
        return list(_Span(text, combine_styles(self._style, style), self._deep - 1).pieces())


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _bare(code: str) -> str:
    """Return code without the space on either side that stands between it and backticks of its own."""
    return code[1:-1] if code.startswith(" ") and code.endswith(" ") and code.strip() else code


# --- A table of Markdown as it stands at a terminal ---

TABLE_RULER: Final = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*\Z")
BAR: Final = re.compile(r"(?<!\\)\|")
BETWEEN: Final = " │ "
LEAST: Final = 5
"""Columns narrower than that are not read any more: each row becomes a list then."""


def is_ruler(line: str) -> bool:
    """Say whether `line` is the one between the head of a table and its rows."""
    return "-" in line and TABLE_RULER.match(line.strip()) is not None


def render_table(lines: Sequence[str], width: int) -> list[list[Piece]]:
    """Return the table that `lines` are, its head and ruler first, within `width` columns."""
    sides = [_side(cell) for cell in _cells(lines[1])]
    count = len(sides)
    rows = [
        [render_inline(cell, "strong" if not n else "") for cell in _fitted(_cells(line), count)]
        for n, line in enumerate([lines[0], *lines[2:]])
    ]
    widths = _widths(
        [max(_room(row[column]) for row in rows) for column in range(count)], width - len(BETWEEN) * (count - 1)
    )
    if widths is None:
        return _listed(rows, width)
    ruler: list[Piece] = [("note", "─┼─".join("─" * each for each in widths))]
    found = [_row(row, widths, sides) for row in rows]
    return [*found[0], ruler, *(line for row in found[1:] for line in row)]


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    if inner.endswith("|") and not inner.endswith("\\|"):
        inner = inner[:-1]
    return [cell.strip().replace("\\|", "|") for cell in BAR.split(inner)]


def _fitted(row: list[str], count: int) -> list[str]:
    return (row + [""] * count)[:count]


def _side(cell: str) -> str:
    left, right = cell.startswith(":"), cell.endswith(":")
    return "middle" if left and right else "right" if right else "left"


def _room(cell: Sequence[Piece]) -> int:
    return sum(display_width(text) for _, text in cell)


def _widths(wanted: list[int], room: int) -> list[int] | None:
    """Return how wide columns are that want that much, together `room` at most; None when that is too narrow."""
    wanted = [max(1, each) for each in wanted]
    if sum(wanted) <= room:
        return wanted
    most = max(wanted)
    while most > LEAST and sum(min(each, most) for each in wanted) > room:
        most -= 1
    widths = [min(each, most) for each in wanted]
    return widths if sum(widths) <= room else None


def _row(row: Sequence[list[Piece]], widths: Sequence[int], sides: Sequence[str]) -> list[list[Piece]]:
    columns = [wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    lines = []
    for number in range(max(map(len, columns))):
        line: list[Piece] = []
        for column, (cell, width, side) in enumerate(zip(columns, widths, sides, strict=True)):
            said = cell[number] if number < len(cell) else []
            left = width - _room(said)
            before = left if side == "right" else left // 2 if side == "middle" else 0
            line += [("note", BETWEEN)] if column else []
            line += [("", " " * before), *said, ("", " " * (left - before))]
        lines.append(join_neighbors(line))
    return lines


def _listed(rows: Sequence[Sequence[list[Piece]]], width: int) -> list[list[Piece]]:
    """Return a table that is too wide as a list: of each row its cells, each behind the head of its column."""
    found: list[list[Piece]] = []
    for row in rows[1:]:
        found += [[]] if found else []
        for head, cell in zip(rows[0], row, strict=True):
            found += wrap([*head, ("strong", ":"), ("", " "), *cell], width, hang="  ")
    return found


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
            return wrap([("", text[-LONG:])], width)
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
        at = max((place for place in places if place and is_balanced(text[:place])), default=most)
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
        return render_table(rows, width)

    def _code(self, text: str) -> Lines:
        bare = text.strip()
        if len(bare) >= len(self._fence) and not bare.strip(self._fence[0]):
            self._fence = ""
            return [[("note", text)]]
        return [[(_code_style(self._language, text), text)]]


def _shown(text: str, width: int, hang: str | None = None) -> Lines:
    """Return a line that is neither of code nor of a table; with `hang` it is the rest of one, and stands behind it."""
    if hang is not None:
        return wrap(render_inline(text), width, [("", hang)], hang)
    if (found := HEADING.match(text)) is not None:
        style = "heading" if len(found["marks"]) < 3 else "strong"
        return wrap(render_inline(found["text"].rstrip().rstrip("#").rstrip() or found["text"], style), width)
    if RULE.match(text):
        return [[("note", "─" * min(width, LONGEST_RULE))]]
    if (found := QUOTE.match(text)) is not None:
        bar = _bar(found["marks"])
        rows = wrap(render_inline(found["text"], "quote"), max(1, width - len(bar)))
        return [[("note", bar), *row] for row in rows]
    if (found := ITEM.match(text)) is not None:
        first = _before(found)
        return wrap(render_inline(found["text"]), width, [("", first)], " " * display_width(first))
    lead = text[: len(text) - len(text.lstrip())]
    return wrap(render_inline(text[len(lead) :]), width, [("", lead)], lead)


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
        return " " * display_width(_before(found))
    if (quote := QUOTE.match(text)) is not None:
        return _bar(quote["marks"])
    return text[: len(text) - len(text.lstrip())]


def _code_style(language: str, text: str) -> str:
    return diff_line_style(text) if language == "diff" else "code"


def _place(text: str, width: int, *, words: bool = True) -> int:
    """Return how many characters of `text` have room in `width` columns, up to a space where there is one."""
    at = max(1, len(prefix_of_width(text, width)))
    if at == len(text):
        return at
    space = text.rfind(" ", 1, at + 1) if words else -1
    return space if space > 0 else at
