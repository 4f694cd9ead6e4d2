"""Searches lines for a regular expression. A search that may take too long runs in a separate process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ..api.base import ToolError
from .patterns import compile_pattern, harmless_length

if TYPE_CHECKING:
    from .search_process import SearchProcess

__all__ = ["Found", "PatternSearch", "SearchTimeoutError"]

MAX_CHARS: Final = 8_000
"""Maximum number of characters of each line that are searched."""

Found = tuple[int, int, int]
"""The index of a line, and the start and end of the match in this line."""


class SearchTimeoutError(ToolError):
    """The search takes too long."""


class PatternSearch:
    """Searches for `pattern` until `stop_at`, a time of time.monotonic. Raises ToolError for an invalid pattern.

    Close the object after use, because it may have started a process.
    """

    def __init__(self, pattern: str, *, stop_at: float, ignore_case: bool = False) -> None:
        self.pattern = pattern
        self._regex = compile_pattern(pattern, ignore_case=ignore_case)
        self._safe_length = harmless_length(self._regex)
        self._stop_at = stop_at
        self._process: SearchProcess | None = None
        self.searched_lines = 0
        """Number of lines that the last call of `search` searched."""

    def __enter__(self) -> PatternSearch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.close()

    @property
    def is_timed_out(self) -> bool:
        """Whether the time limit is reached."""
        return time.monotonic() > self._stop_at

    def search(self, lines: Sequence[str]) -> Iterator[Found]:
        """Yield the matches in the first 8,000 characters of each line, in order.

        The search stops at the time limit, but not before the first line. Raise SearchTimeoutError if one line takes
        too long, and ToolError if the search process cannot be started.
        """
        self.searched_lines = 0
        long_lines = [(index, line[:MAX_CHARS]) for index, line in enumerate(lines) if len(line) > self._safe_length]
        found = self._search_in_process(long_lines) if long_lines else {}
        for index, line in enumerate(lines):
            if index and self.is_timed_out:  # A single line may take a second.
                return
            self.searched_lines = index + 1
            if len(line) > self._safe_length:
                span = found.get(index)
            else:
                match = self._regex.search(line, 0, MAX_CHARS)
                span = match.span() if match else None
            if span is not None:
                yield index, *span

    def _search_in_process(self, lines: Sequence[tuple[int, str]]) -> dict[int, tuple[int, int]]:
        if self._process is None:
            from .search_process import SearchProcess  # This module is rarely needed.

            self._process = SearchProcess(self._regex)
        found = self._process.search(lines, self._stop_at)
        if found is None:
            longest = max(len(line) for _, line in lines)
            raise SearchTimeoutError(
                f"{self.pattern!r} takes too long on lines of up to {longest:,} characters: use fewer "
                "repetitions, and no nested repetitions."
            )
        return found
