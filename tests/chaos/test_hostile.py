"""Some of the hostile input that `make chaos-long` tries by the million, and that a fault would be seen in it."""

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


def test_hostile_input_does_no_harm() -> None:
    """Frames, streams, transcripts and configurations: data or an error of ours, in bounded memory and time."""
    done = subprocess.run(
        [sys.executable, hostile.__file__, *SOME], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in hostile.COUNTS:
        assert f" {kind} in " in done.stdout
    assert "without a word" not in done.stdout
    assert "something else" not in done.stdout


def test_what_is_raised_names_the_input() -> None:
    """An error that is none of ours ends the run, with the number that brings it back."""

    def attempt(luck: random.Random) -> str:
        return ["fine"][luck.random() < 0.01]

    with pytest.raises(IndexError) as raised:
        again_and_again(attempt, 2000, 3)
    assert "of seed 3" in raised.value.__notes__[0]


def test_memory_that_is_kept_is_noticed() -> None:
    """What grows past the bound ends the run, too."""
    kept: list[bytes] = []

    def attempt(_: random.Random) -> str:
        kept.append(bytes(1 << 20) + b"x")
        return "fine"

    with pytest.raises(AssertionError, match="memory grew by"):
        again_and_again(attempt, 400, 3)


def test_both_outcomes_are_reached(tmp_path: Path) -> None:
    """Input that is refused each time would say nothing of what comes behind."""
    with configs(tmp_path) as attempt:
        outcomes, _ = again_and_again(attempt, 200, 5)
    assert min(outcomes["refused"], outcomes["loaded"]) > 5
