"""A channel with timers for re-sending and acknowledging frames. The worker and the root use this channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from orch_protocol.wire.frames import RESEND_SECONDS, Frame, FrameChannel
from orch_protocol.wire.worker_messages import EmptyBody

__all__ = ["ReliableChannel"]

# This time is long enough for most answers to carry the acknowledgment, and much shorter than the re-send interval.
ACK_SECONDS = 0.25


class ReliableChannel:
    """Sends bodies through `transmit`, and decodes received frames.

    Timers run only while an acknowledgment or a re-send is pending, so an idle process is never woken.
    """

    def __init__(self, channel: FrameChannel, transmit: Callable[[bytes], None]) -> None:
        self.channel = channel
        self._transmit = transmit
        self._loop = asyncio.get_running_loop()
        self._resend: asyncio.TimerHandle | None = None
        self._ack: asyncio.TimerHandle | None = None
        self._closed = False

    def send(self, kind: str, body: Struct, id: str = "", *, reliable: bool = True) -> None:
        """Send `body`. A reliable body is sent again until the peer acknowledges it.

        After `close`, the body is dropped.

        Raise MessageTooLargeError or ProtocolError for a body that cannot be sent. Raise StoreError if the file for a
        large body cannot be written.
        """
        if self._closed:
            return
        self._transmit(self.channel.encode(kind, body, id, now=self._loop.time() if reliable else None))
        if reliable and self._resend is None:
            self._resend = self._loop.call_later(RESEND_SECONDS, self._send_overdue)

    def receive(self, data: bytes) -> tuple[Frame, Struct] | None:
        """Return the frame in `data` with its body. Return None if there is nothing to deliver.

        See `FrameChannel.decode`.

        Raise ProtocolError for an invalid frame.
        """
        try:
            return self.channel.decode(data)
        finally:
            if self._ack is None and self.channel.owes_ack and not self._closed:
                self._ack = self._loop.call_later(ACK_SECONDS, self._send_ack)

    def flush(self) -> None:
        """Send a pending acknowledgment now."""
        if self.channel.owes_ack:
            self._transmit(self.channel.encode("ack", EmptyBody()))

    def close(self) -> None:
        """Stop the timers. Nothing more is sent, because the peer is gone."""
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
