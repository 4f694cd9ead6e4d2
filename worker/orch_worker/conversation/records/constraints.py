"""The constraints in a specification: the lines and sentences that restrict the work, found without a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from .prose import cut_at_sentence, flat, sentences

__all__ = ["constraints_in"]

MAX_CONSTRAINTS: Final = 12
CONSTRAINT_CHARS: Final = 150
MIN_CHARS: Final = 12
MAX_CHARS: Final = 20_000
LEAST: Final = 2.5

_LINE_NUMBER: Final = re.compile(r"^\s*\d+(?:→|\t|[|:]\s)")
_BULLET: Final = re.compile(r"^\s*(?:[-*+•]|\d+[.)]|\[[ x]\]|>)\s+(?:\[[ x]\]\s+)?")
_HEADING: Final = re.compile(r"^\s*(?:#{1,6}\s+(.+)|\*\*([^*]+)\*\*:?\s*|([A-Z][A-Z /-]{3,40}):?\s*)$")
_CODE_BLOCK: Final = re.compile(r"^\s*(?:```|~~~)")
_FORBIDS: Final = re.compile(
    r"\b(?:do(?:es)? not|don'?t|never|must(?: not|n'?t)|may not|shall not|should(?: not|n'?t)|cannot|can'?t|forbidden"
    r"|avoid|no longer|not allowed|prohibit\w*|nothing|none|neither|no (?!one\b)\w+)\b",
    re.IGNORECASE,
)
_DEMANDS: Final = re.compile(
    r"\b(?:must|shall|only|exactly|precisely|at (?:most|least)|no (?:more|less|fewer) than|required?s?|always|up to"
    r"|maximum|minimum|not exceed|within \d|limit(?:ed)? to|mandatory|need(?:s)? to|has to|have to|every|each)\b",
    re.IGNORECASE,
)
_PREFERS: Final = re.compile(
    r"\b(?:should|keep|preserve|without|instead of|rather than|prefer\w*|default\w*|continue|stay|remains?|ensure"
    r"|unless|reuse)\b",
    re.IGNORECASE,
)
_NAME: Final = re.compile(r"`[^`\s][^`]*`|\b\w+_\w+\b|\b[a-z]+[A-Z]\w+\b")
_NUMBER: Final = re.compile(r"(?<![\w.#/-])\d+(?:[.,]\d+)*\s*(?:%|[A-Za-z]+)")
_RULES: Final = re.compile(
    r"no-?gos?|non-?goals?|constraint|rule|requirement|acceptance|criteria|definition of done|must|guard ?rail|limit|"
    r"out of scope|polic|convention|guideline|don'?ts?\b|expect|spec",
    re.IGNORECASE,
)
_BACKGROUND: Final = re.compile(
    r"why|problem|background|context|motivation|source|output files?|files?$|children|parent|blocks|depends|reference|"
    r"history|overview|example|status|labels?",
    re.IGNORECASE,
)


def constraints_in(text: str) -> tuple[str, ...]:
    """Return at most 12 lines or sentences of `text` that restrict the work, the most restrictive first.

    Each has at most 150 characters. Code blocks are left out.
    """
    scored: dict[str, float] = {}
    for section, sentence in _statements(text[:MAX_CHARS]):
        score = _score(sentence, section)
        if score >= LEAST:
            scored.setdefault(cut_at_sentence(sentence, CONSTRAINT_CHARS, "…"), score)
    return tuple(sorted(scored, key=lambda each: -scored[each])[:MAX_CONSTRAINTS])


def _score(sentence: str, section: str) -> float:
    restricts = 3.0 * bool(_FORBIDS.search(sentence)) + 2.5 * bool(_DEMANDS.search(sentence))
    score = restricts + bool(_PREFERS.search(sentence))
    score += 1.0 * bool(_NUMBER.search(sentence)) + 0.5 * bool(_NAME.search(sentence))
    score += 1.5 * bool(_RULES.search(section)) - 4.0 * bool(_BACKGROUND.search(section))
    return score - 0.5 * (len(sentence) > CONSTRAINT_CHARS)


def _statements(text: str) -> Iterator[tuple[str, str]]:
    """Yield each bullet and sentence of `text`, with the heading above it."""
    for section, block, is_bullet in _blocks(text):
        for part in [block] if is_bullet and len(block) <= CONSTRAINT_CHARS else sentences(block):
            if len(stated := flat(part).strip(" .;|")) >= MIN_CHARS:
                yield section, stated


def _blocks(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield each bullet and paragraph of `text` as one line, with the heading above it, and whether it is a bullet.

    A bullet that ends with a colon includes the bullets below it.
    """
    section, block, depth, in_code, is_bullet = "", "", 0, False, False
    for line in text.split("\n"):
        line = _LINE_NUMBER.sub("", line)
        heading, bullet = _HEADING.match(line), _BULLET.match(line)
        code = bool(_CODE_BLOCK.match(line))
        indent = len(line) - len(line.lstrip())
        below = bullet is not None and indent > depth and block.endswith((":", ",")) and len(block) < CONSTRAINT_CHARS
        continues = (
            bullet is None and heading is None and line.strip() and not code and not line.lstrip().startswith("|")
        )
        if not in_code and bullet is not None and below:
            block += f" {line[bullet.end() :].strip().rstrip('.;')},"
            continue
        if not in_code and continues and block and (indent > depth or line.lstrip()[:1].islower()):
            block += f" {line.strip()}"
            continue
        if block:
            yield section, block.rstrip(","), is_bullet
        block = ""
        if code:
            in_code = not in_code
        elif heading is not None and not in_code:
            section = next(filter(None, heading.groups()))
        elif not in_code:
            block, depth, is_bullet = line[bullet.end() if bullet else 0 :].strip(), indent, bullet is not None
    if block:
        yield section, block.rstrip(","), is_bullet
