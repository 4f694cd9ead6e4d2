"""What a command writes, while it writes it: head and tail kept, and made text that can be shown."""

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
    """The first and the last bytes of a stream, each at most half of `most`; those between are counted."""

    def __init__(self, most: int = MAX_CAPTURED) -> None:
        self.total = 0
        self._half = most // 2
        self._head = bytearray()
        self._tail = bytearray()

    def __call__(self, data: bytes) -> None:
        """Take the next bytes, of which no more is copied than is kept."""
        self.total += len(data)
        rest = memoryview(data)
        if room := self._half - len(self._head):
            self._head += rest[:room]
            rest = rest[room:]
        if len(rest) > self._half:
            self._tail.clear()
            rest = rest[-self._half :] if self._half else rest[:0]
        self._tail += rest
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def text(self) -> str:
        """Return what was kept as text, with a note where something was left out."""
        tail = self._tail[-self._half :]
        left_out = self.total - len(self._head) - len(tail)
        if not left_out:
            return plain_output(bytes(self._head + tail))
        return f"{plain_output(bytes(self._head))}\n[... {left_out:,} bytes left out ...]\n{plain_output(bytes(tail))}"


def plain_output(data: bytes) -> str:
    """Return `data` as a terminal would leave it: without colours, progress bars' earlier states, control characters.

    What is not UTF-8, and control characters, become U+FFFD.
    """
    text = data.decode(errors="replace")
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
