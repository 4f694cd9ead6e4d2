"""Captures the beginning and the end of a command's output, and converts the output to plain text."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_CAPTURED", "OutputCapture", "plain_output"]

MAX_CAPTURED: Final = 1 << 20

_ESCAPE: Final = re.compile(
    r"""\x1b\[[0-?]*[ -/]*[@-~]              # colours, cursor movements
      | \x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?  # titles, links, and other strings for a terminal
      | \x1b[ -/]*[0-~]?                     # the rest""",
    re.VERBOSE,
)
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class OutputCapture:
    """The first and last bytes of a stream, at most half of `limit` each.

    The bytes between the two parts are only counted.
    """

    def __init__(self, limit: int = MAX_CAPTURED) -> None:
        self.total = 0
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()

    def __call__(self, data: bytes) -> None:
        """Add the next bytes. Only the captured bytes are copied."""
        self.total += len(data)
        remaining = memoryview(data)
        if free_bytes := self._half - len(self._head):
            self._head += remaining[:free_bytes]
            remaining = remaining[free_bytes:]
        if len(remaining) > self._half:
            self._tail.clear()
            remaining = remaining[-self._half :] if self._half else remaining[:0]
        self._tail += remaining
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def text(self) -> str:
        """Return the captured text, with a note at the place where bytes were left out."""
        tail = self._tail[-self._half :]
        omitted = self.total - len(self._head) - len(tail)
        if not omitted:
            return plain_output(bytes(self._head + tail))
        return f"{plain_output(bytes(self._head))}\n[... {omitted:,} bytes left out ...]\n{plain_output(bytes(tail))}"


def plain_output(data: bytes) -> str:
    """Return `data` as plain text without colors, overwritten progress bars and control characters.

    Bytes that are not UTF-8 and control characters become U+FFFD.
    """
    text = data.decode(errors="replace")
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
