"""What a question is about: its words without the small ones, identifiers whole and in parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from msgspec import Struct

__all__ = ["Term", "count", "paths_of", "terms_of"]

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
    has have having he her here hers him his how i if in into is it its itself just let like may me might more most
    must my myself neither no nor not now of off on once only or other our ours out over own please same shall she
    should so some such than that the their theirs them then there these they this those through to too under until up
    upon us very was way we were what when where whether which while who whom whose why will with within without would
    yes yet you your yours eg ie etc vs
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


class Term(Struct, frozen=True):
    """One thing to look for: `text` is what is counted, in lower case; `word` is how the question put it.

    Short ones count as whole words only. `usable` terms say what the question is about; the rest lend weight.
    """

    text: str
    word: str
    weight: float = 1.0

    @property
    def usable(self) -> bool:
        """Whether it is worth a search by itself."""
        return self.weight >= 1.0

    @property
    def regex(self) -> str:
        """A regular expression that finds it, to be used without regard to case."""
        escaped = re.escape(self.text)
        return rf"(?<![a-zA-Z0-9]){escaped}(?![a-zA-Z0-9])" if _is_short(self.text) else escaped


def terms_of(text: str) -> tuple[Term, ...]:
    """Return what to look for to answer `text`, at most 16 terms, those in front that say most."""
    found: dict[str, Term] = {}
    for term in _terms(text[:MAX_TEXT]):
        if term.text not in found or found[term.text].weight < term.weight:
            found[term.text] = term
    return tuple(sorted(found.values(), key=lambda term: -term.weight)[:MAX_TERMS])


def paths_of(text: str) -> tuple[str, ...]:
    """Return what in `text` looks like the path of a file."""
    return tuple(dict.fromkeys(match[0].rstrip(".") for match in _PATH.finditer(text[:MAX_TEXT])))


def count(term: Term, lowered: str) -> int:
    """Return how often `term` occurs in `lowered`, a text in lower case."""
    return len(_compiled(term.regex).findall(lowered)) if _is_short(term.text) else lowered.count(term.text)


@lru_cache(maxsize=256)
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex)


def _is_short(text: str) -> bool:
    return len(text) <= 3 and text.isascii()


def _terms(text: str) -> Iterator[Term]:
    for match in _WORD.finditer(text):
        if match["cjk"]:
            yield from _cjk_terms(match["cjk"])
        else:
            yield from _word_terms(match["word"].strip("./-"))


def _cjk_terms(run: str) -> Iterator[Term]:
    """Runs have no spaces, so every two neighbouring characters are a term, but not the hiragana between words."""
    for pair in [run] if len(run) < 2 else [run[start : start + 2] for start in range(len(run) - 1)]:
        if not _HIRAGANA.fullmatch(pair) and pair not in _STOP:
            yield Term(pair, pair)


def _word_terms(word: str) -> Iterator[Term]:
    lowered = word.lower()
    if len(word) < 2 or lowered in _STOP:
        return
    parts = _PARTS.findall(word)
    if len(parts) < 2 or lowered.isdecimal():
        yield Term(_stem(lowered), word, GENERIC_WEIGHT if lowered in _GENERIC else 1.0)
        return
    yield Term(lowered, word, IDENTIFIER_WEIGHT)
    names = word.split(".") if "/" not in word else []
    if len(names) > 1:
        for name in names:
            yield from _word_terms(name)
        return
    for part in parts:
        if len(part) > 2 and part.lower() not in _STOP:
            yield Term(_stem(part.lower()), part, PART_WEIGHT)


def _stem(word: str) -> str:
    """Return the beginning that `word` shares with its other forms: `queries` and `query` both contain `quer`."""
    for ending, least in (("ies", 3), ("sses", 3), ("ing", 4), ("ed", 4), ("s", 4)):
        kept = word[: -len(ending)]
        if word.endswith(ending) and len(kept) >= least and not word.endswith(("ss", "us", "is")):
            return f"{kept}ss" if ending == "sses" else kept
    return word
