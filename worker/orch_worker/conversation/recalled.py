"""Renders search hits and archived entries for a model. The text has a limited size and explains how to read more."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, ToolResult, tool_uses
from orch_protocol.services.archives.recall import SearchHit

from .archive_text import clip_line, entry_lines, heading

__all__ = ["hits_in", "line_range", "shown_entries", "shown_hits", "split_hits", "with_hits"]

SEARCH_CHARS: Final = 4_000
HIT_CHARS: Final = 400
TITLE_CHARS: Final = 30
FIRST_HITS: Final = 3
COVERAGE_DROP: Final = 0.05
MUCH_LOWER: Final = 0.2
"""Hits whose coverage is lower than the best by more than this are only counted."""
FULL_COVERAGE: Final = 0.99
MORE_CHARS: Final = 100
BRIEF_LINE: Final = 90
BRIEF_CHARS: Final = 1_100
"""Maximum number of characters of the hits that have one line each."""
ALSO: Final = "Also, one line each:"
READ_CHARS: Final = 6_000
ENTRY_CHARS: Final = 1_200
"""Longer entries are shortened, unless they are the only entry that was asked for."""
SINGLE_CHARS: Final = 3_000
FILE_CHARS: Final = 400
"""A reader of several entries looks for what was done, not for the content of files."""
PROSE_CHARS: Final = READ_CHARS
"""Prose, for example a specification, can state something important on each line."""
CODE_SHARE: Final = 0.2
"""Prose has at most this share of lines that look like code."""
LINE_CHARS: Final = 400
MIN_REPEATED: Final = 120
"""A result with fewer characters is shown again instead of named."""
_WHERE: Final = re.compile(r"([a-f][0-9a-f]{11} entry \d+) \(")
_HIT: Final = re.compile(r"\n\n(?=[a-f][0-9a-f]{11} entry \d+ \()")
_CODE: Final = re.compile(r"^(?:\s*\d+[→|:\t]|[+>-](?! )|\s{4,}[^\s*-])|[]{}[;],?\s*$|^\S*[(=]\S*$|^\S+:\d+:")
_READS: Final = re.compile(
    r"^(?:\w+__)*(?:read|view|open|cat|get)(?:_?(?:text|many|multiple))?(?:_?files?)?$", re.IGNORECASE
)
_END: Final = re.compile(r"\n\n(?:Also, one line each:\n|\d+ more: )")
_NEIGHBOR: Final = re.compile(r"(?:->|<-) entry (\d+): ")
_BESIDE: Final = re.compile(r"\n(?:->|<-) .*\Z")
_RANGE: Final = re.compile(r"\s*(\d{1,18})\s*(?:(-)\s*(\d{0,18}))?\s*")
FOUND: Final = "[Found by search in what you hold:]"


def shown_hits(hits: Sequence[SearchHit], *, whole: bool = False) -> str:
    """Return `hits` as text: at most 400 characters for each hit, and 4,000 in total.

    The first three hits are shown with their passages. Further hits that match as well as the first have one line each,
    and so have all hits if the first does not have all terms of the query. Weaker hits are counted. If `whole` is True,
    all hits are shown with their passages.
    """
    if not hits:
        return "Nothing in the archives resembles that."
    best = hits[0]
    detailed = list(hits) if whole else _first_hits(hits)
    brief = [
        hit
        for hit in hits
        if hit not in detailed
        and ((hit.exact == best.exact and hit.coverage >= best.coverage - COVERAGE_DROP) or not _is_full(best))
    ]
    counted = len(hits) - len(detailed) - len(brief)
    parts: list[str] = []
    left = SEARCH_CHARS - (BRIEF_CHARS + MORE_CHARS if brief else MORE_CHARS)
    titles: set[tuple[str, int]] = set()
    for number, hit in enumerate(detailed):
        head = _hit_head(hit, with_title=(hit.id, hit.turn) not in titles)
        below = f"\n{hit.beside}" if hit.beside else ""
        part = f"{head}\n{_clip_passage(hit.text, HIT_CHARS - len(head) - 1 - len(below))}{below}"
        if parts and len(part) > left:
            counted += len(detailed) - number
            break
        titles.add((hit.id, hit.turn))
        parts.append(part)
        left -= len(part) + 2
    rows = [_brief(hit, with_id=not number or hit.id != brief[number - 1].id) for number, hit in enumerate(brief)]
    if fitting := _fitting(rows, BRIEF_CHARS) if rows else 0:
        parts.append("\n".join([ALSO, *rows[:fitting]]))
        counted += len(rows) - fitting
    if counted:
        how = "use a more specific query" if whole else f"limit={len(hits)} shows them, or use a more specific query"
        parts.append(f"{counted} more: {how}")
    return "\n\n".join(parts)


def _first_hits(hits: Sequence[SearchHit]) -> list[SearchHit]:
    """Return the first three of `hits`.

    Hits that match much worse than the first, or whose content is in the line beside an earlier one, are left out.
    """
    found: list[SearchHit] = []
    stated: set[tuple[str, int]] = set()
    for hit in hits:
        near = hit.exact or hit.coverage >= hits[0].coverage - MUCH_LOWER
        if len(found) < FIRST_HITS and near and (hit.id, hit.entry) not in stated:
            found.append(hit)
            if match := _NEIGHBOR.match(hit.beside):
                stated.add((hit.id, int(match[1])))
    return found


def _is_full(hit: SearchHit) -> bool:
    """Return whether `hit` has all terms of the query. Otherwise the order of the hits tells little."""
    return hit.exact or hit.coverage >= FULL_COVERAGE


def _brief(hit: SearchHit, *, with_id: bool) -> str:
    """Return a hit as one line: its entry, the matching line, and the line beside it."""
    lines = hit.text.split("\n")
    line = clip_line(" ".join(lines[min(hit.row, len(lines) - 1)].split()), BRIEF_LINE)
    below = f" {clip_line(hit.beside, BRIEF_LINE)}" if hit.beside else ""
    return f"{f'{hit.id} ' if with_id else ''}entry {hit.entry}: {line}{below}"


def _hit_head(hit: SearchHit, *, with_title: bool) -> str:
    """Return the line above a passage: the entry, its turn and age, the matching line, and the title of its archive."""
    details = []
    if hit.turn:
        age = "this turn" if not hit.age else f"{hit.age} turn{'s' if hit.age > 1 else ''} ago"
        details.append(f"turn {hit.turn}, {age}")
    details.append(f"line {hit.line}")
    if not hit.exact:
        details.append("similar")
    if with_title:
        details.append(clip_line(" ".join(hit.task.split()), TITLE_CHARS))
    return f"{hit.id} entry {hit.entry} ({'; '.join(details)}):"


def _clip_passage(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def with_hits(question: str, hits: Sequence[SearchHit]) -> str:
    """Return `question` for the holder of an era, with the passages that a search in the era found."""
    return f"{question}\n\n{FOUND}\n\n{shown_hits(hits, whole=True)}" if hits else question


def split_hits(question: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the question and the passages in a text made by `with_hits`. Each passage comes with its source."""
    asked, _, found = question.partition(f"\n\n{FOUND}\n\n")
    return asked, hits_in(found)


