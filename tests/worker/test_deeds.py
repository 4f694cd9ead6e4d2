"""What the model is told of what a person ran."""

from __future__ import annotations

from orch_worker.deeds import MOST_HEARD, ran


def test_of_a_long_line_the_model_hears_a_part() -> None:
    """Its beginning and its end, and how much is between them; a short one is told as it was typed."""
    assert ran("!ls") == "[The user ran:]\n!ls\n"
    told = ran("/py x = '" + "a" * 1_000_000 + "z'")
    assert len(told) < MOST_HEARD + 100
    assert "/py x = 'aaa" in told
    assert "the user typed all of it" in told
    assert told.endswith("z'\n")
