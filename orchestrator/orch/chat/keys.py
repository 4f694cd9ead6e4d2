"""What Ctrl-C means, by what goes on and what was pressed before."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

__all__ = ["AGAIN_SECONDS", "Interrupts", "Meaning"]

Meaning: TypeAlias = Literal["clear", "cancel", "kill", "warn", "leave"]
AGAIN_SECONDS: Final = 2.0


class Interrupts:
    """Ctrl-C clears what was typed; ends the turn, and at once when it comes again; leaves when it comes twice."""

    def __init__(self) -> None:
        self._last: tuple[Meaning, float] = "clear", float("-inf")

    def meaning(self, now: float, *, typed: bool, working: bool) -> Meaning:
        """Return what this one means. `now` is in seconds, on any clock."""
        before, at = self._last
        again = now - at <= AGAIN_SECONDS
        if working and again and before == "cancel":
            found: Meaning = "kill"
        elif typed:
            found = "clear"
        elif working:
            found = "cancel"
        else:
            found = "leave" if again and before == "warn" else "warn"
        self._last = found, now
        return found
