"""The minimum time of a round trip. A plain pyzmq DEALER answers each message, with msgspec on both ends.

As a program, this module is the end of the worker. `Hub` is the end of the root. As in orch, a ping contains 1 KB and
its answer is empty.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import msgspec
import zmq

WAIT_MS = 60_000


class Message(msgspec.Struct, array_like=True, gc=False):
    """A message with a minimal header: kind, id, sequence number and body."""

    kind: str
    id: str = ""
    seq: int = 0
    ack: int = 0
    body: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def serve(address: str) -> None:
    """Answer messages at `address` until a message of kind "stop" arrives.

    For "gc", run a garbage collection before the answer.
    """
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        socket.send(_encoder.encode(Message("hello")))
        while True:
            message = _decoder.decode(socket.recv())
            if message.kind == "stop":
                return
            if message.kind == "gc":
                gc.collect()
            socket.send(_encoder.encode(Message("pong", message.id, message.seq, message.seq)))


class Hub:
    """A synchronous ROUTER whose socket file is in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.address = f"ipc://{folder}/hub"
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 4096)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 1000
        self._socket.rcvtimeo = WAIT_MS
        self._socket.bind(self.address)
        self._seq = 0

    def send(self, identity: bytes, kind: str, body: bytes = b"") -> None:
        """Send one message to the worker `identity`."""
        self._seq += 1
        self._socket.send_multipart((identity, _encoder.encode(Message(kind, "q", self._seq, self._seq - 1, body))))

    def receive(self) -> tuple[bytes, Message]:
        """Return the next message and the identity of its sender. Raises zmq.Again after a minute without a message."""
        identity, data = self._socket.recv_multipart()
        return identity, _decoder.decode(data)

    def round_trip(self, identity: bytes, body: bytes, times: int) -> float:
        """Return the median seconds of `times` pings of `identity`."""
        taken = []
        for _ in range(times):
            begin = perf_counter()
            self.send(identity, "ping", body)
            self.receive()
            taken.append(perf_counter() - begin)
        return median(taken)

    def close(self) -> None:
        """Close the socket. Messages that were already sent are still delivered."""
        self._socket.close()
        self._context.term()


class Worker:
    """A new process that runs the program `script` of this folder and connects to `hub`.

    The constructor returns when the process has answered.
    """

    def __init__(self, hub: Hub, script: str) -> None:
        self._hub = hub
        command = [sys.executable, str(Path(__file__).with_name(script)), hub.address]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.pid = self._process.pid
        self.identity, _ = hub.receive()
        self.ask("ping")

    def ask(self, kind: str) -> None:
        """Send a message to the worker and wait for the answer."""
        self._hub.send(self.identity, kind)
        self._hub.receive()

    def stop(self) -> None:
        """Ask the worker to exit, and wait until it has ended."""
        self._hub.send(self.identity, "stop")
        self._process.wait(WAIT_MS / 1000)


if __name__ == "__main__":
    serve(sys.argv[1])
