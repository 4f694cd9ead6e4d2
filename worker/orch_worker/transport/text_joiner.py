"""Joins the pieces of a streamed text, because each event costs more than a few characters of text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["JOIN_SECONDS", "TextJoiner"]

JOIN_SECONDS: Final = 0.05


class TextJoiner:
    """Calls `send` with the first piece of a text at once, and then with all pieces of JOIN_SECONDS together.

    `call_later` is the method of the event loop.
    """

    def __init__(
        self, send: Callable[[str], object], call_later: Callable[[float, Callable[[], object]], asyncio.TimerHandle]
    ) -> None:
        self._send = send
        self._call_later = call_later
        self._pieces: list[str] = []
        self._due: asyncio.TimerHandle | None = None

    def add(self, piece: str) -> None:
        """Send `piece` now or with the pieces that follow."""
        if self._due is None:
            self._wait()
            self._send(piece)
        else:
            self._pieces.append(piece)

    def end(self) -> None:
        """Send the remaining pieces. The next piece begins another text."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._send_pieces()

    def _wait(self) -> None:
        self._due = self._call_later(JOIN_SECONDS, self._on_due)

    def _on_due(self) -> None:
        self._due = None
        if self._pieces:
            self._wait()
            self._send_pieces()

    def _send_pieces(self) -> None:
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._send("".join(pieces))
