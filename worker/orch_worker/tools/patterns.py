"""Regular expressions from a model: compiled, or refused with the reason."""

from __future__ import annotations

import re

from .base import ToolError

__all__ = ["compile_pattern"]

_TOKEN = re.compile(
    r"""\\.                                   # an escaped character
      | \[\^?\]?(?:\\.|[^\]\\])*\]            # a class
      | \((?:\?(?:P<\w+>|[>:=!]|<[=!]|[aiLmsux-]+:|P=\w+|\#[^)]*|[aiLmsux]+))?  # the head of a group
      | \)
      | (?:[*+]|\{\d*,\d*\})[?+]?             # a repeat, lazy or possessive
      | .                                     # anything else""",
    re.VERBOSE | re.DOTALL,
)


def compile_pattern(pattern: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """Return `pattern` compiled. Raises ToolError for a bad one, and for a repeat of a repeat.

    `(a+)+` can take longer than the universe lasts on a short line, and nothing in this process could interrupt it.
    """
    try:
        compiled = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(
            f"{pattern!r} is not a regular expression: {error}. To search for the text itself, put a backslash before "
            r"each of \ . ^ $ * + ? { } [ ] | ( )."
        ) from error
    if group := _repeat_of_repeat(pattern):
        raise ToolError(
            f"{pattern!r} repeats a group that repeats something itself, {group!r}, which may never end. Drop one of "
            "the two, or make the inner one possessive: 'a++' for 'a+'."
        )
    return compiled


def _repeat_of_repeat(pattern: str) -> str:
    """Return the first group with an open-ended repeat in it that is itself repeated without end, or ""."""
    open_groups: list[tuple[int, bool, bool]] = []  # where it began, whether it repeats something, whether it is atomic
    repeats = False
    closed: tuple[int, bool] | None = None
    for match in _TOKEN.finditer(pattern):
        token = match[0]
        if token[0] in "*+" or (token[0] == "{" and "," in token):
            if not token.endswith("+") or len(token) == 1:
                if closed and closed[1]:
                    return pattern[closed[0] : match.end()]
                repeats = True
            closed = None
        elif token[0] == "(" and not token.startswith(("(?#", "(?P=")):
            open_groups.append((match.start(), repeats, token == "(?>"))
            repeats, closed = False, None
        elif token == ")" and open_groups:
            start, before, atomic = open_groups.pop()
            closed = (start, repeats and not atomic)
            repeats = before or closed[1]
        else:
            closed = None
    return ""
