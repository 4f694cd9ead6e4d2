"""Renders Markdown for a terminal, line by line as the text arrives. Lines that are already shown never change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from .diffs import diff_line_style
from .styled_text import TAB, Piece, display_width, join_neighbors, prefix_of_width, wrap

__all__ = ["Markdown", "Plain", "combine_styles", "is_balanced", "is_ruler", "render_inline", "render_table"]


# --- Inline Markdown: emphasis, code and links ---

MAX_DEPTH: Final = 8
SPECIAL: Final = re.compile(r"\\|`+|\*+|_+|~~+|!?\[")
MARKER_RUNS: Final = {mark: re.compile(re.escape(mark) + "+") for mark in "`*_~"}
ESCAPED: Final = frozenset("\\`*_{}[]()#+.!|>~-")
LINK: Final = re.compile(r"!?\[(?P<label>[^\[\]]+)\]\((?P<to>(?:[^()\s]|\([^()\s]*\))+)\)")
STYLES: Final = {"*": "em", "**": "strong", "***": "strong,em", "~~": "strike"}


def render_inline(text: str, style: str = "") -> list[Piece]:
    """Return `text` without Markdown markup. The styles of the markup are added to `style`."""
    return join_neighbors(_Span(text, style, MAX_DEPTH).pieces())


def combine_styles(outer: str, inner: str) -> str:
    """Return the combination of both styles."""
    return f"{outer},{inner}" if outer and inner else outer or inner


def is_balanced(text: str) -> bool:
    """Return whether all emphasis, code and links in `text` are closed at its end. The function counts markers."""
    return all(text.count(mark) % 2 == 0 for mark in ("`", "**", "~~")) and text.count("[") == text.count("]")


class _Span:
    """A part of a line with one style. The part may contain nested markup."""

    def __init__(self, text: str, style: str, depth: int) -> None:
        self._text = text
        self._style = style
        self._depth = depth
        self._unclosed: set[str] = set()
        """Opening markers that have no closing marker."""

    def pieces(self) -> Iterator[Piece]:
        """Yield the styled pieces, some of which may be empty."""
        position = start = 0
        while self._depth and (found := SPECIAL.search(self._text, position)) is not None:
            mark, position = found[0], found.end()
            pieces, end = self._parse_marker(mark, found.start())
            if end:
                yield self._style, self._text[start : found.start()]
                yield from pieces
                start = position = end
        yield self._style, self._text[start:]

    def _parse_marker(self, mark: str, at: int) -> tuple[list[Piece], int]:
        """Return the pieces for the marker at `at`, and the end of the marked text.

        The end is 0 if the marker has no effect.
        """
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
        if mark in self._unclosed:
            return [], 0
        for found in MARKER_RUNS["`"].finditer(self._text, begin):
            if found[0] == mark:
                code = self._text[begin : found.start()]
                return [(combine_styles(self._style, "code"), _strip_one_space(code))], found.end()
        self._unclosed.add(mark)
        return [], 0

    def _link(self, at: int) -> tuple[list[Piece], int]:
        found = LINK.match(self._text, at)
        if found is None:
            return [], 0
        label, to = found["label"], found["to"]
        pieces = self._nested(label, "link")
        if to not in (label, f"mailto:{label}"):
            pieces.append((combine_styles(self._style, "note"), f" ({to})"))
        return pieces, found.end()

    def _emphasis(self, mark: str, at: int) -> tuple[list[Piece], int]:
        begin = at + len(mark)
        style = STYLES.get(mark.replace("_", "*"))
        if style is None or mark in self._unclosed or self._text[begin : begin + 1].strip() == "":
            return [], 0
        if mark[0] == "_" and _is_word(self._text[at - 1 : at]):
            return [], 0
        close = self._close(mark, begin + 1)
        return (self._nested(self._text[begin:close], style), close + len(mark)) if close else ([], 0)

    def _close(self, mark: str, at: int) -> int:
        """Return the position of the closing marker. Return 0 if there is none."""
        for found in MARKER_RUNS[mark[0]].finditer(self._text, at):
            position = found.start()
            closes = found[0] == mark or (len(mark) > 1 and len(found[0]) == len(mark) + 1)
            inside_word = mark[0] == "_" and _is_word(self._text[position + len(mark) : position + len(mark) + 1])
            if closes and not inside_word and not self._text[position - 1].isspace():
                return position + len(found[0]) - len(mark)
        self._unclosed.add(mark)
        return 0

    def _nested(self, text: str, style: str) -> list[Piece]:
        return list(_Span(text, combine_styles(self._style, style), self._depth - 1).pieces())


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _strip_one_space(code: str) -> str:
    """Remove one space on each side of `code`. Such spaces separate the code from backticks inside it."""
    return code[1:-1] if code.startswith(" ") and code.endswith(" ") and code.strip() else code


# --- Tables ---

TABLE_RULER: Final = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*\Z")
BAR: Final = re.compile(r"(?<!\\)\|")
BETWEEN: Final = " │ "
MIN_COLUMN: Final = 5
"""The minimum width of columns. If a column would be narrower, the table is shown as a list."""


def is_ruler(line: str) -> bool:
    """Return whether `line` is the delimiter row of a table."""
    return "-" in line and TABLE_RULER.match(line.strip()) is not None


def render_table(lines: Sequence[str], width: int) -> list[list[Piece]]:
    """Return the table in `lines` within `width` columns. The first two lines are the header and the delimiter row."""
    sides = [_alignment(cell) for cell in _split_cells(lines[1])]
    count = len(sides)
    rows = [
        [render_inline(cell, "strong" if not number else "") for cell in _pad_row(_split_cells(line), count)]
        for number, line in enumerate([lines[0], *lines[2:]])
    ]
    widths = _widths(
        [max(_cell_width(row[column]) for row in rows) for column in range(count)], width - len(BETWEEN) * (count - 1)
    )
    if widths is None:
        return _table_as_list(rows, width)
    ruler: list[Piece] = [("note", "─┼─".join("─" * each for each in widths))]
    found = [_row(row, widths, sides) for row in rows]
    return [*found[0], ruler, *(line for row in found[1:] for line in row)]


def _split_cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    if inner.endswith("|") and not inner.endswith("\\|"):
        inner = inner[:-1]
    return [cell.strip().replace("\\|", "|") for cell in BAR.split(inner)]


def _pad_row(row: list[str], count: int) -> list[str]:
    return (row + [""] * count)[:count]


def _alignment(cell: str) -> str:
    left, right = cell.startswith(":"), cell.endswith(":")
    return "middle" if left and right else "right" if right else "left"


def _cell_width(cell: Sequence[Piece]) -> int:
    return sum(display_width(text) for _, text in cell)


def _widths(natural: list[int], available: int) -> list[int] | None:
    """Return widths of columns that fit into `available`. Return None if the columns would be too narrow.

    `natural` contains the widths that the columns would have without this limit.
    """
    natural = [max(1, each) for each in natural]
    if sum(natural) <= available:
        return natural
    limit = max(natural)
    while limit > MIN_COLUMN and sum(min(each, limit) for each in natural) > available:
        limit -= 1
    widths = [min(each, limit) for each in natural]
    return widths if sum(widths) <= available else None


def _row(row: Sequence[list[Piece]], widths: Sequence[int], sides: Sequence[str]) -> list[list[Piece]]:
    columns = [wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    lines = []
    for number in range(max(map(len, columns))):
        line: list[Piece] = []
        for column, (cell, width, side) in enumerate(zip(columns, widths, sides, strict=True)):
            pieces = cell[number] if number < len(cell) else []
            padding = width - _cell_width(pieces)
            indent = padding if side == "right" else padding // 2 if side == "middle" else 0
            line += [("note", BETWEEN)] if column else []
            line += [("", " " * indent), *pieces, ("", " " * (padding - indent))]
        lines.append(join_neighbors(line))
    return lines


def _table_as_list(rows: Sequence[Sequence[list[Piece]]], width: int) -> list[list[Piece]]:
    """Return a table that is too wide as a list. Each cell follows the header of its column."""
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
"""The delimiter row of a table, or its beginning."""
RULE: Final = re.compile(r" {0,3}([-*_])(?:\s*\1){2,}\s*\Z")
QUOTE: Final = re.compile(r" {0,3}(?P<marks>(?:>\s?)+)(?P<text>.*)\Z")
ITEM: Final = re.compile(r"(?P<indent>\s*)(?P<mark>[-*+]|\d{1,9}[.)])\s+(?P<task>\[[ xX]\]\s+)?(?P<text>.*)\Z")
BULLETS: Final = "-*+"
LONGEST_RULE: Final = 40
MAX_ROWS: Final = 1000
MAX_ROW: Final = 4000
MAX_TABLE: Final = 100_000
"""The maximum number of rows and characters of a table. Text beyond these limits is shown without formatting."""
MAX_PARSE: Final = 2000
"""The maximum length of text to parse at once. Longer text is split, because parsing takes quadratic time."""
SCROLL_ROWS: Final = 3
"""The number of rows by which a long paragraph scrolls."""


class Plain:
    """Shows text without formatting."""

    def line(self, text: str, _: int) -> Lines:
        """Return the rows of the complete line `text`."""
        return [[("", text)]]

    def waiting_lines(self) -> Lines:
        """Return complete lines that are held back."""
        return []

    def partial(self, text: str, _: int) -> Lines:
        """Return the rows of an incomplete line."""
        return [[("", text.expandtabs(TAB))]]

    def head(self, text: str, width: int) -> tuple[Lines, str]:
        """Return the rows of the beginning of an incomplete line, and the remaining text."""
        text = text.expandtabs(TAB)
        at = _break_position(text, width)
        return [[("", text[:at])]], text[at:].removeprefix(" ")

    def finish(self, _: int) -> Lines:
        """Return held-back lines at the end of a text."""
        return []


class Markdown:
    """Renders headings, emphasis, lists, quotes, code and tables. A table is not shown until it is complete."""

    def __init__(self) -> None:
        self._fence = ""
        self._language = ""
        self._rows: list[str] = []
        self._hang: str | None = None
        """The indentation for the rest of a line whose beginning has scrolled away. None if there is no such line."""

    def line(self, text: str, width: int) -> Lines:
        """Return the rows to show when the line `text` is complete."""
        text = text.expandtabs(TAB)
        if self._fence:
            self._hang = None
            return self._code(text)
        if self._is_row(text):
            self._rows.append(text)
            is_full = len(self._rows) >= MAX_ROWS or sum(map(len, self._rows)) >= MAX_TABLE
            return self._table(width) if is_full else []
        rows = self._table(width)
        while len(text) > MAX_PARSE:
            part, text = self.head(text, width)
            rows += part
        hang, self._hang = self._hang, None
        if hang is not None:
            return [*rows, *_render_line(text, width, hang)]
        if (found := FENCE.match(text)) is not None:
            self._fence, self._language = found["fence"], found["language"]
            return [*rows, [("note", text)]]
        return [*rows, *_render_line(text, width)]

    def waiting_lines(self) -> Lines:
        """Return the lines of a table that is not shown yet, without formatting."""
        return [[("", row)] for row in self._rows]

    def partial(self, text: str, width: int) -> Lines:
        """Return the rows of an incomplete line."""
        text = text.expandtabs(TAB)
        if self._fence:
            return [[(_code_style(self._language, text), text)]]
        if self._is_row(text):
            return [[("", text)]]
        if len(text) > MAX_PARSE:
            return wrap([("", text[-MAX_PARSE:])], width)
        return _render_line(text, width, self._hang)

    def head(self, text: str, width: int) -> tuple[Lines, str]:
        """Return the rows for the beginning of an incomplete line, and the remaining text.

        If possible, the line is not split within emphasis.
        """
        text = text.expandtabs(TAB)
        if self._fence:
            end = _break_position(text, width, words=False)
            return [[(_code_style(self._language, text), text[:end])]], text[end:]
        limit = _break_position(text, width * SCROLL_ROWS)
        breaks = (found.start() for found in re.finditer(r" ", text[: limit + 1]))
        end = max((position for position in breaks if position and is_balanced(text[:position])), default=limit)
        hang = _hang(text[:MAX_PARSE])[: width // 2] if self._hang is None else self._hang
        rows = [*self._table(width), *_render_line(text[:end], width, self._hang)]
        self._hang = hang
        return rows, text[end:].removeprefix(" ")

    def finish(self, width: int) -> Lines:
        """Return held-back lines at the end of a text."""
        rows = self._table(width)
        self._fence, self._hang = "", None
        return rows

    def _is_row(self, text: str) -> bool:
        """Return whether the line continues or may begin a table."""
        if self._hang is not None or len(text) > MAX_ROW or not text.lstrip().startswith("|"):
            return False
        return len(self._rows) != 1 or RULER.match(text) is not None

    def _table(self, width: int) -> Lines:
        """Return the lines that are not shown yet. If they form a table, return a table."""
        rows, self._rows = self._rows, []
        if len(rows) < 2 or not is_ruler(rows[1]):
            return [line for row in rows for line in _render_line(row, width)]
        return render_table(rows, width)

    def _code(self, text: str) -> Lines:
        stripped = text.strip()
        if len(stripped) >= len(self._fence) and not stripped.strip(self._fence[0]):
            self._fence = ""
            return [[("note", text)]]
        return [[(_code_style(self._language, text), text)]]


def _render_line(text: str, width: int, hang: str | None = None) -> Lines:
    """Return the rows of a line outside code and tables. With `hang`, `text` is the rest of a line."""
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
        first = _item_prefix(found)
        return wrap(render_inline(found["text"]), width, [("", first)], " " * display_width(first))
    lead = text[: len(text) - len(text.lstrip())]
    return wrap(render_inline(text[len(lead) :]), width, [("", lead)], lead)


def _item_prefix(found: re.Match[str]) -> str:
    """Return the text before the content of a list item."""
    mark = "•" if found["mark"] in BULLETS else found["mark"]
    task = {"": "", " ": "☐ "}.get((found["task"] or "")[1:2], "☑ ")
    return f"{found['indent']}{mark} {task}"


def _bar(marks: str) -> str:
    """Return the bar of a quote, with limited nesting."""
    return "│ " * min(MAX_DEPTH, marks.count(">"))


def _hang(text: str) -> str:
    """Return the indentation for the second and later rows of the line `text`."""
    if (found := ITEM.match(text)) is not None:
        return " " * display_width(_item_prefix(found))
    if (quote := QUOTE.match(text)) is not None:
        return _bar(quote["marks"])
    return text[: len(text) - len(text.lstrip())]


def _code_style(language: str, text: str) -> str:
    return diff_line_style(text) if language == "diff" else "code"


def _break_position(text: str, width: int, *, words: bool = True) -> int:
    """Return how many characters of `text` fit into `width` columns. If possible, the last character is a space."""
    at = max(1, len(prefix_of_width(text, width)))
    if at == len(text):
        return at
    space = text.rfind(" ", 1, at + 1) if words else -1
    return space if space > 0 else at
