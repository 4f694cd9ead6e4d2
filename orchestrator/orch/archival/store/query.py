"""Parses the query of a search: its terms, the paths and errors among them, and its regular expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from orch_worker.backends.offline.bm25 import is_stop_word
from orch_worker.tools.api.base import ToolError
from orch_worker.tools.files.patterns import compile_pattern, harmless_length

from .index import separate_wide_characters

__all__ = ["STOP_WORD", "Query", "Term"]

MAX_TERMS: Final = 40
IDENTIFIER: Final = 3.0
STOP_WORD: Final = 0.1
MIN_HASH: Final = 7
MAX_HASH: Final = 40

_WORD: Final = re.compile(r"\w+")
_HASH: Final = re.compile(r"(?=[a-f]*\d)[0-9a-f]{7,64}", re.I)
_FILE: Final = re.compile(r"[\w@.~-]*\w\.[A-Za-z][A-Za-z0-9_]{0,9}|[A-Z]\w*file|\.\w[\w.-]*")
_IDENTIFIER: Final = re.compile(r"\w_\w|[a-z][A-Z]|[^\W\d]\d|\d[^\W\d]|\w[./:]\w")
_HASH_RUN: Final = re.compile(r"[0-9a-f]+")
_PLAIN: Final = re.compile(r"[A-Za-z]?[a-z]{4,}")
_SUFFIX: Final = re.compile(r"(?:ations?|ions?|ings?|ments?|ers?|ed|es|ly|s|e)$")
MIN_STEM: Final = 4
_EDGES: Final = "\"'`()[]{}<>,;:!?*"
_REGEX: Final = re.compile(
    r"\\[bBdDsSwW]|\.[*+?]|[)\]\w.][*+](?:$|\W)|\[[^\]\s]+\]|\w\|\w|\(\?|^\^|\w\$$|\\[.()\[\]]|\)\?|\.\{"
)
_ERROR: Final = re.compile(
    r"error|exception|traceback|fail(?:ed|s|ure|ing)?\b|fatal|panic|denied|undefined|unknown|invalid|missing"
    r"|not found|no such|cannot|can't|could not|unable|refused|timed? ?out|exit(?:ed)? (?:code|status|with)|abort"
    r"|crash|conflict|rejected|unexpected|warning",
    re.I,
)


class Term:
    """One word, identifier, path or number of a query."""

    def __init__(self, text: str) -> None:
        self.text = text.lower()
        self.is_path = "/" in text.strip("/") or _FILE.fullmatch(text) is not None
        self.is_hash = _HASH.fullmatch(text) is not None
        self.significance = STOP_WORD if is_stop_word(text) else IDENTIFIER if _IDENTIFIER.search(text) else 1.0
        """The factor of the term's weight: identifiers decide, and words such as "the" do not."""
        self.stem = "" if self.significance == STOP_WORD else _stem(text)
        """The beginning of other forms of the word: "warn" for "warning". "" for names, numbers and short words."""

    @property
    def expression(self) -> str:
        """The term for the index: adjacent words. A hash also matches its abbreviations and longer forms."""
        phrase = _phrase(self.text)
        if not self.is_hash:
            return phrase
        short = (f'"{self.text[:length]}"' for length in range(MIN_HASH, min(len(self.text), MAX_HASH)))
        return f"({' OR '.join([f'{phrase} *', *short])})"

    @property
    def stem_expression(self) -> str:
        """The term or other forms of the word for the index."""
        return f'("{self.stem}" *)' if self.stem else self.expression

    @property
    def name_expression(self) -> str:
        """The last part of a path for the index."""
        return _phrase(self.text.rstrip("/").rpartition("/")[2]) or self.expression

    def occurrences(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each occurrence in the lower-case `text`, also within longer words.

        A hash also occurs where `text` has its abbreviation or a longer form.
        """
        needle = self.text[:MIN_HASH] if self.is_hash else self.text
        start = text.find(needle)
        while start >= 0:
            end = start + len(needle)
            if self.is_hash:
                run = _HASH_RUN.match(text, start)
                end = run.end() if run else end
            if not self.is_hash or self.text.startswith(text[start:end]) or text.startswith(self.text, start):
                yield start, end
            start = text.find(needle, end)

    def stem_occurrences(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each other form of the word in the lower-case `text`."""
        start = text.find(self.stem) if self.stem else -1
        while start >= 0:
            end = start + len(self.stem)
            if not text[start - 1 : start].isalnum():
                yield start, end
            start = text.find(self.stem, end)

    def names(self, path: str) -> bool:
        """Return whether the term is `path`, its name, or its end, or whether the term ends with `path`."""
        path, own = path.lower().removeprefix("./"), self.text.removeprefix("./")
        return path == own or path.endswith(f"/{own.lstrip('/')}") or own.endswith(f"/{path.lstrip('/')}")


class Query:
    """A parsed query. `text` is the query without surrounding whitespace."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        found: dict[str, Term] = {}
        for token in separate_wide_characters(self.text[:10_000]).split():
            token = token.strip(_EDGES).rstrip(".")
            if _WORD.search(token) and len(found) < MAX_TERMS:
                found.setdefault(token.lower(), Term(token))
        self.terms = list(found.values())
        self.paths = [term for term in self.terms if term.is_path]
        self.is_error = _ERROR.search(self.text) is not None

    @property
    def phrase(self) -> str:
        """The whole query for the index: its words in this order. "" if the query contains no words."""
        return _phrase(self.text[:10_000])

    @cached_property
    def regex(self) -> tuple[re.Pattern[str], int] | None:
        """The query as a regular expression, and the number of characters of a line that it may search.

        None if the query is no regular expression, or one whose search could take practically forever.
        """
        if not _REGEX.search(self.text):
            return None
        try:
            regex = compile_pattern(self.text)
        except ToolError:
            return None
        length = harmless_length(regex)
        return (regex, length) if length and not regex.match("") else None


def _stem(word: str) -> str:
    if not _PLAIN.fullmatch(word):
        return ""
    stem = _SUFFIX.sub("", word.lower())
    return stem if len(stem) >= MIN_STEM else ""


def _phrase(text: str) -> str:
    words = _WORD.findall(separate_wide_characters(text).replace("_", " "))
    return " + ".join(f'"{word}"' for word in words)
