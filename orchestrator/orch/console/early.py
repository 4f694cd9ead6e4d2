"""Keys that are pressed before there is a prompt."""

from __future__ import annotations

import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

__all__ = ["early"]

INPUT: Final = 0
MODES: Final = 3
"""Where the two stand in what termios tells of a terminal."""


@contextmanager
def early(descriptor: int) -> Iterator[None]:
    """Let keys wait for whoever reads them from the terminal, unseen, and Enter as what it is: no end of a line,
    which could be Ctrl-J. Ctrl-C interrupts as ever."""
    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:
        yield  # it is no terminal
        return
    now = list(before)
    now[INPUT] &= ~termios.ICRNL
    now[MODES] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(descriptor, termios.TCSANOW, now)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
