"""A sample of the hostile input of `make chaos-long`, and checks that the program detects a failure."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import hostile
from chaos.hostile import again_and_again, configs

SECONDS = 50.0
SOME = ("--frames=4000", "--streams=200", "--transcripts=80", "--configs=200", "--seed=7")


def test_hostile_input_is_handled_in_bounded_memory_and_time() -> None:
    """Hostile frames, streams, transcripts and configurations result in data or in an OrchError."""
    done = subprocess.run(
        [sys.executable, hostile.__file__, *SOME], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in hostile.COUNTS:
        assert f" {kind} in " in done.stdout
    assert "without a word" not in done.stdout
    assert "something else" not in done.stdout


def test_unexpected_exception_names_the_input() -> None:
    """The exception has a note with the seed that reproduces the input."""

    def attempt(luck: random.Random) -> str:
        return ["fine"][luck.random() < 0.01]

    with pytest.raises(IndexError) as raised:
        again_and_again(attempt, 2000, 3)
    assert "of seed 3" in raised.value.__notes__[0]


def test_retained_memory_is_detected() -> None:
    """A run whose memory grows beyond the bound ends with an AssertionError."""
    kept: list[bytes] = []

    def attempt(_: random.Random) -> str:
        kept.append(bytes(1 << 20) + b"x")
        return "fine"

    with pytest.raises(AssertionError, match="memory grew by"):
        again_and_again(attempt, 400, 3)


def test_inputs_are_both_accepted_and_refused(tmp_path: Path) -> None:
    """The random configurations include valid ones, so that the code after validation is tested, too."""
    with configs(tmp_path) as attempt:
        outcomes, _ = again_and_again(attempt, 200, 5)
    assert min(outcomes["refused"], outcomes["loaded"]) > 5
