"""Finds passages that answer a question. The passages are ranked with BM25."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from .passages import DEFINITION, LineBlock, blocks, is_prose, is_secondary

__all__ = ["Passage", "SearchTerm", "SourceText", "count", "is_stop_word", "paths_of", "rank", "terms_of"]


# --- Terms of a question ---

MAX_TEXT: Final = 20_000
MAX_TERMS: Final = 16
PART_WEIGHT: Final = 0.4
GENERIC_WEIGHT: Final = 0.25
IDENTIFIER_WEIGHT: Final = 1.5

_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD: Final = re.compile(rf"(?P<cjk>[{_CJK}]+)|(?P<word>(?:(?![{_CJK}])[\w./-])+)")
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_HIRAGANA: Final = re.compile("[\u3040-\u309f]+")
_PATH: Final = re.compile(r"[\w.-]*(?:/[\w.-]+)+|[\w-]+\.[A-Za-z]\w{0,7}")

_STOP_WORDS: Final = """
    a about above after again against all also am an and any are as at be because been before being below between
    both but by can could did do does doing don down during each either else every few for from further get gets had
    has have having he her here hers him his how i if in into is it its itself just let like many may me might more
    most much must my myself neither no nor not now of off on once only or other our ours out over own please same
    shall she since should so some such than that the their theirs them then there these they this those through to
    too under until up upon us very was way we were what when where whether which while who whom whose why will with
    within without would yes yet you your yours eg ie etc vs
    什么 怎么 如何 哪里 哪些 为什 请问 이것 무엇 어디"""
_GENERIC_WORDS: Final = """
    call called calls carry code codebase contain contains content contents declared define defined defines
    definition describe description details directory document documents everything exist exists explain explore
    file files find folder folders give happen happens implement implemented implements information investigate know
    list located location look main make makes mean means mention name named names overview part project query
    question read repo report repository result say says search see show summarise summarize summary task tell thing
    things understand use used uses using work works"""
_STOP: Final = frozenset(_STOP_WORDS.split())
_GENERIC: Final = frozenset(_GENERIC_WORDS.split())


class SearchTerm(Struct, frozen=True):
    """A search term. The search for `text` ignores case. `word` is the form of the term in the question.

    Short terms match whole words only. `usable` terms describe the subject of the question. Other terms only affect the
    score.
    """

    text: str
    word: str
    weight: float = 1.0

    @property
    def usable(self) -> bool:
        """Whether the term is specific enough for a separate search."""
        return self.weight >= 1.0

    @property
    def is_identifier(self) -> bool:
        """Whether the term is a compound name, such as `read_file` or `ReadFile`."""
        return self.weight > 1.0

    @property
    def asks_for_code(self) -> bool:
        """Whether the term asks for a definition rather than a description."""
        return self.text.startswith(("defin", "declar", "implement"))

    @property
    def regex(self) -> str:
        """A regular expression for the term. Use the expression with the flag IGNORECASE."""
        escaped = re.escape(self.text)
        return rf"(?<![a-zA-Z0-9]){escaped}(?![a-zA-Z0-9])" if _is_short(self.text) else escaped


def terms_of(text: str) -> tuple[SearchTerm, ...]:
    """Return at most 16 search terms for `text`, the most significant first."""
    found: dict[str, SearchTerm] = {}
    for term in _terms(text[:MAX_TEXT]):
        if term.text not in found or found[term.text].weight < term.weight:
            found[term.text] = term
    return tuple(sorted(found.values(), key=lambda term: -term.weight)[:MAX_TERMS])


def is_stop_word(word: str) -> bool:
    """Return whether `word` is too common in sentences to distinguish texts."""
    return word.lower() in _STOP


def paths_of(text: str) -> tuple[str, ...]:
    """Return the parts of `text` that look like file paths."""
    return tuple(dict.fromkeys(match[0].rstrip(".") for match in _PATH.finditer(text[:MAX_TEXT])))


def count(term: SearchTerm, lowered: str) -> int:
    """Return the number of occurrences of `term` in `lowered`, a lower-case text."""
    return len(_compiled(term.regex).findall(lowered)) if _is_short(term.text) else lowered.count(term.text)


@lru_cache(maxsize=256)
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex)


def _is_short(text: str) -> bool:
    return len(text) <= 3 and text.isascii()


def _terms(text: str) -> Iterator[SearchTerm]:
    for match in _WORD.finditer(text):
        if match["cjk"]:
            yield from _cjk_terms(match["cjk"])
        else:
            yield from _word_terms(match["word"].strip("./-"))


def _cjk_terms(run: str) -> Iterator[SearchTerm]:
    """Yield each pair of adjacent characters, because CJK text has no spaces. Pairs of hiragana are skipped."""
    for pair in [run] if len(run) < 2 else [run[start : start + 2] for start in range(len(run) - 1)]:
        if not _HIRAGANA.fullmatch(pair) and pair not in _STOP:
            yield SearchTerm(pair, pair)


def _word_terms(word: str) -> Iterator[SearchTerm]:
    lowered = word.lower()
    if len(word) < 2 or lowered in _STOP:
        return
    parts = _PARTS.findall(word)
    if len(parts) < 2 or lowered.isdecimal():
        yield SearchTerm(_stem(lowered), word, GENERIC_WEIGHT if lowered in _GENERIC else 1.0)
        return
    yield SearchTerm(lowered, word, IDENTIFIER_WEIGHT)
    names = word.split(".") if "/" not in word else []
    if len(names) > 1:
        for name in names:
            yield from _word_terms(name)
        return
    for part in parts:
        if len(part) > 2 and part.lower() not in _STOP:
            yield SearchTerm(_stem(part.lower()), part, PART_WEIGHT)


def _stem(word: str) -> str:
    """Return a stem of `word`. For example, `queries` and `query` both contain the stem `quer`."""
    for ending, minimum in (("ies", 3), ("sses", 3), ("ing", 4), ("ed", 4), ("s", 4)):
        stem = word[: -len(ending)]
        if word.endswith(ending) and len(stem) >= minimum and not word.endswith(("ss", "us", "is")):
            return f"{stem}ss" if ending == "sses" else stem
    return word


# --- Scores ---

K1: Final = 1.2
B: Final = 0.75
LABEL_SHARE: Final = 0.5
NAME_SHARE: Final = 3.0
NAMES_FACTOR: Final = 1.6
"""Factor for a definition or heading whose name contains the terms."""
DEFINES_FACTOR: Final = 3.0
"""Factor if the name contains only the terms.

