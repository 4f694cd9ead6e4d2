"""What stands before the words of a person when a model is told them, and those words without it."""

from __future__ import annotations

from typing import Final

__all__ = ["CUT_SHORT", "INTERRUPTED", "STEERING", "as_said"]

STEERING: Final = "[Steering]"
INTERRUPTED: Final = "[The user interrupted the turn before this one"
CUT_SHORT: Final = "[The turn before this one was cut short"


def as_said(text: str) -> str:
    """Return what a person said of a prompt that also tells how the turn before it ended, or was said in a turn."""
    if text.startswith((INTERRUPTED, CUT_SHORT)):
        text = text.partition("]\n\n")[2] or text
    return text.removeprefix(f"{STEERING}\n")