def hits_in(shown: str) -> tuple[tuple[str, str], ...]:
    """Return the passages in a text made by `shown_hits`. Each passage comes with its source: `<id> entry <number>`."""
    parts = [part.partition(":\n") for part in _HIT.split(_END.split(shown)[0]) if _WHERE.match(part)]
    return tuple((_WHERE.match(head)[1], _BESIDE.sub("", text)) for head, _, text in parts)  # type: ignore[index]


def line_range(lines: str) -> tuple[int, int | None]:
    """Return the first and the last line of a range such as `40-80`, `40-` or `40`. Raises ConfigError."""
    match = _RANGE.fullmatch(lines)
    first, last = (int(match[1]), int(match[3]) if match[3] else None) if match else (0, None)
    if match and not match[2]:
        last = first
    if first < 1 or (last is not None and last < first):
        raise ConfigError(f"lines must be a range of lines of one entry, such as 40-80; got {lines!r:.80}")
    return first, last


def shown_entries(
    id: str, first: int, messages: Sequence[Message], last: int | None = None, lines: str | None = None
) -> str:
    """Return the entries `first` to `last` of the archive `id` as text of at most about 6,000 characters.

    `messages` are these entries, or fewer if the archive ends before `last`. Long entries are shortened, and the text
    names the call that shows the rest. A result that was shown before is named instead. `lines` is a range of lines of
    the entry `first`; only these lines are shown. Raises ConfigError for an invalid range.
    """
    if lines is not None:
        wanted = line_range(lines)
        return _shown_lines(id, first, messages[0], *wanted) if messages else "There is no such entry."
    if not messages:
        return "There is no such entry."
    parts: list[str] = []
    seen: dict[str, int] = {}
    reads = {use.id for message in messages for use in tool_uses(message) if _READS.search(use.name)}
    left = READ_CHARS
    for number, message in enumerate(messages, first):
        body = entry_lines(message).text
        if len(body) >= MIN_REPEATED and body in seen:
            text = f"(the same as entry {seen[body]})"
        else:
            seen[body] = number
            rows = body.split("\n")
            if len(messages) == 1:
                limit = PROSE_CHARS if _is_prose(rows) else SINGLE_CHARS
            else:
                limit = FILE_CHARS if len(messages) > 2 and _is_file(message, reads) else ENTRY_CHARS
            text = _shortened(id, number, rows, limit)
        part = f"{heading(message, number)}\n{text}"
        if parts and len(part) > left:
            end = first + len(messages) - 1 if last is None else last
            call = f"read_archive(id={id!r}, first={number}, last={end})"
            return "\n\n".join([*parts, f"[stopped before entry {number}: {call} shows more]"])
        parts.append(part)
        left -= len(part) + 2
    end = first + len(messages) - 1
    if last is None or end < last:
        parts.append(f"[entry {end} is the last entry of this archive]")
    return "\n\n".join(parts)


