"""What the conversation of one agent is marked with, and that whatever is new of it goes on record at once."""

from __future__ import annotations

from collections.abc import Iterable

from orch_protocol.taint import Mark, bare, joined

from .transcript import Transcript

__all__ = ["Marks"]


class Marks:
    """The marks of the agent whose `transcript` that is: they are what its entries amount to.

    What brought them is told to nobody when the conversation is not `kept`.
    """

    def __init__(self, transcript: Transcript, *, kept: bool = True) -> None:
        self._transcript = transcript
        self._kept = kept
        self._turn = ""

    @property
    def held(self) -> tuple[Mark, ...]:
        """What came into the conversation so far, on the path that it took."""
        return self._transcript.session.marks

    @property
    def content(self) -> tuple[Mark, ...]:
        """Those of them that are about what it holds, and not about what was done: whoever is told of it has them."""
        content = tuple(each for each in self.held if each.bit != "acts")
        return content if self._kept else bare(content)

    def turn_began(self, turn: str) -> None:
        """What comes from now on does so in the query `turn`."""
        self._turn = turn

    def note(self, marks: Iterable[Mark]) -> None:
        """Put what is new of `marks` on record. Raises StoreError."""
        held = self.held
        if new := joined(held, marks)[len(held) :]:
            self._transcript.marks(new, self._turn)
