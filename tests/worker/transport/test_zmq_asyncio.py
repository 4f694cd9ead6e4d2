"""Sockets on an event loop: no message and no wake-up is lost."""

from __future__ import annotations

import asyncio
import select
from contextvars import ContextVar
from pathlib import Path

import zmq

from orch_protocol.wire.frames import RESEND_SECONDS, FrameChannel
from orch_protocol.wire.worker_messages import EmptyBody, Query
from orch_worker.transport.reliable_channel import ACK_SECONDS, ReliableChannel
from orch_worker.transport.zmq_asyncio import MAX_BATCH, DealerSocket, SocketReader


class Echo:
    """A ROUTER socket that sends each message back, driven by a SocketReader."""

    def __init__(self, address: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.bind(address)
        self.drain = SocketReader(self.socket, self._receive, keep=False)

    def _receive(self) -> None:
        self.drain.send(self.socket.recv_multipart(zmq.NOBLOCK))

    def close(self) -> None:
        self.drain.close(0)
        self.context.term()


async def test_thousands_of_messages_come_back_in_order(tmp_path: Path) -> None:
    """Bursts larger than a batch arrive completely, also if they are sent before the connection exists."""
    address = f"ipc://{tmp_path}/echo"
    heard: list[int] = []
    done = asyncio.Event()
    total = 3000

    def on_data(data: bytes) -> None:
        heard.append(int(data))
        if len(heard) == total:
            done.set()

    dealer = DealerSocket(address, b"me", on_data)
    for number in range(1000):
        dealer.send(b"%d" % number)
    echo = Echo(address)
    try:
        for start in range(1000, total, 100):
            await asyncio.sleep(0)
            for number in range(start, start + 100):
                dealer.send(b"%d" % number)
        async with asyncio.timeout(20):
            await done.wait()
    finally:
        dealer.close()
        echo.close()
    assert heard == list(range(total))


async def test_receiver_runs_outside_the_senders_context(tmp_path: Path) -> None:
    """A receiver does not see the context variables that the sender set."""
    address, whose, heard = f"ipc://{tmp_path}/echo", ContextVar("whose", default=""), asyncio.Queue[str]()
    echo = Echo(address)
    dealer = DealerSocket(address, b"me", lambda _: heard.put_nowait(whose.get()))
    try:
        for number in range(100):
            token = whose.set("mine")
            dealer.send(b"%d" % number)
            whose.reset(token)
            async with asyncio.timeout(20):
                assert await heard.get() == ""
    finally:
        dealer.close()
        echo.close()


async def test_ping_pong_never_stalls(tmp_path: Path) -> None:
    """Three thousand messages arrive, each sent after the previous one came back."""
    address = f"ipc://{tmp_path}/echo"
    echo = Echo(address)
    left = 3000
    done = asyncio.Event()

    def on_data(_: bytes) -> None:
        nonlocal left
        left -= 1
        if left:
            dealer.send(b"again")
        else:
            done.set()

    dealer = DealerSocket(address, b"me", on_data)
    try:
        dealer.send(b"first")
        async with asyncio.timeout(20):
            await done.wait()
    finally:
        dealer.close()
        echo.close()
    assert left == 0


async def test_message_arriving_during_a_send_is_received(tmp_path: Path) -> None:
    """A send consumes the edge of the socket, so the reader must be scheduled after it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    here, there = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    heard = asyncio.Queue[bytes]()
    here.bind(f"ipc://{tmp_path}/line")
    there.connect(f"ipc://{tmp_path}/line")
    drain = SocketReader(here, lambda: heard.put_nowait(here.recv(zmq.NOBLOCK)), keep=False)
    try:
        async with asyncio.timeout(20):
            there.send(b"first")
            assert await heard.get() == b"first"
            there.send(b"second")
            select.select([here.getsockopt(zmq.FD)], [], [], 20.0)
            drain.send([b"x"])
            assert await heard.get() == b"second"
    finally:
        drain.close(0)
        there.close(0)
        context.term()


async def test_large_burst_yields_to_other_tasks_and_completes(tmp_path: Path) -> None:
    """After each batch, the event loop runs other tasks, although no new edge wakes the reader."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    says, hears = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    hears.bind(f"ipc://{tmp_path}/line")
    says.connect(f"ipc://{tmp_path}/line")
    for _ in range(4 * MAX_BATCH):
        says.send(b"x")
    hears.poll(20_000)
    heard, others, done = 0, list[int](), asyncio.Event()

    def receive() -> None:
        nonlocal heard
        hears.recv(zmq.NOBLOCK)
        heard += 1
        if heard == 1:
            asyncio.get_running_loop().call_soon(lambda: others.append(heard))
        if heard == 4 * MAX_BATCH:
            done.set()

    drain = SocketReader(hears, receive, keep=False)
    try:
        async with asyncio.timeout(20):
            await done.wait()
    finally:
        drain.close(0)
        says.close(0)
        context.term()
    assert others[0] <= MAX_BATCH + 1


async def test_unroutable_message_is_dropped_and_close_is_idempotent(tmp_path: Path) -> None:
    """The error of ROUTER_MANDATORY is caught, and sending after `close` raises nothing."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.bind(f"ipc://{tmp_path}/router")
    drain = SocketReader(socket, lambda: None, keep=False)
    drain.send([b"nobody", b"x"])
    drain.close(0)
    drain.close(0)
    drain.send([b"nobody", b"x"])
    context.term()


async def test_unacknowledged_messages_are_resent(tmp_path: Path) -> None:
    """A timer runs only while a message is not acknowledged."""
    loop = _Clock()
    sent: list[bytes] = []
    courier = ReliableChannel(FrameChannel(1, tmp_path), sent.append)
    courier._loop = loop  # type: ignore[assignment]
    courier.send("query", Query("x"), "q")
    assert loop.pending() == [RESEND_SECONDS]
    loop.advance(RESEND_SECONDS)
    assert len(sent) == 2
    assert sent[0] == sent[1]
    other = FrameChannel(1, tmp_path)
    other.decode(sent[0])
    courier.receive(other.encode("ack", EmptyBody()))
    loop.advance(RESEND_SECONDS)
    assert len(sent) == 2
    assert loop.pending() == []


async def test_arrival_without_a_reply_is_acknowledged_separately(tmp_path: Path) -> None:
    """No separate acknowledgement is sent if another frame carries it."""
    loop = _Clock()
    sent: list[bytes] = []
    courier, other = ReliableChannel(FrameChannel(1, tmp_path), sent.append), FrameChannel(1, tmp_path)
    courier._loop = loop  # type: ignore[assignment]
    courier.receive(other.encode("query", Query("x"), "q", now=0.0))
    loop.advance(ACK_SECONDS)
    other.decode(sent[-1])
    assert other.unacked == 0
    courier.receive(other.encode("query", Query("y"), "q", now=0.0))
    courier.send("pong", EmptyBody(), reliable=False)
    count = len(sent)
    loop.advance(ACK_SECONDS)
    assert len(sent) == count
    assert loop.pending() == []


class _Handle:
    def cancel(self) -> None:
        """Do nothing."""


class _Clock:
    """The clock and the timers of an event loop, advanced by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, object]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: object) -> _Handle:
        self._timers.append((self.now + delay, callback))
        return _Handle()

    def pending(self) -> list[float]:
        return [when - self.now for when, _ in self._timers]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self._timers if timer[0] <= self.now]
        self._timers = [timer for timer in self._timers if timer[0] > self.now]
        for _, callback in due:
            callback()  # type: ignore[operator]


