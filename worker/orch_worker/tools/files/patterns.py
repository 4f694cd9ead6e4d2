"""Regular expressions from a model: compiled, or refused with the reason, and how long they may take."""

from __future__ import annotations

import re
from typing import Final

from ..api.base import ToolError

__all__ = ["compile_pattern", "harmless_length"]

MOST_STEPS: Final = 1e9
"""So many take seconds at the very worst, and nothing in this process can end a search before it ends by itself."""
LENGTHS: Final = (8_000, 4_000, 2_000, 1_000, 500, 250, 125, 60, 30, 15, 8, 4)
ENDLESS: Final = 1e300

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
    """Return `pattern` compiled. Raises ToolError for what is none."""
    try:
        return re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(
            f"{pattern!r} is not a regular expression: {error}. To search for the text itself, put a backslash before "
            r"each of \ . ^ $ * + ? { } [ ] | ( )."
        ) from error


def harmless_length(regex: re.Pattern[str]) -> int:
    """Return how long a text may be, 8,000 at most, in which looking for `regex` ends soon, whatever the text is.

    `(a+)+`, `(a|a)*` and `.*a.*b.*c` take longer than the universe lasts on some texts that are longer.
    """
    if regex.flags & re.VERBOSE:
        return 0
    return next((length for length in LENGTHS if length * _ways(regex.pattern, length) <= MOST_STEPS), 0)


def _ways(pattern: str, length: int) -> float:
    """Return in how many ways, at most, `pattern` can be tried at one place of a text of that length."""
    groups: list[tuple[float, float]] = []  # what stood before each open group: alternatives, and this one so far
    others, this, last = 0.0, 1.0, 1.0
    for match in _TOKEN.finditer(pattern):
        token = match[0]
        if token.startswith("(?#"):
            continue
        if token.startswith("(?") and token[2] != "P" and "x" in token.partition("-")[0]:
            return ENDLESS  # what is a comment there looks like anything
        if token[0] in "*+?" or (token[0] == "{" and len(token) > 2):
            last = _repeated(last, *_times(match, length))
            continue
        this, last = _both(this, last), 1.0
        if token[0] == "(" and not token.startswith("(?P="):
            groups.append((others, this))
            others, this = 0.0, 1.0
        elif token == "|":
            others, this = others + this, 1.0
        elif token == ")" and groups:
            last = others + this
            others, this = groups.pop()
    return others + _both(this, last)


def _times(match: re.Match[str], length: int) -> tuple[int, int]:
    """Return how often, at least and at most, the repeat `match` takes what stands before it."""
    if match[0][0] != "{":
        return int(match[0][0] == "+"), 1 if match[0][0] == "?" else length
    least = min(int(match["least"] or 0), length)
    return least, least if not match["comma"] else min(int(match["most"] or length), length)


def _repeated(ways: float, least: int, most: int) -> float:
    counts = float(max(most - least, 0) + 1)
    for _ in range(most if ways > 1 else 0):
        counts = _both(counts, ways)
        if counts >= ENDLESS:
            break
    return counts


def _both(one: float, other: float) -> float:
    return min(one * other, ENDLESS)