def _is_file(message: Message, reads: Collection[str]) -> bool:
    """Return whether `message` contains only contents of files. `reads` are the ids of calls that read files."""
    return all(isinstance(block, ToolResult) and block.tool_use_id in reads for block in message.content)


def _is_prose(lines: Sequence[str]) -> bool:
    """Return whether few of `lines` look like code, numbered lines or lines of a diff."""
    filled = [line for line in lines if line.strip()]
    return sum(_CODE.search(line) is not None for line in filled) <= CODE_SHARE * len(filled)


def _shortened(id: str, number: int, lines: Sequence[str], limit: int) -> str:
    """Return the beginning and the end of `lines` in about `limit` characters, with the call that shows the rest."""
    if sum(len(line) + 1 for line in lines) <= limit:
        return "\n".join(lines)
    shown = [clip_line(line, LINE_CHARS) for line in lines]
    head = _fitting(shown, limit * 2 // 3)
    tail = _fitting(shown[head:][::-1], limit // 3) if head < len(lines) else 0
    first, last = head + 1, len(lines) - tail
    rows = shown[:head]
    if first <= last:
        rows.append(_rest(id, number, first, last, f"{last - first + 1:,} of {len(lines):,} lines left out"))
        rows += shown[last:]
    elif cut := next((index for index, line in enumerate(lines, 1) if len(line) > LINE_CHARS), None):
        rows.append(_rest(id, number, cut, cut, "long lines are cut"))
    return "\n".join(rows)


def _rest(id: str, number: int, first: int, last: int, what: str) -> str:
    return f'[{what}: read_archive(id={id!r}, first={number}, lines="{first}-{last}")]'


def _fitting(lines: Sequence[str], chars: int) -> int:
    """Return how many of `lines` fit in `chars` characters, at least one."""
    count = 0
    for line in lines:
        chars -= len(line) + 1
        if count and chars < 0:
            break
        count += 1
    return count


def _shown_lines(id: str, number: int, message: Message, first: int, last: int | None) -> str:
    lines = entry_lines(message).lines
    if first > len(lines):
        return f"Entry {number} has only {len(lines):,} lines."
    wanted = lines[first - 1 : last]
    shown = [clip_line(line, READ_CHARS) for line in wanted]
    count = _fitting(shown, READ_CHARS)
    end = first + count - 1
    rows = [f"{heading(message, number)}, lines {first} to {end} of {len(lines):,}", *shown[:count]]
    if count < len(wanted):
        rows.append(_rest(id, number, end + 1, first + len(wanted) - 1, f"stopped after line {end}"))
    elif len(shown[0]) < len(wanted[0]):
        rows.append("[the line is cut: search_archive finds passages in it]")
    elif last is not None and last > len(lines):
        rows.append(f"[line {len(lines)} is the last line of this entry]")
    return "\n".join(rows)
