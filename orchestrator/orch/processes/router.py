"""The root's ROUTER socket, which accepts frames only from expected workers.

Three properties authenticate a worker. The routing identity of the worker is new for each incarnation. The kernel
reports the user id and process id of the sender. The first frame contains a token that only the worker's birth pipe
contained. If a Hello arrives before the launcher has reported the process id, the root stores the Hello until then.
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
"""A function that is called with the connection, the kind and the id of the frame, and the body of the frame."""


class WorkerConnection:
    """The root's connection to one process of an agent. Large bodies are passed as files in the folder `spool`."""

    def __init__(
        self, agent_id: str, incarnation: int, ident: bytes, token: bytes, spool: Path, channel: ReliableChannel
    ) -> None:
        self.agent_id = agent_id
        self.incarnation = incarnation
        self.ident = ident
        self.token = token
        self.spool = spool
        self.channel = channel
        self.pid: int | None = None
        self.since = time.time()
        self.authenticated = False
        self.unverified_frame: tuple[bytes, int] | None = None
        self.asked = False
        """Whether a query was sent, or waits in `send_held`."""
        self.send_held: Callable[[], None] | None = None
        """Sends a query that waits for its admission."""

    def send(self, kind: str, body: Struct, id: str = "", *, reliable: bool = True) -> None:
        """Send `body` to the worker. A reliable frame is sent after the query that waits for its admission."""
        if self.send_held is not None and reliable:
            self.send_held()
        self.channel.send(kind, body, id, reliable=reliable)


class ConnectionTable:
    """Workers that may connect, by routing identity. This table decides which frames to accept.

    `counters` contains the number of rejected frames by reason. Large bodies are passed as files in `spool`, which has
    a folder for each worker.
    """

    def __init__(self, spool: Path, transmit: Callable[[bytes, bytes], None], deliver: Deliver) -> None:
        self.counters: Counter[str] = Counter()
        self.spool = spool
        self._transmit = transmit
        self._deliver = deliver
        self._peers: dict[bytes, WorkerConnection] = {}

    def expect(self, agent_id: str, incarnation: int, ident: bytes, token: bytes) -> WorkerConnection:
        """Return a connection for a worker that is about to start."""

        def transmit(data: bytes) -> None:
            self._transmit(ident, data)

        spool = self.spool / ident.decode()
        channel = ReliableChannel(FrameChannel(incarnation, spool), transmit)
        peer = self._peers[ident] = WorkerConnection(agent_id, incarnation, ident, token, spool, channel)
        return peer

    def confirm(self, peer: WorkerConnection, pid: int) -> None:
        """Set the process id of the worker, as reported by the launcher.

        Then process the frame that was stored until now.
        """
        peer.pid = pid
        if peer.unverified_frame is not None:
            (data, sender), peer.unverified_frame = peer.unverified_frame, None
            self.accept(peer.ident, data, sender)

    def forget(self, peer: WorkerConnection) -> None:
        """Remove the connection of a worker that has ended, and all files of the worker in `spool`."""
        peer.channel.close()
        shutil.rmtree(peer.spool, ignore_errors=True)
        if self._peers.get(peer.ident) is peer:
            del self._peers[peer.ident]

    def broadcast(self, kind: str, body: Struct) -> None:
        """Send `body` to every connected worker, without guaranteed delivery."""
        for peer in self._peers.values():
            if peer.authenticated:
                peer.send(kind, body, reliable=False)

    def needs_sender(self, ident: bytes) -> bool:
        """Return whether frames from `ident` are accepted only after a check of the sender's pid."""
        peer = self._peers.get(ident)
        return peer is None or not peer.authenticated

    def accept(self, ident: bytes, data: bytes, sender: int) -> None:
        """Process a frame from `ident`.

        `sender` is the process id of the sender as reported by the kernel, 0 if it was not determined.
        """
        peer = self._peers.get(ident)
        if peer is None:
            self.counters["unknown_peer"] += 1
            return
        if not peer.authenticated:
            if peer.pid is None:
                peer.unverified_frame = (data, sender)
                return
            if sender != peer.pid:
                # Do not decode the frame, because decoding would use up a sequence number of the worker.
                self.counters["impostor"] += 1
                return
        try:
            received = peer.channel.receive(data)
        except ProtocolError:
            self.counters["bad_frame"] += 1
            return
        if received is None:
            return
        frame, body = received
        if not peer.authenticated:
            if not isinstance(body, Hello) or not self._is_expected_worker(peer, body):
                self.counters["impostor"] += 1
                return
            peer.authenticated = True
        if isinstance(body, ErrorInfo):
            self.counters["bad_frame"] += 1
        self._deliver(peer, frame.kind, frame.id, body)

    def _is_expected_worker(self, peer: WorkerConnection, hello: Hello) -> bool:
        return hmac.compare_digest(hello.token, peer.token) and hello.version == VERSION and hello.pid == peer.pid


class Transport(Protocol):
    """The interface that a supervisor needs from a socket. Tests implement this interface in memory."""

    address: str
    peers: ConnectionTable

    def close(self) -> None:
        """Stop listening."""


class Router:
    """A ROUTER socket that is bound to the ipc address `path` in a private folder.

    No other module of the root imports zmq.
    """

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
        path.chmod(0o600)  # until here, the private folder keeps other users out
        self.peers = ConnectionTable(spool, self._send, deliver)
        self._uid = os.getuid()
        self._drain = SocketReader(socket, self._receive, keep=False)

    def close(self) -> None:
        """Wait at most 1 s until all messages are sent, then close the socket and remove the file of the socket."""
        self._drain.close(1000)
        self._context.term()
        self._path.unlink(missing_ok=True)

    def _send(self, ident: bytes, data: bytes) -> None:
        self._drain.send([ident, data])

    def _receive(self) -> None:
        socket = self._socket
        # A message of a ROUTER contains the identity of the sender and at least one more part.
        ident = socket.recv(NOBLOCK)
        # Receive frame objects, because reading `more` from a frame costs less than reading a socket option.
        frame = socket.recv(NOBLOCK, copy=False)
        if not frame.more:
            sender = self._sender(frame) if self.peers.needs_sender(ident) else 0
            self.peers.accept(ident, frame.bytes, sender)
            return
        self.peers.counters["bad_frame"] += 1
        while frame.more:
            frame = socket.recv(NOBLOCK, copy=False)

    def _sender(self, frame: zmq.Frame) -> int:
        """Return the process id of the sender of `frame`. Return -1 if the sender belongs to another user."""
        try:
            _, uid, _, pid = cast("str", frame.get("Peer-Address")).rsplit(":", 3)
        except (zmq.ZMQError, ValueError):
            return -1
        return int(pid) if int(uid) == self._uid else -1
