"""What was told of a turn so far, for whoever comes in the middle of it. Bounded: what is oldest goes first."""

from __future__ import annotations

from collections import deque
from typing import Final

from orch_protocol.wire.worker_messages import TurnEvent, TurnSoFar

__all__ = ["MOST_CHARACTERS", "MOST_EVENTS", "TurnEventBuffer"]

MOST_EVENTS: Final = 1000
MOST_CHARACTERS: Final = 400_000
"""Of all events together, and of the response under way as much again: more than most models say at once."""
MOST_PIECES: Final = 512


class TurnEventBuffer:
    """Keeps the events of a turn. Of a response under way the pieces are one event, of one that is complete the whole
    is."""

    def __init__(self) -> None:
        self._events: deque[TurnEvent] = deque()
        self._pieces: list[str] = []
        self._size = 0
        self._n = 0
        self._lost = 0

    def add(self, event: TurnEvent) -> None:
        """Keep the next event."""
        self._n = event.n
        if event.kind == "text":
            self._pieces.append(event.text)
            if len(self._pieces) > MOST_PIECES:
                self._pieces = [self._text()]
            return
        if event.kind in ("message", "retry"):
            self._pieces.clear()
        self._events.append(event)
        self._size += len(event.text)
        while len(self._events) > 1 and (len(self._events) > MOST_EVENTS or self._size > MOST_CHARACTERS):
            self._size -= len(self._events.popleft().text)
            self._lost += 1

    def follow(self, told: TurnSoFar) -> None:
        """Keep what another one has kept."""
        for event in told.events:
            self.add(event)
        self._n, self._lost = told.n, self._lost + told.lost

    def so_far(self, query_id: str) -> TurnSoFar:
        """Return what is kept of the turn of that query."""
        events = tuple(self._events)
        if text := self._text():
            events += (TurnEvent(self._n, "text", text),)
        return TurnSoFar(query_id, events, self._n, self._lost)

    def _text(self) -> str:
        return "".join(self._pieces)[-MOST_CHARACTERS:]
