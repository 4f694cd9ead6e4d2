"""`Presses`: a limited number of effective Ctrl-C presses within a block."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from orch.config import interrupts
from orch.config.interrupts import InterruptLimit


def press() -> None:
    """Raise SIGINT in this process."""
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that reach the previous handler of SIGINT."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the monotonic clock, as the only item of a list."""
    now = [100.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_repeated_interrupts_are_counted_inside_the_block(heard: list[int], limit: int) -> None:
    """Presses above the limit are counted and have no effect. After the block, presses have their usual effect."""
    with InterruptLimit(limit) as presses:
        for _ in range(4):
            press()
    assert (len(heard), presses.suppressed) == (limit, 4 - limit)
    press()
    assert len(heard) == limit + 1


def test_hanging_block_lets_later_interrupts_through(heard: list[int], clock: list[float]) -> None:
    """A press has its usual effect if the start and the last effective press were ten seconds ago."""
    with InterruptLimit(0, 10.0) as presses:
        clock[0] = 109.0
        press()
        clock[0] = 110.0
        press()
        clock[0] = 119.0
        press()
    assert (len(heard), presses.suppressed) == (1, 2)


def test_nested_blocks_follow_the_outer_one(heard: list[int]) -> None:
    """A press above the limit of the outer block has no effect in the inner block either."""
    with InterruptLimit(1) as outer:
        with InterruptLimit(2) as inner:
            press()
            press()
        press()
    assert (len(heard), inner.suppressed, outer.suppressed) == (1, 0, 2)


def test_other_threads_and_ignored_interrupts_are_unchanged(heard: list[int]) -> None:
    """The block installs no handler in another thread, or if SIGINT is ignored."""
    handlers: list[Any] = []

    def inside() -> None:
        with InterruptLimit(0):
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inside()
    assert handlers == [before, signal.SIG_IGN]
    assert heard == []
