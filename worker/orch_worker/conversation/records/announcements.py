"""Finds edits that differ from what the agent announced: a value in the prose that the new text does not contain."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["deviation"]

MAX_CHARS: Final = 600
_SPAN: Final = re.compile(r"`([^`\n]{1,60})`|“([^”\n]{1,40})”")
_INTENT: Final = re.compile(
    r"\b(?:let me|let's|i'll|i will|i am going to|i'm going to|now|next|first|then|going to|should|use|using|set"
    r"|setting|change|changing|"
    r"switch|replace|rename|add|adding|make|call it|pass|bump|raise|lower|increase|decrease|update|default)\b",
    re.IGNORECASE,
)
_AWAY: Final = re.compile(
    r"\b(?:not|instead of|rather than|from|without|no longer|remove|removing|drop|delete|was|were|currently"
    r"|replac\w+|than|like|as in|see)\s+(?:the\s+|a\s+|an\s+|of\s+)?$",
    re.IGNORECASE,
)
_BARE: Final = re.compile(r"(?<![\w`./:-])(:[a-z_]\w*|--[a-z][\w-]+|\d+(?:\.\d+)?)(?![\w`/-]|\.\d)")
_SHAPES: Final = (
    re.compile(r":[a-zA-Z_]\w*[?!]?"),  # a symbol or an atom
    re.compile(r"--[a-z][\w-]+"),  # an option
    re.compile(r"\d[\d_]*(?:\.\d+)?"),  # a number
    re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+"),  # a constant
)
_PAIR: Final = re.compile(r"(\w[\w-]*)\s*(?::|=>?|:=)\s*(:?[\w.\"'-]+)")


def deviation(prose: str, old: str, new: str) -> tuple[str, str] | None:
    """Return what `prose` announced and what was typed instead, if the edit from `old` to `new` differs.

    Only values are compared that occur once in each: symbols, options, numbers, constants, and values of a key. Return
    None if the edit may follow the announcement.
    """
    sentence = prose.strip()[-MAX_CHARS:]
    if not new or not _INTENT.search(sentence):
        return None
    spans = []
    for match in [*_SPAN.finditer(sentence), *_BARE.finditer(sentence)]:
        if not _AWAY.search(sentence[: match.start()]):
            spans.append(match[1] or match[2] if match.re is _SPAN else match[1])
    for span in dict.fromkeys(spans):
        if span in new or span in old:
            continue
        if pair := _PAIR.fullmatch(span):
            typed = [each[2] for each in _PAIR.finditer(new) if each[1] == pair[1] and each[0] not in old]
            if len(set(typed)) == 1 and typed[0] != pair[2]:
                return span, f"{pair[1]}: {typed[0]}"
            continue
        for shape in _SHAPES:
            if not shape.fullmatch(span):
                continue
            announced = {each for each in spans if shape.fullmatch(each)}
            added = {each for each in _tokens(shape, new) if each not in _tokens(shape, old)}
            if len(announced) == 1 and len(added) == 1 and not any(each in sentence for each in added):
                return span, next(iter(added))
    return None


def _tokens(shape: re.Pattern[str], text: str) -> set[str]:
    return {match[0] for match in re.finditer(rf"(?<![\w:-])(?:{shape.pattern})(?![\w])", text)}
