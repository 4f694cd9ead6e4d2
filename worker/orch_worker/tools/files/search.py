"""Looking for what a regular expression matches, line by line: where that might not end, in a process that can be."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ..api.base import ToolError
from .patterns import compile_pattern, harmless_length

if TYPE_CHECKING:
    from .search_process import SearchProcess

__all__ = ["Found", "PatternSearch", "SearchTimeoutError"]

MOST_CHARS: Final = 8_000
"""Of a line, only so much is looked at."""

Found = tuple[int, int, int]
"""Which line matches, and from where to where."""


class SearchTimeoutError(ToolError):
    """The pattern takes too long."""


class PatternSearch:
    """Looks for `pattern` until `stop_at`, as time.monotonic has it. Raises ToolError when it is none.

    To be closed: what might take for ever is left to a process of its own.
    """

    def __init__(self, pattern: str, *, stop_at: float, ignore_case: bool = False) -> None:
        self.pattern = pattern
        self._regex = compile_pattern(pattern, ignore_case=ignore_case)
        self._harmless = harmless_length(self._regex)
        self._stop_at = stop_at
        self._apart: SearchProcess | None = None
        self.looked = 0
        """How many of the lines that it was given last it has looked at."""

    def __enter__(self) -> PatternSearch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._apart is not None:
            self._apart.close()

    @property
    def is_over(self) -> bool:
        """Whether time is up."""
        return time.monotonic() > self._stop_at

    def among(self, lines: Sequence[str]) -> Iterator[Found]:
        """Yield those of `lines` that match in their first 8,000 characters, in order; none any more when time is up,
        but that one line is looked at.

        Raises SearchTimeoutError; ToolError when no process can be had.
        """
        self.looked = 0
        long = [(place, line[:MOST_CHARS]) for place, line in enumerate(lines) if len(line) > self._harmless]
        found = self._elsewhere(long) if long else {}
        for place, line in enumerate(lines):
            if place and self.is_over:  # one line may take a second
                return
            self.looked = place + 1
            if len(line) > self._harmless:
                span = found.get(place)
            else:
                match = self._regex.search(line, 0, MOST_CHARS)
                span = match.span() if match else None
            if span is not None:
                yield place, *span

    def _elsewhere(self, lines: Sequence[tuple[int, str]]) -> dict[int, tuple[int, int]]:
        if self._apart is None:
            from .search_process import SearchProcess  # few patterns need it

            self._apart = SearchProcess(self._regex)
        found = self._apart.search(lines, self._stop_at)
        if found is None:
            longest = max(len(line) for _, line in lines)
            raise SearchTimeoutError(
                f"{self.pattern!r} takes too long on lines of up to {longest:,} characters: repeat less, and nothing "
                "that repeats something itself."
            )
        return found