async def test_exception_in_a_receiver_does_not_stop_delivery(tmp_path: Path) -> None:
    """The event loop reports the exception, and later messages are received."""
    errors: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(str(context["exception"])))
    echo = Echo(f"ipc://{tmp_path}/echo")
    heard: list[bytes] = []
    done = asyncio.Event()

    def on_data(data: bytes) -> None:
        heard.append(data)
        if data == b"3":
            done.set()
        if data == b"1":
            raise ValueError("bad one")

    dealer = DealerSocket(f"ipc://{tmp_path}/echo", b"me", on_data)
    try:
        for number in range(1, 4):
            dealer.send(b"%d" % number)
        async with asyncio.timeout(10):
            await done.wait()
    finally:
        dealer.close()
        echo.close()
    assert heard == [b"1", b"2", b"3"]
    assert errors == ["bad one"]


async def test_closed_socket_schedules_no_work(tmp_path: Path) -> None:
    """After `close`, the event loop contains no callback of the socket."""
    dealer = DealerSocket(f"ipc://{tmp_path}/nobody", b"me", lambda _: None)
    dealer.close()
    loop = asyncio.get_running_loop()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not dealer._drain._scheduled
    assert not [handle for handle in loop._ready if "SocketReader" in repr(handle)]  # type: ignore[attr-defined]


async def test_closed_reliable_channel_sends_nothing(tmp_path: Path) -> None:
    """A closed channel drops messages and starts no timer."""
    loop = _Clock()
    sent: list[bytes] = []
    courier = ReliableChannel(FrameChannel(1, tmp_path), sent.append)
    courier._loop = loop  # type: ignore[assignment]
    courier.close()
    courier.send("query", Query("x"), "q")
    loop.advance(RESEND_SECONDS)
    assert sent == []
    assert loop.pending() == []
