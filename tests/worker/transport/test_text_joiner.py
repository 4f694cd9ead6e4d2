"""Pieces of streamed text that are sent together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orch_worker.transport.text_joiner import JOIN_SECONDS, TextJoiner


class Timer:
    """Stands in for a loop's `call_later` and the handle that it returns. `run` lets the time pass."""

    def __init__(self) -> None:
        self.function: Callable[[], object] | None = None

    def __call__(self, seconds: float, function: Callable[[], object]) -> Any:
        assert seconds == JOIN_SECONDS
        assert self.function is None, "two timers run at once"
        self.function = function
        return self

    def cancel(self) -> None:
        self.function = None

    def run(self) -> None:
        function, self.function = self.function, None
        assert function is not None
        function()


@pytest.fixture
def timer() -> Timer:
    return Timer()


@pytest.fixture
def sent() -> list[str]:
    return []


@pytest.fixture
def joiner(sent: list[str], timer: Timer) -> TextJoiner:
    return TextJoiner(sent.append, timer)


def test_first_piece_is_sent_at_once_and_later_pieces_together(
    joiner: TextJoiner, sent: list[str], timer: Timer
) -> None:
    for piece in "abc":
        joiner.add(piece)
    assert sent == ["a"]
    timer.run()
    assert sent == ["a", "bc"]
    joiner.add("d")
    assert sent == ["a", "bc"]
    timer.run()
    assert sent == ["a", "bc", "d"]


def test_piece_after_a_pause_is_sent_at_once(joiner: TextJoiner, sent: list[str], timer: Timer) -> None:
    joiner.add("a")
    timer.run()
    joiner.add("b")
    assert sent == ["a", "b"]


def test_end_sends_the_rest_and_stops_the_timer(joiner: TextJoiner, sent: list[str], timer: Timer) -> None:
    joiner.add("a")
    joiner.add("b")
    joiner.end()
    joiner.end()
    assert (sent, timer.function) == (["a", "b"], None)
    joiner.add("c")
    assert sent == ["a", "b", "c"]
