"""Unknown clients that send arbitrary bytes to the root's socket: the root continues to serve its workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from orch.processes.router import Router
from orch_protocol.wire.frames import VERSION, FrameChannel
from orch_protocol.wire.worker_messages import Hello, Ping, Ready

TOKEN, IDENT = b"t" * 32, b"worker"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
LUCK = random.Random(8)
STREAMS = {
    "a page of the web": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "nothing": b"",
    "half a greeting": GREETING[:30],
    "noise": LUCK.randbytes(4096),
    "an old protocol": b"\x01\x00" + LUCK.randbytes(4000),
    "a command that is none": GREETING + b"\x04\x05\xc8BAD",
    "a frame of twenty gigabytes": GREETING + READY + b"\x02" + (20 << 30).to_bytes(8, "big") + b"x" * 100,
    "a frame without end": GREETING + READY + b"\x02" + b"\xff" * 8 + b"x" * 100,
    "a message of many parts": GREETING + READY + b"\x01\x01x" * 2000 + b"\x00\x01x",
}
EACH = 20
FLOOD = 5000
MAX_KIB = 50 << 10


class Scene:
    """A router on a socket, one worker that it accepts, and the kinds of the frames it received."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[str] = []
        self.router = Router(folder / "r.sock", folder, lambda _peer, kind, _id, _body: self.heard.append(kind))
        self.peer = self.router.peers.expect("a", 1, IDENT, TOKEN)
        self.router.peers.confirm(self.peer, os.getpid())
        self.lines: list[Any] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self.worker = FrameChannel(1, folder)
        self.line = self.dealer(IDENT)
        self.line.send(self.worker.encode("hello", Hello(TOKEN, VERSION, os.getpid())))

    def dealer(self, ident: bytes) -> Any:
        line = self.context.socket(zmq.DEALER)
        line.setsockopt(zmq.IDENTITY, ident)
        line.setsockopt(zmq.LINGER, 0)
        line.connect(self.router.address)
        self.lines.append(line)
        return line

    async def hears(self, count: int) -> None:
        """Send frames of the worker until the router has received `count` of them."""
        self.line.send(self.worker.encode("ready", Ready(), now=0.0))
        async with asyncio.timeout(10):
            while self.heard.count("ready") < count:  # noqa: ASYNC110  # yields; there is no event to wait for
                await asyncio.sleep(0)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    yield made
    for line in made.lines:
        line.close()
    made.context.term()
    made.router.peers.forget(made.peer)
    made.router.close()


def stranger(address: str, data: bytes) -> socket.socket:
    """Connect, send as much of `data` as possible, and stay connected."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(address.removeprefix("ipc://"))
    line.setblocking(False)
    try:
        line.send(data)
    except OSError:
        pass  # the router closed the connection, or the buffer is full
    return line


async def test_arbitrary_bytes_from_strangers_are_not_delivered(scene: Scene) -> None:
    """The root's memory stays bounded, and it receives every frame of the worker."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = []
    for round, data in enumerate(list(STREAMS.values()) * EACH):
        lines.append(stranger(scene.router.address, data))
        if round % 10 == 0:
            await scene.hears(round // 10 + 1)
    assert set(scene.heard) == {"hello", "ready"}
    assert scene.heard.count("hello") == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_KIB
    for line in lines:
        line.close()


async def test_replayed_worker_frames_are_not_accepted(scene: Scene) -> None:
    """The root drops copies under the worker's identity, under another identity, and after the worker was removed."""
    await scene.hears(1)
    copies = [
        FrameChannel(1, Path("/")).encode("hello", Hello(TOKEN, VERSION, os.getpid())),
        scene.worker.encode("ready", Ready(), now=0.0),
    ]
    thieves = [scene.dealer(IDENT), scene.dealer(b"other")]
    for thief in thieves:
        for copy in copies:
            thief.send(copy)
    async with asyncio.timeout(10):
        while scene.router.peers.counters["unknown_peer"] < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert scene.heard == ["hello", "ready"]
    scene.router.peers.forget(scene.peer)
    scene.line.send(copies[1])
    async with asyncio.timeout(10):
        while scene.router.peers.counters["unknown_peer"] < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert scene.heard == ["hello", "ready"]


async def test_flooding_worker_does_not_starve_others(scene: Scene) -> None:
    """While a worker floods the root, frames of another worker arrive, and memory stays bounded."""
    flooder = scene.router.peers.expect("b", 1, b"flood", b"f" * 32)
    scene.router.peers.confirm(flooder, os.getpid())
    channel, over = FrameChannel(1, Path("/")), threading.Event()
    first = channel.encode("hello", Hello(b"f" * 32, VERSION, os.getpid()))
    again = channel.encode("ping", Ping(b"x" * 900))

    def flood(line: Any) -> None:
        line.send(first)
        while not over.is_set():
            with contextlib.suppress(zmq.Again):
                line.send(again, zmq.NOBLOCK)

    thread = threading.Thread(target=flood, args=(scene.dealer(b"flood"),))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    thread.start()
    try:
        async with asyncio.timeout(20):
            while scene.heard.count("ping") < FLOOD:  # noqa: ASYNC110
                await asyncio.sleep(0)
        for round in range(EACH):
            await scene.hears(round + 1)
    finally:
        over.set()
        thread.join()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_KIB
    scene.router.peers.forget(flooder)
