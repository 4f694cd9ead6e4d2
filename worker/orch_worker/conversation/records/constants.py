"""Constants that an edit sets: names with literal values, in the notations of common languages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["constants_in"]

MAX_CHARS: Final = 50_000
_VALUE: Final = (
    r"(?P<value>-?\d[\d_]*(?:\.\d+)?(?:\s?(?:ms|s|px|rem|em|%|[kKMG]i?B))?|\"[^\"\\\n]{1,40}\"|'[^'\\\n]{1,40}'"
    r"|\d[\d_ */+]*\d|[Tt]rue|[Ff]alse)"
)
_END: Final = r"\s*(?:as const|\.freeze)?[;,)]?\s*(?:(?:#|//|--|/\*).*)?$"
_CONSTANT: Final = re.compile(
    r"^\s*(?:"
    # @max_lines 10
    rf"@(?P<attribute>[a-z]\w{{3,}})\s+"
    # LIMIT = 10, const LIMIT: u32 = 10, static final int LIMIT = 10, val LIMIT = 10
    r"|(?:(?:export|public|private|protected|internal|pub(?:\(\w+\))?|static|const|final|readonly|let|var|val|constexpr"
    r"|int|long|float|double|bool|boolean|string|String|uint\w*|size_t)\s+)*(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]+|[A-Z]{4,}"
    r"|(?<=const )[A-Za-z]\w{4,})\s*(?::\s*[\w<>\[\]. ,&'|]+?)?\s*:?=\s*"
    # #define LIMIT 10
    r"|#define\s+(?P<macro>[A-Z]\w{3,})\s+"
    # --page-width: 40rem
    r"|(?P<property>--[a-z][\w-]{3,}):\s*"
    rf"){_VALUE}{_END}"
)
_NOT_SET: Final = frozenset(("doc", "moduledoc", "spec", "impl", "type", "typedoc", "tag", "moduletag", "describetag"))


def constants_in(new: str, old: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each constant that the text `new` sets, and that `old` does not set so."""
    before = set(_all(old))
    for name, value in _all(new):
        if (name, value) not in before:
            yield name, value


def _all(text: str) -> Iterator[tuple[str, str]]:
    for line in text[:MAX_CHARS].split("\n"):
        match = _CONSTANT.match(line) if len(line) <= 200 else None
        if match is not None and match["attribute"] not in _NOT_SET:
            name = (
                f"@{match['attribute']}" if match["attribute"] else match["name"] or match["macro"] or match["property"]
            )
            yield name, match["value"]