Both factors, NAMES_FACTOR and DEFINES_FACTOR, are scaled by the share of terms in the name.
"""
TOP_FACTOR: Final = 1.3
"""Factor for documentation in the top folder, such as README and Makefile."""
SAMPLE_FACTOR: Final = 0.7
"""Factor for code samples in documentation."""
IMPORT_FACTOR: Final = 0.3
"""Factor for passages that contain only import lines."""
SECONDARY_FACTOR: Final = 0.3
"""Factor for tests, fixtures, examples, benchmarks and changelogs."""
PROSE_FACTOR: Final = 1.4
"""Factor for documentation, unless the question names an identifier."""
PROSE_FACTOR_FOR_CODE: Final = 0.5
"""Factor for documentation if the question asks for a definition in code."""
HEADING_SHARE: Final = 0.5
"""Share of the heading's score that a passage gets if it is not the first passage below the heading."""
MESSAGE_FACTOR: Final = 0.5
"""Factor for messages and archived entries, compared with files."""
EACH_FURTHER_TERM: Final = 0.3
MAX_SOURCES: Final = 100
FIRST_BLOCKS: Final = 3
USUAL_CHARS: Final = 200
MAX_LINE: Final = 300
SECTION_LINES: Final = 14
MAX_ENTRY_LINES: Final = 3
"""Maximum number of lines quoted from a text without line numbers, such as a message or a tool result."""

_ASSIGNED: Final = re.compile(r"[\w.-]*\w(?=\s*(?::[^=]*)?=[^=]|\s*::?(?:\s|$))")
_IMPORT: Final = re.compile(r"\s*(?:import |from \S+ import |use |#include |export .* from )")
_NAME: Final = re.compile(r"[^\W_]\w*")


