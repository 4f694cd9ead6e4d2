"""Patterns of file names, as Git writes them, as regular expressions that are soon done, whoever wrote them. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from .base import ToolError

__all__ = ["alternatives", "glob_regex"]

NAME: Final = "[^/]*"
ANY: Final = ".*"
FOLDERS: Final = "(?:.*/)?"
EARLY: Final = {"": "", NAME: "[^/]*?", ANY: ".*?", FOLDERS: "(?:.*?/)??"}
"""Each of them, so that it takes as little as it can."""

MOST_ALTERNATIVES: Final = 100

_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")
_MORE_STARS: Final = re.compile(r"(?<!\\)\*{3,}")
_CLASS: Final = re.compile(r"\[([!^]?)(\]?[^\]]*)\]")
_SPECIAL: Final = re.compile(r"([\\\[&~|])")

Piece = tuple[str, str]
"""What may stand before, one of the above or nothing, and a regex of so many characters."""


def alternatives(pattern: str) -> list[str]:
    """Return what `pattern` stands for where braces hold one of several, `*.{c,h}`, as shells have it and Git has not;
    itself first, since names may have braces. Raises ToolError when that is too many."""
    found, whole = [pattern], [pattern]
    while whole:
        each = whole.pop()
        if match := _BRACES.search(each):
            whole += [f"{each[: match.start()]}{part}{each[match.end() :]}" for part in match[1].split(",")]
        elif each != pattern:
            found.append(each)
        if len(whole) + len(found) > MOST_ALTERNATIVES:
            raise ToolError(f"{pattern!r} has more than {MOST_ALTERNATIVES} alternatives: look for fewer at once.")
    return found


@lru_cache(maxsize=256)
def glob_regex(pattern: str) -> re.Pattern[str]:
    """Return `pattern` as a regex over a whole relative path. `*` stops at a slash, `**` does not.

    A pattern without a slash matches the last part alone, in any folder.
    """
    anchored = "/" in pattern.rstrip("/")
    try:
        return re.compile(_joined(_pieces("" if anchored else FOLDERS, pattern.strip("/"))), re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern))


def _pieces(before: str, rest: str) -> list[Piece]:
    rest = _MORE_STARS.sub("**", rest)
    pieces, fixed, whole = [], "", rest
    while rest:
        star = ""
        if rest.startswith("**/") and not fixed and before == FOLDERS:
            rest = rest[3:]  # any folders below any folders
            continue
        if rest.startswith("**/") and (rest == whole or fixed.endswith("/")):
            star, rest = FOLDERS, rest[3:]
        elif rest.startswith("**"):
            star, rest = NAME if rest.startswith("**/") else ANY, rest[2:]
        elif rest[0] == "*":
            star, rest = NAME, rest[1:]
        elif rest[0] == "?":
            fixed, rest = f"{fixed}[^/]", rest[1:]
        elif match := _CLASS.match(rest):
            inside = _SPECIAL.sub(r"\\\1", match[2])
            fixed, rest = f"{fixed}(?!/)[{'^' if match[1] else ''}{inside}]", rest[match.end() :]
        else:
            escaped = rest[0] == "\\" and len(rest) > 1
            fixed, rest = fixed + re.escape(rest[escaped]), rest[1 + escaped :]
        if star:
            pieces.append((before, fixed))
            before, fixed = star, ""
    return [*pieces, (before, fixed)]


def _joined(pieces: list[Piece]) -> str:
    """Return the regex of `pieces`.

    Whatever stands after a star is taken where it stands first, and not looked for again: that leaves the most for the
    rest. Else a few stars in a pattern of a stranger's would take longer than the universe lasts on one long name.
    """
    last = max((place for place, (star, _) in enumerate(pieces) if star in (ANY, FOLDERS)), default=0)
    out = ""
    for place, (star, fixed) in enumerate(pieces[:last]):
        if place and star == NAME:
            out = f"{out}(?>{EARLY[star]}{fixed})"
        else:
            out = f"{out}{')' if place else ''}(?>{EARLY[star]}{fixed}"
    out += ")" if last else ""
    first, *others = pieces[last:]
    out += "".join(first)
    for number, (star, fixed) in enumerate(others, 1):
        out += f"(?>{EARLY[star]}{fixed})" if number < len(others) else star + fixed
    return out
