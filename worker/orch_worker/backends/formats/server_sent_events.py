"""Splits the bytes of an event stream into server-sent events. See the HTML standard, "Server-sent events"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["EventDecoder", "ServerSentEvent"]


class ServerSentEvent(NamedTuple):
    """One event: its name, which is "" if the event has none, and its data."""

    name: str
    data: str


class EventDecoder:
    """Decodes one event stream, whose bytes arrive in pieces of any size.

    Lines end with LF, CRLF or CR. Events without data, comments, ids and retry times are ignored. An event is complete
    when an empty line follows.
    """

    def __init__(self) -> None:
        self._incomplete: list[bytes] = []
        """The pieces of the event that is not complete yet."""
        self._after_cr = False
        """Whether the last piece ended with CR, so that an LF at the start of the next piece ends no line."""

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """Return the events that `piece` completes.

        The iterator raises UnicodeDecodeError for a line that is not valid UTF-8. The events before it can be used.
        """
        if self._after_cr or b"\r" in piece:
            piece = self._with_line_feeds(piece)
        last = self._incomplete[-1][-1:] if self._incomplete else b""
        if b"\n\n" not in last + piece:
            if piece:
                self._incomplete.append(piece)
            return iter(())
        *complete, rest = b"".join((*self._incomplete, piece)).split(b"\n\n")
        self._incomplete = [rest] if rest else []
        return _decoded(complete)

    def _with_line_feeds(self, piece: bytes) -> bytes:
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_cr = False
        if piece:
            self._after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _decoded(events: list[bytes]) -> Iterator[ServerSentEvent]:
    for event in events:
        name, data = "", []
        for line in event.split(b"\n"):
            field, _, value = line.decode().partition(":")
            if field == "data":
                data.append(value.removeprefix(" "))
            elif field == "event":
                name = value.removeprefix(" ")
        if data:
            yield ServerSentEvent(name, "\n".join(data))
