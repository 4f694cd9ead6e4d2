"""Connects a zmq socket to an event loop without losing wake-ups. No other module of the worker imports zmq.

libzmq's descriptor is edge-triggered, and *any* call on the socket may consume the edge. Therefore, one read of EVENTS
decides both directions, and EVENTS is read again after each attempt to send, even after a failed attempt. With a
simpler rule, 0.01 % of the connections stalled.
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
# These are plain integers, because operations on enum members take longer than the socket calls.
SEND_MORE_FLAGS = int(zmq.NOBLOCK | zmq.SNDMORE)
IN, OUT, EVENTS, NOBLOCK = int(zmq.POLLIN), int(zmq.POLLOUT), int(zmq.EVENTS), int(zmq.NOBLOCK)
MAX_FRAME_BYTES = 2 << 20


class SocketReader:
    """Calls `receive` whenever a message waits in `socket`. If `keep` is True, messages that cannot be sent are queued.

    `receive` takes exactly one message from the socket, or raises zmq.Again. If `keep` is False, a message that cannot
    be sent now is dropped, for example because the peer of a ROUTER is gone or its queue is full. The sender sends such
    a message again later.
    """

    def __init__(self, socket: zmq.Socket[bytes], receive: Callable[[], None], *, keep: bool) -> None:
        self._socket = socket
        # The wrapper in pyzmq's `send` takes longer than the call itself, and its options are not used here.
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
        """The context in which received messages are processed, which must differ from the context of the last
        sender.
        """
        self._descriptor = cast("int", socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._drain)
        self._schedule()

    def send(self, parts: list[bytes]) -> None:
        """Send `parts` as one message, now or when the socket is ready.

        This method must not raise if the peer fails.
        """
        if self._closed:
            return
        if self._queue:
            self._queue.append(parts)
        else:
            self._attempt(parts)
        if not self._draining and self._has_work(self._current_events()):
            self._schedule()

    def close(self, linger: int = 1000) -> None:
        """Stop, and close the socket. libzmq gets `linger` milliseconds to send queued messages."""
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

    def _current_events(self) -> int:
        """Return the value of EVENTS after the last call on the socket. Later changes cause a new edge."""
        if self._seen < 0:
            self._seen = cast("int", self._socket.getsockopt(EVENTS))
        return self._seen

    def _has_work(self, events: int) -> bool:
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
            # Usually a message has arrived. Receiving it takes a third of the time of checking EVENTS.
            self._try_to_receive()
            for _ in range(MAX_BATCH):
                if self._closed:
                    return
                events = self._current_events()
                if events & IN:
                    self._seen = -1
                    self._receive()
                elif self._queue and events & OUT:
                    self._attempt(self._queue.popleft())
                else:
                    return
        finally:
            self._draining = False
            # After a full batch or an error in `receive`, more messages may wait.
            if not self._closed and (self._seen < 0 or self._has_work(self._seen)):
                self._schedule()


class DealerSocket:
    """A worker's connection to its root at `address`, with the identity `ident`.

    `on_data` receives the bytes of each frame.
    """

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
        """Send all pending frames, then end the socket's thread, within 2 s."""
        self._drain.close(2000)
        self._context.term()

    def _receive(self) -> None:
        self._on_data(self._socket.recv(NOBLOCK))
