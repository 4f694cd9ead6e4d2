"""How a shell reads the text of a command: what escapes, line ends, quotes and braces hide, and which links it makes.

Pure. What a command makes up only as it runs stands as a `*`, or as a variable that nobody knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["WORD", "attached", "linked", "respelled", "tails", "unseparated"]

UNKNOWN: Final = "$__"
DEEPEST: Final = 16

_ESCAPED: Final = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:[xu]([0-9A-Fa-f]{1,4})|([0-7]{1,3})|(.))", re.DOTALL)
_MADE_UP: Final = re.compile(r"(?<=/)(?:\$\([^()]*\)|`[^`\n]*`)|(?:\$\([^()]*\)|`[^`\n]*`)(?=/)")
"""What another command says, as a part of a path."""
_DATE: Final = re.compile(r"..?date\s+(?:-u\s+)?['\"]?\+['\"]?%[FHMSTYdjmsy][%\w:-]*['\"]?\W")
NUMBER: Final = "[0-9]*"
_SERIES: Final = re.compile(
    r"\{(?:(?P<number>\d+\.\.\d+)|(?P<letter>[A-Za-z]\.\.[A-Za-z])|-?\d+\.\.-?\d+)(?:\.\.-?\d+)?\}|(?<=/)\{\}|\{\}(?=/)"
)
"""One after the other: `{a..c}`, and what `find` and `xargs` put in."""
_GOES: Final = re.compile(r"(?<![^\s;&|(`{])[\\'\"]*(?:c[\\'\"]*d|p[\\'\"]*u[\\'\"]*s[\\'\"]*h[\\'\"]*d)[\\'\"]*(?=\s)")
_OWN: Final = re.compile(r"/proc/[^/\s]+/(?:task/[^/\s]+/)?cwd\b")
"""The folder that whoever looks works in."""
_LINKS: Final = re.compile(r"\b(?:ln|(?P<copies>cp))\s([^;&|\n]*)|\bsymlink(?:_to|Sync)?\(([^\n;]*)")
_AS_LINKS: Final = re.compile(r"(?:^|\s)-(?:[a-zA-Z]*s|-symbolic-link)")
WORD: Final = re.compile(r"(?:[^\s'\"`;|&<>(){}\[\],]+|\[0-9\])+")
_ATTACHED: Final = re.compile(r"-[A-Za-z]+(?=[./~*]|\$[^\s/]*/)")
_SEPARATED: Final = re.compile(
    r"(\b(?:[gmn]?awk|column|cut|join|paste|sort)\s+(?:-[\w,.=-]+\s+)*-[A-Za-z]*[Fdst])/(?=\s|$)"
)
"""A slash that is no folder, but between the fields of a line."""


def respelled(text: str) -> str:
    """Return `text` with what is written in a roundabout way as it is read; the same where there is nothing of it."""
    text = text.replace("\\\n", "")
    if "$'" in text:
        text = _ESCAPED.sub(_plain, text)
    text = _MADE_UP.sub(_made_up, _OWN.sub(".", text))
    return _GOES.sub(_goes, _SERIES.sub(_series, text))


def unseparated(text: str) -> str:
    """Return `text` without slashes that are options of commands which take lines apart: `cut -d/`."""
    return _SEPARATED.sub(r"\1", text)


def attached(word: str) -> Iterator[str]:
    """Yield what may be the value in `word`, an option that it is written right behind: `-T../file`.

    A variable alone is none: how many or which one, as in `-n$N`, it says more often.
    """
    if word.startswith("-") and "/" in word[2:]:
        yield word[2:]
    if found := _ATTACHED.match(word):
        yield word[found.end() :]


def linked(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in `text`, or of each call in that code, by which files get further names."""
    for found in _LINKS.finditer(text):
        said = found[2] or found[3] or ""
        if not found["copies"] or _AS_LINKS.search(said):
            yield [word for word in WORD.findall(said) if not word.startswith("-")]


def tails(path: str) -> Iterator[str]:
    """Yield what is left of `path` behind each folder of it, which may be a link."""
    parts = path.strip("/").split("/")
    yield from ("/".join(parts[start:]) for start in range(1, min(len(parts), DEEPEST)))


def _plain(found: re.Match[str]) -> str:
    def character(escape: re.Match[str]) -> str:
        return chr(int(escape[1] or escape[2], 16 if escape[1] else 8)) if escape[1] or escape[2] else escape[3]

    return f"'{_ESCAPE.sub(character, found[1])}'"


def _made_up(found: re.Match[str]) -> str:
    return NUMBER if _DATE.fullmatch(found[0]) else UNKNOWN


def _series(found: re.Match[str]) -> str:
    return NUMBER if found["number"] else "?" if found["letter"] else "*"


def _goes(found: re.Match[str]) -> str:
    said = found[0]
    bare = said.lstrip("'\"")
    return said if bare.isalpha() else re.sub(r"[\\'\"]", "", said)
