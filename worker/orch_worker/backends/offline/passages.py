"""Splits a text into passages that can be quoted: paragraphs, list items, table rows, definitions, lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

__all__ = ["DEFINITION", "LineBlock", "blocks", "is_prose", "is_secondary"]

MAX_LINES: Final = 10
MAX_CHARS: Final = 800
MAX_PROSE_LINES: Final = 24
MAX_PROSE_CHARS: Final = 1_600

DEFINITION: Final = re.compile(
    r"\s*(?:export |pub |public |static )*(?:async )?"
    r"(?:def|class|function|fn|func|struct|interface|type|enum|trait|module)\s+"
)
_DECORATOR: Final = re.compile(r"\s*@\w")
_HEADING: Final = re.compile(r"#{1,6}\s+(.*?)[\s#]*")
_ITEM: Final = re.compile(r"\s{0,3}(?:[-*+]|\d{1,3}[.)])\s")
_FENCE: Final = re.compile(r"\s*(?:```|~~~)")
_PROSE: Final = re.compile(r"(?:.*/)?(?:[^/]*\.(?:md|markdown|rst|txt|adoc)|[A-Z_]{4,})", re.DOTALL)
_BUILD: Final = re.compile(r"(?:.*/)?(?:[Mm]akefile|justfile)", re.DOTALL)
_TABLE: Final = re.compile(r".*\.[ct]sv", re.DOTALL)
_DATA: Final = re.compile(r".*\.(?:csv|tsv|log|jsonl|ndjson)", re.DOTALL)
_SECONDARY: Final = re.compile(
    r"(?:^|/)(?:(?:tests?|testing|testdata|fixtures?|corpus|examples?|samples?|bench(?:mark)?s?|vendor|third_party)/"
    r"|(?:test_|conftest\b|CHANGELOG\b|CHANGES\b|HISTORY\b)|[^/]*(?:_test|\.test|\.spec)\.\w+$"
    r"|[^/]*\.(?:lock|svg|min\.js)$)"
)


class LineBlock(Struct, frozen=True):
    """Adjacent lines that start at line `number` below `heading`.

    The heading of a table row consists of its column names.
    """

    number: int
    lines: list[str]
    heading: str = ""
    opens: bool = False
    """Whether the block is the first block below its heading."""
    fenced: bool = False
    """Whether the block is a code sample in documentation."""


def is_prose(label: str) -> bool:
    """Return whether the file `label` is documentation or a build file, rather than code or data."""
    return _PROSE.fullmatch(label) is not None or _BUILD.fullmatch(label) is not None


def is_secondary(label: str) -> bool:
    """Return whether the file `label` is a test, a fixture, an example, a benchmark or a changelog."""
    return _SECONDARY.search(label) is not None


def blocks(label: str, lines: Sequence[tuple[int, str]]) -> Iterator[LineBlock]:
    """Yield the passages of the numbered `lines` of the file `label`. A gap in the numbers ends a passage."""
    if _PROSE.fullmatch(label):
        yield from _prose(lines)
    elif _DATA.fullmatch(label):
        columns = lines[0][1] if _TABLE.fullmatch(label) and lines and lines[0][0] == 1 else ""
        yield from (LineBlock(number, [line.rstrip()], columns) for number, line in lines if line.strip())
    else:
        yield from _code(lines)


def _code(lines: Sequence[tuple[int, str]]) -> Iterator[LineBlock]:
    """Yield blocks that end at a blank line, a definition or the size limit."""
    block_lines: list[str] = []
    begin = last = size = 0
    for number, line in lines:
        starts = (DEFINITION.match(line) or _DECORATOR.match(line)) and not (
            block_lines and _DECORATOR.match(block_lines[-1])
        )
        full = len(block_lines) >= MAX_LINES or size + len(line) > MAX_CHARS
        if block_lines and (full or starts or number != last + 1 or not line.strip()):
            yield LineBlock(begin, block_lines)
            block_lines, size = [], 0
        if line.strip():
            begin = begin if block_lines else number
            block_lines.append(line.rstrip())
            size += len(line)
        last = number
    if block_lines:
        yield LineBlock(begin, block_lines)


def _prose(lines: Sequence[tuple[int, str]]) -> Iterator[LineBlock]:
    """Yield paragraphs, list items, table rows and fenced blocks, each with its heading.

    A heading is a separate block only if no lines below it are known.
    """
    block_lines: list[str] = []
    begin = last = size = 0
    heading, heading_number, opens, fenced = "", 0, False, False

    def finish_block() -> Iterator[LineBlock]:
        nonlocal block_lines, size, opens
        if block_lines:
            yield LineBlock(begin, block_lines, heading, opens, _FENCE.match(block_lines[0]) is not None)
            block_lines, size, opens = [], 0, False

    def finish_section() -> Iterator[LineBlock]:
        yield from finish_block()
        if opens:
            yield LineBlock(heading_number, [f"# {heading}"], heading, opens=True)

    for at, (number, line) in enumerate(lines):
        if number != last + 1:
            yield from finish_section()
            heading, opens, fenced = "", False, _begins_fenced(lines, at)
        last = number
        fence = _FENCE.match(line) is not None
        if (match := _HEADING.fullmatch(line)) and not fenced:
            yield from finish_section()
            heading, heading_number, opens = match[1], number, True
            continue
        row = line.lstrip().startswith("|")
        full = len(block_lines) >= MAX_PROSE_LINES or size + len(line) > MAX_PROSE_CHARS
        if full or (not fenced and (fence or row or not line.strip() or _ITEM.match(line))):
            yield from finish_block()
        if line.strip() and not (row and set(line) <= set("|-: ")):
            begin = begin if block_lines else number
            block_lines.append(line.rstrip())
            size += len(line)
        if row or (fence and fenced):
            yield from finish_block()
        fenced ^= fence
    yield from finish_section()


def _begins_fenced(lines: Sequence[tuple[int, str]], start: int) -> bool:
    """Return whether the lines from `start` on begin inside a fenced block.

    The function assumes this if the first fence in the lines names no language.

    The result is a guess, because an opening fence may omit the language. Line 1 of a file is never inside a fenced
    block.
    """
    number = lines[start][0]
    if number == 1:
        return False
    ahead = MAX_PROSE_LINES * 2
    run = (line for at, line in lines[start : start + ahead] if at - number < ahead)
    fence = next((line for line in run if _FENCE.match(line)), "")
    return fence.strip() in ("```", "~~~")
