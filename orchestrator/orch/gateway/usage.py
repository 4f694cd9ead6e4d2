"""Reads the token counts that servers report in their responses.

Bodies and events pass unchanged. Only the events that may contain counts are decoded, because a stream has thousands of
events.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_worker.backends.formats.reported_usage import checked

from .api import Api

__all__ = ["UsageReader", "Used", "used"]

FIELD: Final = b'"usage"'
PREFIX: Final = b"data:"
MAX_EVENT_BYTES: Final = 32 << 20
"""Maximum size of an event that is searched for counts."""
MAX_TOKENS: Final = 100_000_000
"""Larger counts are errors of the server."""


class Used(Struct, frozen=True, array_like=True):
    """The tokens of one response: uncached input, cache reads, cache writes, and output.

    `written` includes `written_1h`, the tokens that are written to the cache for one hour.
    """

    fresh: int = 0
    read: int = 0
    written: int = 0
    output: int = 0
    written_1h: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(
            self.fresh + other.fresh,
            self.read + other.read,
            self.written + other.written,
            self.output + other.output,
            self.written_1h + other.written_1h,
        )

    @property
    def input(self) -> int:
        """All tokens of the request."""
        return self.fresh + self.read + self.written


class _Holder(Struct):
    usage: dict[str, Any] | None = None


class _Event(Struct):
    """The places of the counts: in the Messages API, `message` or the event itself; in the Responses API, `response`.

    Chat Completions and bodies without streaming have them at the top.
    """

    usage: dict[str, Any] | None = None
    message: _Holder | None = None
    response: _Holder | None = None


_event: Final = msgspec.json.Decoder(_Event)


class UsageReader:
    """Reads the counts of the responses to one request of a client, from their streams or bodies."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._usage: dict[str, Any] = {}
        self._line: list[bytes] = []
        """The pieces of a line that is not complete yet."""
        self._size = 0

    def feed(self, piece: bytes) -> None:
        """Read the next bytes of a stream of server-sent events."""
        if b"\n" not in piece and b"\r" not in piece:
            self._keep(piece)
            return
        cut = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        self._keep(piece[:cut])
        complete = b"".join(self._line)
        self._line.clear()
        self._size = 0
        self._keep(piece[cut:])
        if FIELD in complete:
            for line in complete.splitlines():
                if FIELD in line and line.startswith(PREFIX):
                    self.read(line[len(PREFIX) :])

    def read(self, body: bytes) -> None:
        """Read a response without streaming, or the data of an event. Data of an unknown form has no counts."""
        try:
            event = _event.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        for usage in (event.usage, event.message and event.message.usage, event.response and event.response.usage):
            # Later counts replace earlier ones, and may leave some of them out.
            self._usage |= {name: value for name, value in (usage or {}).items() if value is not None}

    def take(self) -> Used | None:
        """Return the counts of a response. None if the server has reported none. Then read the next response."""
        if self._line:
            self.feed(b"\n")  # Some servers leave out the end of the last line.
        usage, self._usage = self._usage, {}
        self._line.clear()
        self._size = 0
        return used(self._api, usage) if usage else None

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_EVENT_BYTES:
            self._line.clear()
        elif piece:
            self._line.append(piece)


def used(api: Api, usage: dict[str, Any]) -> Used:
    """Return the checked counts of a response. Unusable counts are 0."""
    counts = checked(api.reported(usage), MAX_TOKENS).usage
    created = usage.get("cache_creation")
    hour = created.get("ephemeral_1h_input_tokens") if isinstance(created, dict) else None
    return Used(
        counts.input_tokens,
        counts.cache_read_tokens,
        counts.cache_write_tokens,
        counts.output_tokens,
        min(hour, counts.cache_write_tokens) if isinstance(hour, int) and hour > 0 else 0,
    )
