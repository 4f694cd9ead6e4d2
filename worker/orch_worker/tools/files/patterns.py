"""Compiles regular expressions that a model wrote, and estimates how long a search may take."""

from __future__ import annotations

import re
from typing import Final

from ..api.base import ToolError

__all__ = ["compile_pattern", "harmless_length"]

MAX_STEPS: Final = 1e9
"""Maximum number of regex steps.

A search of this length takes seconds, and a running search in this process cannot be stopped.
"""
LENGTHS: Final = (8_000, 4_000, 2_000, 1_000, 500, 250, 125, 60, 30, 15, 8, 4)
TOO_MANY_WAYS: Final = 1e300

_TOKEN = re.compile(
    r"""\\.                                   # an escaped character
      | \[\^?\]?(?:\\.|[^\]\\])*\]            # a class
      | \(\?(?:P=\w+|\#[^)]*)\)               # what a group held, or a comment
      | \((?:\?(?:P<\w+>|[>:=!]|<[=!]|[aiLmsux-]+:|[aiLmsux]+))?  # the head of a group
      | \)
      | (?:[*+?]|\{(?P<least>\d*)(?P<comma>,?)(?P<most>\d*)\})[?+]?   # a repeat, lazy or possessive
      | .                                     # anything else""",
    re.VERBOSE | re.DOTALL,
)


def compile_pattern(pattern: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """Return the compiled `pattern`. Raise ToolError if the pattern is invalid."""
    try:
        return re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(
            f"{pattern!r} is not a regular expression: {error}. To search for the text itself, put a backslash before "
            r"each of \ . ^ $ * + ? { } [ ] | ( )."
        ) from error


def harmless_length(regex: re.Pattern[str]) -> int:
    """Return a text length of at most 8,000 characters. Every search for `regex` in a text of this length ends quickly.

    Patterns such as `(a+)+`, `(a|a)*` and `.*a.*b.*c` can take practically forever on longer texts.
    """
    if regex.flags & re.VERBOSE:
        return 0
    return next((length for length in LENGTHS if length * _count_ways(regex.pattern, length) <= MAX_STEPS), 0)


def _count_ways(pattern: str, length: int) -> float:
    """Return an upper bound for the number of ways to match `pattern` at one position. `length` is the text length."""
    # The state before each open group: the earlier alternatives and the current alternative.
    groups: list[tuple[float, float]] = []
    alternatives, current, last_item = 0.0, 1.0, 1.0
    for match in _TOKEN.finditer(pattern):
        token = match[0]
        if token.startswith("(?#"):
            continue
        if token.startswith("(?") and token[2] != "P" and "x" in token.partition("-")[0]:
            return TOO_MANY_WAYS  # In verbose mode, comments cannot be recognized.
        if token[0] in "*+?" or (token[0] == "{" and len(token) > 2):
            last_item = _count_repeated(last_item, *_repeat_range(match, length))
            continue
        current, last_item = _multiply(current, last_item), 1.0
        if token[0] == "(" and not token.startswith("(?P="):
            groups.append((alternatives, current))
            alternatives, current = 0.0, 1.0
        elif token == "|":
            alternatives, current = alternatives + current, 1.0
        elif token == ")" and groups:
            last_item = alternatives + current
            alternatives, current = groups.pop()
    return alternatives + _multiply(current, last_item)


def _repeat_range(match: re.Match[str], length: int) -> tuple[int, int]:
    """Return the minimum and maximum number of repeats of `match`."""
    if match[0][0] != "{":
        return int(match[0][0] == "+"), 1 if match[0][0] == "?" else length
    minimum = min(int(match["least"] or 0), length)
    return minimum, minimum if not match["comma"] else min(int(match["most"] or length), length)


def _count_repeated(ways: float, minimum: int, limit: int) -> float:
    counts = float(max(limit - minimum, 0) + 1)
    for _ in range(limit if ways > 1 else 0):
        counts = _multiply(counts, ways)
        if counts >= TOO_MANY_WAYS:
            break
    return counts


def _multiply(first: float, second: float) -> float:
    return min(first * second, TOO_MANY_WAYS)
