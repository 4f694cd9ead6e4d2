"""Ctrl-C that comes again while something is brought to its end. Light: the command line imports this."""

from __future__ import annotations

import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

__all__ = ["Presses"]


class Presses:
    """In a block, Ctrl-C has its usual effect at most `most` times.

    One that comes after that is held back, and counted in `held`; unless it comes `seconds` or more after the last one
    that had its effect, or after the beginning: nobody is to be stuck in an end that does not come. Outside the main
    thread, which alone hears signals, and where Ctrl-C is ignored, nothing changes.
    """

    def __init__(self, most: int, seconds: float = 10.0) -> None:
        self.held = 0
        self._most = most
        self._seconds = seconds
        self._count = 0
        self._last = 0.0
        self._before: Any = None

    def __enter__(self) -> Presses:
        before = signal.getsignal(signal.SIGINT)
        if callable(before):
            self._before, self._last = before, time.monotonic()
            try:
                signal.signal(signal.SIGINT, self._hear)
            except ValueError:
                self._before = None  # not the main thread
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._count >= self._most and now - self._last < self._seconds:
            self.held += 1
            return
        self._count, self._last = self._count + 1, now
        self._before(number, frame)