class SourceText(Struct, frozen=True):
    """A text to quote. `numbers` are its line numbers in the file `label`.

    If `numbers` is empty, a citation names only `label`.
    """

    label: str
    text: str
    numbers: tuple[int, ...] = ()


class Passage(Struct, frozen=True):
    """Adjacent lines, with their location (`label:line` or `label`) and their score."""

    label: str
    where: str
    text: str
    score: float
    number: int = 1


class _Scorer:
    """Computes BM25 scores from the number, length and term counts of all sources."""

    def __init__(self, terms: Sequence[SearchTerm], counts: list[list[int]], total: int) -> None:
        self.terms = terms
        if any(term.asks_for_code for term in terms):
            self._prose = PROSE_FACTOR_FOR_CODE
        else:
            self._prose = 1.0 if any(term.is_identifier for term in terms) else PROSE_FACTOR
        self._words = frozenset(term.word.lower() for term in terms) | frozenset(term.text for term in terms)
        self._weights = [
            term.weight * math.log(1 + (total - found + 0.5) / (found + 0.5))
            for term, found in zip(terms, (sum(map(bool, column)) for column in zip(*counts, strict=True)), strict=True)
        ]

    def score(self, counts: Sequence[float], length: int, usual: float) -> float:
        """Return the score of a text of `length` characters. `counts` are the frequencies of the terms in the text."""
        damping = K1 * (1 - B + B * length / usual)
        found = [weight * n * (K1 + 1) / (n + damping) for weight, n in zip(self._weights, counts, strict=True) if n]
        return sum(found) * (1 + EACH_FURTHER_TERM * (len(found) - 1)) if found else 0.0

    def label_score(self, label: str) -> float:
        """Return the score for terms in the name of a source."""
        lowered = label.lower()
        stem = lowered.rpartition("/")[2].partition(".")[0]
        found = [pair for pair in zip(self._weights, self.terms, strict=True) if count(pair[1], lowered)]
        return sum(weight * (NAME_SHARE if _stem(stem) == term.text else LABEL_SHARE) for weight, term in found)

    def factor(self, source: SourceText) -> float:
        """Return the factor for all passages of `source`."""
        if not source.numbers:
            return MESSAGE_FACTOR
        label = source.label
        kind = self._prose * (1.0 if "/" in label else TOP_FACTOR) if is_prose(label) else 1.0
        return kind * (SECONDARY_FACTOR if is_secondary(label) else 1.0)

    def counts(self, text: str) -> list[int]:
        """Return the number of occurrences of each term in `text`."""
        lowered = text.lower()
        return [count(term, lowered) for term in self.terms]

    def naming(self, name: str, limit: float = DEFINES_FACTOR) -> float:
        """Return the factor for a definition or heading called `name`, at most `limit`."""
        lowered = name.lower()
        words = [word for word in _NAME.findall(lowered) if word not in _STOP]
        exact = words and all(word in self._words or _stem(word) in self._words for word in words)
        limit = limit if exact else NAMES_FACTOR
        usable = [
            (weight, count(term, lowered))
            for weight, term in zip(self._weights, self.terms, strict=True)
            if term.usable
        ]
        total = sum(weight for weight, _ in usable)
        return 1.0 + (limit - 1.0) * sum(weight for weight, found in usable if found) / total if total else 1.0


def rank(sources: Sequence[SourceText], terms: Sequence[SearchTerm], total: int = 0) -> list[Passage]:
    """Return the passages of `sources` that contain `terms`, best first.

    If the name of a source contains a term, the first passages of this source are included. If `sources` contains only
    sources with matches, `total` is the number of all sources.
    """
    if not sources or not terms:
        return []
    counts = [[count(term, lowered) for term in terms] for lowered in (source.text.lower() for source in sources)]
    scorer = _Scorer(terms, counts, max(total, len(sources)))
    usual = sum(len(source.text) for source in sources) / len(sources) or 1.0
    scored = [
        (
            (scorer.score(found, len(source.text), usual) + scorer.label_score(source.label)) * scorer.factor(source),
            -index,
            source,
        )
        for index, (source, found) in enumerate(zip(sources, counts, strict=True))
    ]
    best = sorted((entry for entry in scored if entry[0] > 0), reverse=True, key=lambda entry: entry[:2])[:MAX_SOURCES]
    passages = [passage for _, _, source in best for passage in _passages(source, scorer)]
    return sorted(passages, key=lambda passage: -passage.score)


