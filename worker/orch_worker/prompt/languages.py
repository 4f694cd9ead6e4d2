"""Determines the programming languages of a project by the suffixes of its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

__all__ = ["languages_of"]

MAX_LANGUAGES: Final = 4
MIN_SHARE: Final = 0.05
"""A language is named if it has at least this share of the source files."""

SUFFIXES: Final[dict[str, str]] = {
    "Python": ".py .pyi .ipynb",
    "JavaScript": ".js .jsx .mjs .cjs",
    "TypeScript": ".ts .tsx .mts .cts",
    "Go": ".go",
    "Rust": ".rs",
    "R": ".r .rmd .qmd",
    "Java": ".java",
    "Kotlin": ".kt .kts",
    "Scala": ".scala",
    "C": ".c .h",
    "C++": ".cc .cpp .cxx .hh .hpp .hxx",
    "C#": ".cs",
    "F#": ".fs",
    "Swift": ".swift",
    "Objective-C": ".m .mm",
    "Ruby": ".rb",
    "PHP": ".php",
    "Perl": ".pl .pm",
    "Lua": ".lua",
    "Julia": ".jl",
    "Haskell": ".hs",
    "OCaml": ".ml .mli",
    "Elixir": ".ex .exs",
    "Erlang": ".erl",
    "Clojure": ".clj .cljs",
    "Dart": ".dart",
    "Zig": ".zig",
    "Fortran": ".f90 .f95 .f",
    "Shell": ".sh .bash",
    "PowerShell": ".ps1",
    "SQL": ".sql",
}
LANGUAGES: Final = {suffix: language for language, suffixes in SUFFIXES.items() for suffix in suffixes.split()}


def languages_of(suffixes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the languages of the files, the most frequent first, at most MAX_LANGUAGES.

    `suffixes` counts files by suffix.
    """
    counts: Counter[str] = Counter()
    for suffix, files in suffixes.items():
        if language := LANGUAGES.get(suffix.lower()):
            counts[language] += files
    minimum = counts.total() * MIN_SHARE
    return tuple(language for language, files in counts.most_common(MAX_LANGUAGES) if files >= minimum)
