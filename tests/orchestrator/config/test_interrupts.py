"""Ctrl-C that comes more often than it may have its effect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from orch.config import interrupts
from orch.config.interrupts import Presses


def press() -> None:
    """Press Ctrl-C here."""
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """What the program itself hears of Ctrl-C."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as the one item of a list."""
    now = [100.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("most", [0, 1, 2])
def test_so_many_have_their_effect(heard: list[int], most: int) -> None:
    """The others are counted; after the block it is as it was before."""
    with Presses(most) as presses:
        for _ in range(4):
            press()
    assert (len(heard), presses.held) == (most, 4 - most)
    press()
    assert len(heard) == most + 1


def test_an_end_that_does_not_come_can_be_left(heard: list[int], clock: list[float]) -> None:
    """Long after the beginning, or after the last one that was heard, Ctrl-C is heard again."""
    with Presses(0, 10.0) as presses:
        clock[0] = 109.0
        press()
        clock[0] = 110.0
        press()
        clock[0] = 119.0
        press()
    assert (len(heard), presses.held) == (1, 2)


def test_one_within_another(heard: list[int]) -> None:
    """The inner one lets through what the outer one does."""
    with Presses(1) as outer:
        with Presses(2) as inner:
            press()
            press()
        press()
    assert (len(heard), inner.held, outer.held) == (1, 0, 2)


def test_outside_the_main_thread_nothing_changes(heard: list[int]) -> None:
    """Nor where Ctrl-C is ignored."""
    handlers: list[Any] = []

    def inside() -> None:
        with Presses(0):
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inside()
    assert handlers == [before, signal.SIG_IGN]
    assert heard == []