def _passages(source: SourceText, scorer: _Scorer) -> Iterator[Passage]:
    by_name, factor = scorer.label_score(source.label), scorer.factor(source)
    lines = source.text.split("\n")
    found = list(blocks(source.label, list(zip(source.numbers or range(1, len(lines) + 1), lines, strict=False))))
    for index, block in enumerate(found):
        naming = _naming(block, scorer)
        score = naming * _block_score(block, scorer)
        if score or (by_name and index < FIRST_BLOCKS):
            if not source.numbers and len(block.lines) > MAX_ENTRY_LINES:
                chosen_lines = _best_lines(block.lines, scorer)
            else:
                chosen_lines = _section(found, index) if naming > NAMES_FACTOR and block.opens else block.lines
            text = "\n".join(_cut(line, scorer.terms) for line in chosen_lines)
            where = f"{source.label}:{block.number}" if source.numbers else source.label
            yield Passage(source.label, where, text, (score + by_name) * factor, block.number)


def _block_score(block: LineBlock, scorer: _Scorer) -> float:
    """Return the score of `block`, including its heading."""
    text = "\n".join(block.lines)
    share = 1.0 if block.opens else HEADING_SHARE
    pairs = zip(scorer.counts(text), scorer.counts(block.heading), strict=True)
    kind = SAMPLE_FACTOR if block.fenced else 1.0
    if all(_IMPORT.match(line) for line in block.lines):
        kind = IMPORT_FACTOR
    return kind * scorer.score([own + share * above for own, above in pairs], max(len(text), USUAL_CHARS), USUAL_CHARS)


def _naming(block: LineBlock, scorer: _Scorer) -> float:
    """Return the factor for the definition in `block`.

    If `block` is the first passage below a heading, return the factor for that heading.
    """
    if block.opens:
        return scorer.naming(block.heading)
    best = 1.0
    for line in block.lines:
        if match := DEFINITION.match(line):
            name = _NAME.search(line, match.end())
            best = max(
                best,
                scorer.naming(name[0], limit=NAMES_FACTOR if line[0].isspace() else DEFINES_FACTOR) if name else 1.0,
            )
        elif not block.heading and (match := _ASSIGNED.match(line.removeprefix("# "))):
            best = max(best, scorer.naming(match[0]))
    return best


def _section(found: Sequence[LineBlock], index: int) -> list[str]:
    """Return the lines of block number `index` and of the following blocks below the same heading.

    Blocks that do not fit completely are left out.
    """
    lines = list(found[index].lines)
    last = found[index].number + len(lines)
    for block in found[index + 1 :]:
        between = block.number - last
        if (
            block.opens
            or block.heading != found[index].heading
            or len(lines) + between + len(block.lines) > SECTION_LINES
        ):
            break
        lines += [*[""] * between, *block.lines]
        last = block.number + len(block.lines)
    return lines


def _best_lines(lines: Sequence[str], scorer: _Scorer) -> Sequence[str]:
    """Return the best line and the lines after it, at most MAX_ENTRY_LINES."""
    scores = [scorer.score(scorer.counts(line), USUAL_CHARS, USUAL_CHARS) for line in lines]
    best = scores.index(max(scores))
    return lines[best : best + MAX_ENTRY_LINES]


def _cut(line: str, terms: Sequence[SearchTerm]) -> str:
    """Return the part of a long line around its first term."""
    if len(line) <= MAX_LINE:
        return line
    lowered = line.lower()
    positions = [position for position in (lowered.find(term.text) for term in terms) if position >= 0]
    begin = max(0, min(min(positions, default=0) - MAX_LINE // 3, len(line) - MAX_LINE))
    end = begin + MAX_LINE
    return f"{'[...] ' if begin else ''}{line[begin:end]}{' [...]' if end < len(line) else ''}"
