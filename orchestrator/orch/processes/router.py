"""The root's socket: one ROUTER, a peer for each expected worker, everything else turned away.

Who may speak is decided by what cannot be forged: the routing identity is fresh for each incarnation, the kernel tells
the sender's uid and pid, and the first word shows a token that only the worker's birth pipe carried. A Hello may
overtake the launcher's news of the pid, so it is parked until that is known.
"""

from __future__ import annotations

import hmac
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

import zmq
from msgspec import Struct

from orch_protocol.core.errors import ErrorInfo, ProtocolError
from orch_protocol.wire.frames import VERSION, FrameChannel
from orch_protocol.wire.worker_messages import Hello
from orch_worker.transport.reliable_channel import ReliableChannel
from orch_worker.transport.zmq_asyncio import MAX_FRAME_BYTES, NOBLOCK, SocketReader

__all__ = ["ConnectionTable", "Deliver", "Router", "Transport", "WorkerConnection"]

Deliver = Callable[["WorkerConnection", str, str, Struct], None]
"""Called with the peer, the frame's kind and id, and its body."""


class WorkerConnection:
    """The root's end of the line to one incarnation of one agent; bodies too large for it pass through `spool`."""

    def __init__(
        self, agent_id: str, incarnation: int, ident: bytes, token: bytes, spool: Path, courier: ReliableChannel
    ) -> None:
        self.agent_id = agent_id
        self.incarnation = incarnation
        self.ident = ident
        self.token = token
        self.spool = spool
        self.courier = courier
        self.pid: int | None = None
        self.since = time.time()
        self.trusted = False
        self.parked: tuple[bytes, int] | None = None

    def send(self, kind: str, body: Struct, id: str = "", *, reliable: bool = True) -> None:
        """Send `body` to the worker."""
        self.courier.send(kind, body, id, reliable=reliable)


class ConnectionTable:
    """Expected workers by routing identity; decides which frames to believe. `counters` counts what was not.

    Bodies too large for the socket pass through a folder for each worker in `spool`.
    """

    def __init__(self, spool: Path, transmit: Callable[[bytes, bytes], None], deliver: Deliver) -> None:
        self.counters: Counter[str] = Counter()
        self.spool = spool
        self._transmit = transmit
        self._deliver = deliver
        self._peers: dict[bytes, WorkerConnection] = {}

    def expect(self, agent_id: str, incarnation: int, ident: bytes, token: bytes) -> WorkerConnection:
        """Return the peer for a worker about to start."""

        def transmit(data: bytes) -> None:
            self._transmit(ident, data)

        spool = self.spool / ident.decode()
        courier = ReliableChannel(FrameChannel(incarnation, spool), transmit)
        peer = self._peers[ident] = WorkerConnection(agent_id, incarnation, ident, token, spool, courier)
        return peer

    def confirm(self, peer: WorkerConnection, pid: int) -> None:
        """The launcher knows the worker's pid: believe it from now on, and hear what it said already."""
        peer.pid = pid
        if peer.parked is not None:
            (data, sender), peer.parked = peer.parked, None
            self.accept(peer.ident, data, sender)

    def forget(self, peer: WorkerConnection) -> None:
        """The worker is gone, and with it whatever it was sent, or sent, and nobody has fetched."""
        peer.courier.close()
        shutil.rmtree(peer.spool, ignore_errors=True)
        if self._peers.get(peer.ident) is peer:
            del self._peers[peer.ident]

    def tell_all(self, kind: str, body: Struct) -> None:
        """Send `body` to every worker that is up. One that does not get it is none the worse."""
        for peer in self._peers.values():
            if peer.trusted:
                peer.send(kind, body, reliable=False)

    def needs_sender(self, ident: bytes) -> bool:
        """Whether the sender's pid must be looked at before a frame from `ident` is believed."""
        peer = self._peers.get(ident)
        return peer is None or not peer.trusted

    def accept(self, ident: bytes, data: bytes, sender: int) -> None:
        """Take a frame that came from `ident`; `sender` is its process id by the kernel's word (0: not looked at)."""
        peer = self._peers.get(ident)
        if peer is None:
            self.counters["unknown_peer"] += 1
            return
        if not peer.trusted:
            if peer.pid is None:
                peer.parked = (data, sender)
                return
            if sender != peer.pid:
                # Not even looked at: it must not use up a number of the worker's own frames.
                self.counters["impostor"] += 1
                return
        try:
            received = peer.courier.receive(data)
        except ProtocolError:
            self.counters["bad_frame"] += 1
            return
        if received is None:
            return
        frame, body = received
        if not peer.trusted:
            if not isinstance(body, Hello) or not self._is_it(peer, body):
                self.counters["impostor"] += 1
                return
            peer.trusted = True
        if isinstance(body, ErrorInfo):
            self.counters["bad_frame"] += 1
        self._deliver(peer, frame.kind, frame.id, body)

    def _is_it(self, peer: WorkerConnection, hello: Hello) -> bool:
        return hmac.compare_digest(hello.token, peer.token) and hello.version == VERSION and hello.pid == peer.pid


class Transport(Protocol):
    """What a supervisor needs of a socket, and what a test's in-memory one provides."""

    address: str
    peers: ConnectionTable

    def close(self) -> None:
        """Stop listening."""


class Router:
    """A ROUTER bound to the ipc socket `path` in a private folder. The one module of the root that imports zmq."""

    def __init__(self, path: Path, spool: Path, deliver: Deliver) -> None:
        self.address = f"ipc://{path}"
        self._path = path
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        socket = self._socket = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.ROUTER_HANDOVER, 0),
            (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
            (zmq.HANDSHAKE_IVL, 1000),
            (zmq.LINGER, 1000),
        ):
            socket.setsockopt(option, value)
        path.unlink(missing_ok=True)
        socket.bind(self.address)
        self.peers = ConnectionTable(spool, self._send, deliver)
        self._uid = os.getuid()
        self._drain = SocketReader(socket, self._receive, keep=False)

    def close(self) -> None:
        """Let what was sent leave (at most 1 s), close the socket and remove its file."""
        self._drain.close(1000)
        self._context.term()
        self._path.unlink(missing_ok=True)

    def _send(self, ident: bytes, data: bytes) -> None:
        self._drain.send([ident, data])

    def _receive(self) -> None:
        socket = self._socket
        # A ROUTER's message is the sender's identity and at least one part.
        ident = socket.recv(NOBLOCK)
        # Whole frames: asking one whether more follow costs less than asking the socket.
        frame = socket.recv(NOBLOCK, copy=False)
        if not frame.more:
            sender = self._sender(frame) if self.peers.needs_sender(ident) else 0
            self.peers.accept(ident, frame.bytes, sender)
            return
        self.peers.counters["bad_frame"] += 1
        while frame.more:
            frame = socket.recv(NOBLOCK, copy=False)

    def _sender(self, frame: zmq.Frame) -> int:
        """Return the pid behind `frame`, or -1 when it is another user's."""
        try:
            _, uid, _, pid = cast("str", frame.get("Peer-Address")).rsplit(":", 3)
        except (zmq.ZMQError, ValueError):
            return -1
        return int(pid) if int(uid) == self._uid else -1
