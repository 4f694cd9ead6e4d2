"""A zmq socket driven by an event loop, without losing a wake-up. The one module of the worker that imports zmq.

libzmq's descriptor is edge-triggered, and *any* call into the socket may consume the edge. Hence the rule: one reading
of EVENTS decides both directions, and after every attempt to send, a failed one too, EVENTS is read again. A simpler
rule stalls once in ten thousand connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import cast

import zmq

__all__ = ["DealerSocket", "SocketReader"]


MAX_BATCH = 64
# Plain integers: arithmetic on the enum's members costs more than the calls it guards.
SEND_MORE_FLAGS = int(zmq.NOBLOCK | zmq.SNDMORE)
IN, OUT, EVENTS, NOBLOCK = int(zmq.POLLIN), int(zmq.POLLOUT), int(zmq.EVENTS), int(zmq.NOBLOCK)
MAX_FRAME_BYTES = 2 << 20


class SocketReader:
    """Calls `receive` whenever a message waits in `socket`; with `keep`, holds what could not be sent at once.

    `receive` takes exactly one message from the socket, or raises zmq.Again. Without `keep` a message that cannot be
    sent now is dropped (a ROUTER's peer that is gone or full): the sender's re-send brings it again.
    """

    def __init__(self, socket: zmq.Socket[bytes], receive: Callable[[], None], *, keep: bool) -> None:
        self._socket = socket
        # What pyzmq's `send` does around this one, for options that nobody uses here, costs more than it.
        self._put: Callable[[bytes, int], object] = super(zmq.Socket, socket).send
        self._receive = receive
        self._keep = keep
        self._queue: deque[list[bytes]] = deque()
        self._scheduled = False
        self._draining = False
        self._closed = False
        self._seen = -1
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        """What comes in is not the doing of whoever sent something just before."""
        self._descriptor = cast("int", socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._drain)
        self._schedule()

    def send(self, parts: list[bytes]) -> None:
        """Send `parts` as one message, now or as soon as the socket takes it. Must not raise for a peer's sake."""
        if self._closed:
            return
        if self._queue:
            self._queue.append(parts)
        else:
            self._attempt(parts)
        if not self._draining and self._wants(self._look()):
            self._schedule()

    def close(self, linger: int = 1000) -> None:
        """Stop driving and close the socket; what libzmq already holds gets `linger` milliseconds to leave."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._descriptor)
        while self._queue and self._attempt(self._queue.popleft()):
            pass
        self._socket.close(linger)

    def _attempt(self, parts: list[bytes]) -> bool:
        self._seen = -1
        try:
            for part in parts[:-1]:
                self._put(part, SEND_MORE_FLAGS)
            self._put(parts[-1], NOBLOCK)
        except zmq.Again:
            if self._keep and not self._closed:
                self._queue.appendleft(parts)
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
        return True

    def _look(self) -> int:
        """Return EVENTS, read after the last call into the socket: what comes later is an edge of its own."""
        if self._seen < 0:
            self._seen = cast("int", self._socket.getsockopt(EVENTS))
        return self._seen

    def _wants(self, events: int) -> bool:
        return bool(events & IN or (self._queue and events & OUT))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain, context=self._context)

    def _try_to_receive(self) -> None:
        if not self._closed:
            try:
                self._receive()
            except zmq.Again:
                pass

    def _drain(self) -> None:
        self._scheduled = False
        self._seen = -1
        self._draining = True
        try:
            # Most often a message is why we are here: taking it costs a third of asking whether there is one.
            self._try_to_receive()
            for _ in range(MAX_BATCH):
                if self._closed:
                    return
                events = self._look()
                if events & IN:
                    self._seen = -1
                    self._receive()
                elif self._queue and events & OUT:
                    self._attempt(self._queue.popleft())
                else:
                    return
        finally:
            self._draining = False
            # After a full batch, and after an error in a receiver, there may be more.
            if not self._closed and (self._seen < 0 or self._wants(self._seen)):
                self._schedule()


class DealerSocket:
    """A worker's line to its root at `address`, known there as `ident`. `on_data` gets each frame's bytes."""

    def __init__(self, address: str, ident: bytes, on_data: Callable[[bytes], None]) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self._on_data = on_data
        socket = self._socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, ident)
        socket.setsockopt(zmq.LINGER, 2000)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.connect(address)
        self._drain = SocketReader(socket, self._receive, keep=True)

    def send(self, data: bytes) -> None:
        """Send one frame."""
        self._drain.send([data])

    def close(self) -> None:
        """Let what was sent leave, then end the socket's thread (at most 2 s)."""
        self._drain.close(2000)
        self._context.term()

    def _receive(self) -> None:
        self._on_data(self._socket.recv(NOBLOCK))
