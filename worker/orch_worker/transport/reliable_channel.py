"""A channel with timers: re-sends what was not acknowledged, acknowledges what no answer did. Both ends use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from orch_protocol.wire.frames import RESEND_SECONDS, Frame, FrameChannel
from orch_protocol.wire.worker_messages import EmptyBody

__all__ = ["ReliableChannel"]

# Long enough for most answers to carry the ack, short of the re-send by far: an idle process is not woken for it.
ACK_SECONDS = 0.25


class ReliableChannel:
    """Sends bodies through `transmit` and opens what arrives.

    Timers run only while something is owed: an idle courier never wakes its process.
    """

    def __init__(self, channel: FrameChannel, transmit: Callable[[bytes], None]) -> None:
        self.channel = channel
        self._transmit = transmit
        self._loop = asyncio.get_running_loop()
        self._resend: asyncio.TimerHandle | None = None
        self._ack: asyncio.TimerHandle | None = None
        self._closed = False

    def send(self, kind: str, body: Struct, id: str = "", *, reliable: bool = True) -> None:
        """Send `body`; a reliable one is kept and re-sent until the peer has it. A closed courier drops it.

        Raises MessageTooLargeError or ProtocolError for a body that cannot travel, StoreError when the file for a large
        one cannot be written.
        """
        if self._closed:
            return
        self._transmit(self.channel.encode(kind, body, id, now=self._loop.time() if reliable else None))
        if reliable and self._resend is None:
            self._resend = self._loop.call_later(RESEND_SECONDS, self._send_overdue)

    def receive(self, data: bytes) -> tuple[Frame, Struct] | None:
        """Return the frame in `data` with its body, or None if there is nothing to deliver; see `Channel.decode`.

        Raises ProtocolError.
        """
        try:
            return self.channel.decode(data)
        finally:
            if self._ack is None and self.channel.owes_ack and not self._closed:
                self._ack = self._loop.call_later(ACK_SECONDS, self._send_ack)

    def flush(self) -> None:
        """Acknowledge now what is owed, before leaving."""
        if self.channel.owes_ack:
            self._transmit(self.channel.encode("ack", EmptyBody()))

    def close(self) -> None:
        """The peer is gone: stop the timers, and send nothing more."""
        self._closed = True
        for timer in (self._resend, self._ack):
            if timer is not None:
                timer.cancel()
        self._resend = self._ack = None

    def _send_ack(self) -> None:
        self._ack = None
        self.flush()

    def _send_overdue(self) -> None:
        for data in self.channel.overdue(self._loop.time()):
            self._transmit(data)
        self._resend = self._loop.call_later(RESEND_SECONDS, self._send_overdue) if self.channel.unacked else None
