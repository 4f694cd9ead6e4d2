"""Finding the passages that answer a question: BM25 over texts, by counting the question's terms alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from .terms import Term, count

__all__ = ["Passage", "Source", "rank"]

K1: Final = 1.2
B: Final = 0.75
LABEL_SHARE: Final = 0.5
NAME_SHARE: Final = 3.0
DEFINITION_FACTOR: Final = 1.6
EACH_FURTHER_TERM: Final = 0.3
MAX_SOURCES: Final = 24
FIRST_CHUNKS: Final = 3
MAX_LINES: Final = 6
MAX_CHARS: Final = 500
USUAL_CHARS: Final = 200
MAX_LINE: Final = 300

_HEADING: Final = re.compile(r"\s*(?:#+ |(?:async )?(?:def|class|function|fn|func|struct|interface|type|enum)\b)")
_DEFINES: Final = re.compile(rf"(?:{_HEADING.pattern})[^(:={{]*|[A-Za-z_]\w*(?=\s*(?::[^=]*)?=[^=])")


class Source(Struct, frozen=True):
    """A text to quote from. `numbers` are its lines' numbers in the file `label`; without, `label` is cited alone."""

    label: str
    text: str
    numbers: tuple[int, ...] = ()


class Passage(Struct, frozen=True):
    """A few neighbouring lines, where they are (`label:line` or `label`) and how well they fit."""

    label: str
    where: str
    text: str
    score: float


class _Scorer:
    """BM25 with what is known of all sources: how many there are, how long, and how many contain each term."""

    def __init__(self, terms: Sequence[Term], counts: list[list[int]], total: int) -> None:
        self.terms = terms
        self._weights = [
            term.weight * math.log(1 + (total - found + 0.5) / (found + 0.5))
            for term, found in zip(terms, (sum(map(bool, column)) for column in zip(*counts, strict=True)), strict=True)
        ]

    def score(self, counts: Sequence[int], length: int, usual: float) -> float:
        """Return how well a text of `length` characters fits in which the terms occur `counts` times."""
        damping = K1 * (1 - B + B * length / usual)
        found = [weight * n * (K1 + 1) / (n + damping) for weight, n in zip(self._weights, counts, strict=True) if n]
        return sum(found) * (1 + EACH_FURTHER_TERM * (len(found) - 1)) if found else 0.0

    def label_score(self, label: str) -> float:
        """Return what it is worth that the name of a source contains terms."""
        lowered = label.lower()
        stem = lowered.rpartition("/")[2].partition(".")[0]
        found = [pair for pair in zip(self._weights, self.terms, strict=True) if count(pair[1], lowered)]
        return sum(weight * (NAME_SHARE if term.text == stem else LABEL_SHARE) for weight, term in found)


def rank(sources: Sequence[Source], terms: Sequence[Term], total: int = 0) -> list[Passage]:
    """Return the passages of `sources` in which `terms` occur, best first; a source named by a term gives its first.

    `total` is how many sources there are, when `sources` are only those among them in which a term was found.
    """
    if not sources or not terms:
        return []
    counts = [[count(term, lowered) for term in terms] for lowered in (source.text.lower() for source in sources)]
    scorer = _Scorer(terms, counts, max(total, len(sources)))
    usual = sum(len(source.text) for source in sources) / len(sources) or 1.0
    scored = [
        (scorer.score(found, len(source.text), usual) + scorer.label_score(source.label), -index, source)
        for index, (source, found) in enumerate(zip(sources, counts, strict=True))
    ]
    best = sorted((entry for entry in scored if entry[0] > 0), reverse=True, key=lambda entry: entry[:2])[:MAX_SOURCES]
    passages = [passage for _, _, source in best for passage in _passages(source, scorer)]
    return sorted(passages, key=lambda passage: -passage.score)


def _passages(source: Source, scorer: _Scorer) -> Iterator[Passage]:
    by_name = scorer.label_score(source.label)
    for index, (number, lines) in enumerate(_chunks(source)):
        lowered = "\n".join(lines).lower()
        counts = [count(term, lowered) for term in scorer.terms]
        score = scorer.score(counts, max(len(lowered), USUAL_CHARS), USUAL_CHARS)
        if score and any(_defines(line, scorer.terms) for line in lines):
            score *= DEFINITION_FACTOR
        bare_heading = len(lines) == 1 and lines[0].startswith("#")
        if score or (by_name and index < FIRST_CHUNKS and not bare_heading):
            where = f"{source.label}:{number}" if source.numbers else source.label
            shown = "\n".join(_cut(line, scorer.terms) for line in lines)
            yield Passage(source.label, where, shown, score + by_name)


def _chunks(source: Source) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line and the lines of each passage: up to a blank line, a gap or a full one."""
    begin, lines, size, last = 0, list[str](), 0, 0
    all_lines = source.text.split("\n")
    for number, line in zip(source.numbers or range(1, len(all_lines) + 1), all_lines, strict=False):
        full = len(lines) >= MAX_LINES or size + len(line) > MAX_CHARS
        if lines and (full or number != last + 1 or not line.strip() or _HEADING.match(line)):
            yield begin, lines
            lines, size = [], 0
        if line.strip():
            if not lines:
                begin = number
            lines.append(line.rstrip())
            size += len(line)
        last = number
    if lines:
        yield begin, lines


def _defines(line: str, terms: Sequence[Term]) -> bool:
    """Return whether `line` is a heading or definition of something called by one of the terms worth a search."""
    match = _DEFINES.match(line)
    return match is not None and any(count(term, match[0].lower()) for term in terms if term.usable)


def _cut(line: str, terms: Sequence[Term]) -> str:
    """Return a long line's part around the first term in it."""
    if len(line) <= MAX_LINE:
        return line
    lowered = line.lower()
    places = [place for place in (lowered.find(term.text) for term in terms) if place >= 0]
    begin = max(0, min(min(places, default=0) - MAX_LINE // 3, len(line) - MAX_LINE))
    end = begin + MAX_LINE
    return f"{'[...] ' if begin else ''}{line[begin:end]}{' [...]' if end < len(line) else ''}"
