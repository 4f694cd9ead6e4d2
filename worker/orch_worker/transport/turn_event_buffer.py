"""A bounded buffer of a turn's events, for clients that start to watch in the middle of the turn."""

from __future__ import annotations

from collections import deque
from typing import Final

from orch_protocol.wire.worker_messages import TurnEvent, TurnSoFar

__all__ = ["MAX_CHARACTERS", "MAX_EVENTS", "TurnEventBuffer"]

MAX_EVENTS: Final = 1000
MAX_CHARACTERS: Final = 400_000
"""Maximum number of characters of all events together. The same limit applies to the text of the current response."""
MAX_PIECES: Final = 512


class TurnEventBuffer:
    """Stores the latest events of a turn.

    Text pieces of the current response are merged into one event. The final message of the response replaces this
    event.
    """

    def __init__(self) -> None:
        self._events: deque[TurnEvent] = deque()
        self._pieces: list[str] = []
        self._size = 0
        self._n = 0
        self._lost = 0

    def add(self, event: TurnEvent) -> None:
        """Add the next event."""
        self._n = event.n
        if event.kind == "text":
            self._pieces.append(event.text)
            if len(self._pieces) > MAX_PIECES:
                self._pieces = [self._text()]
            return
        if event.kind in ("message", "retry"):
            self._pieces.clear()
        self._events.append(event)
        self._size += len(event.text)
        while len(self._events) > 1 and (len(self._events) > MAX_EVENTS or self._size > MAX_CHARACTERS):
            self._size -= len(self._events.popleft().text)
            self._lost += 1

    def merge(self, position: TurnSoFar) -> None:
        """Add the events of another buffer."""
        for event in position.events:
            self.add(event)
        self._n, self._lost = position.n, self._lost + position.lost

    def so_far(self, query_id: str) -> TurnSoFar:
        """Return the buffered events of the query."""
        events = tuple(self._events)
        if text := self._text():
            events += (TurnEvent(self._n, "text", text),)
        return TurnSoFar(query_id, events, self._n, self._lost)

    def _text(self) -> str:
        return "".join(self._pieces)[-MAX_CHARACTERS:]
