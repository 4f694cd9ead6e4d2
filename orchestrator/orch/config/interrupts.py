"""Repeated Ctrl-C during cleanup. This module imports little, because the command line imports it."""

from __future__ import annotations

import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

__all__ = ["InterruptLimit"]


class InterruptLimit:
    """A context manager that limits the effect of Ctrl-C.

    In the block, the first `limit` presses of Ctrl-C call the previous handler. A later press is ignored and counted in
    `suppressed`, unless `seconds` have passed since the block began and since the last call of the handler. The user
    can therefore end a cleanup that hangs. The block has no effect if Ctrl-C is ignored. It also has no effect outside
    the main thread, because only the main thread receives signals.
    """

    def __init__(self, limit: int, seconds: float = 10.0) -> None:
        self.suppressed = 0
        self._limit = limit
        self._seconds = seconds
        self._count = 0
        self._last = 0.0
        self._previous_handler: Any = None

    def __enter__(self) -> InterruptLimit:
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            self._previous_handler, self._last = handler, time.monotonic()
            try:
                signal.signal(signal.SIGINT, self._on_interrupt)
            except ValueError:
                self._previous_handler = None  # raised outside the main thread
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._count >= self._limit and now - self._last < self._seconds:
            self.suppressed += 1
            return
        self._count, self._last = self._count + 1, now
        self._previous_handler(number, frame)
