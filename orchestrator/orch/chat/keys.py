"""The meaning of Ctrl-C. The meaning depends on the state of the chat and on earlier key presses."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

__all__ = ["AGAIN_SECONDS", "Interrupts", "Meaning"]

Meaning: TypeAlias = Literal["clear", "cancel", "kill", "warn", "leave"]
AGAIN_SECONDS: Final = 2.0


class Interrupts:
    """Ctrl-C clears the input or cancels the turn. Pressed again, Ctrl-C kills the turn or leaves the chat."""

    def __init__(self) -> None:
        self._last: tuple[Meaning, float] = "clear", float("-inf")

    def meaning(self, now: float, *, typed: bool, working: bool) -> Meaning:
        """Return the meaning of Ctrl-C when it is pressed at the time `now` (seconds of any clock)."""
        previous, pressed_at = self._last
        is_repeated = now - pressed_at <= AGAIN_SECONDS
        if working and is_repeated and previous == "cancel":
            meaning: Meaning = "kill"
        elif typed:
            meaning = "clear"
        elif working:
            meaning = "cancel"
        else:
            meaning = "leave" if is_repeated and previous == "warn" else "warn"
        self._last = meaning, now
        return meaning
