"""A turn as a terminal is told of it, where nothing that was shown can be replaced: a line after the other."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from orch_protocol.commands import TurnEvent
from orch_protocol.messages import Reply
from orch_protocol.services import AgentRow

from ..cli import render
from ..cli.watching import Transcript, output
from .view import used

__all__ = ["Told"]


class Told:
    """Prints a turn as it goes on, as `orch query --stream` does."""

    def __init__(self) -> None:
        self._output = output()
        self._turn = Transcript(self._output)

    def event(self, event: TurnEvent) -> None:
        """Print what happened."""
        self._turn.event(msgspec.to_builtins(event))

    def below(self, rows: Sequence[AgentRow]) -> None:
        """Print nothing: who else is at work changes all the time."""

    def reply(self, reply: Reply) -> None:
        """Print what is left of the turn, and what it took."""
        self._turn.reply(msgspec.to_builtins(reply))
        self._over(reply.warning, used(reply))

    def failed(self, why: str) -> None:
        """Print why there is no reply."""
        self._turn.end()
        self._over(why)

    def _over(self, *notes: str) -> None:
        self._output.over()
        for each in filter(None, notes):
            self._output.note(f"[{render.line(each, 200)}]")
