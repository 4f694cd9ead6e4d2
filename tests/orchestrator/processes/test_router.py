"""Authentication of workers: a new identity, the sender's pid from the kernel, and a token."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import zmq

from orch.processes.router import ConnectionTable, Router, WorkerConnection
from orch_protocol.wire.frames import VERSION, FrameChannel
from orch_protocol.wire.worker_messages import EmptyBody, Hello, Query, Ready

TOKEN = b"t" * 32
IDENT = b"worker"
PID = 4242


class Table:
    """A connection table that expects one worker, with its delivered and sent frames."""

    def __init__(self, spool: Path, pid: int | None = PID) -> None:
        self.delivered: list[tuple[str, Any]] = []
        self.sent: list[tuple[bytes, bytes]] = []
        self.table = ConnectionTable(spool, lambda ident, data: self.sent.append((ident, data)), self._deliver)
        self.peer = self.table.expect("a1", 7, IDENT, TOKEN)
        self.worker = FrameChannel(7, spool)
        if pid is not None:
            self.table.confirm(self.peer, pid)

    def _deliver(self, _: WorkerConnection, kind: str, _id: str, body: Any) -> None:
        self.delivered.append((kind, body))

    def hello(self, token: bytes = TOKEN, version: int = VERSION, pid: int = PID, sender: int = PID) -> None:
        self.table.accept(IDENT, self.worker.encode("hello", Hello(token, version, pid)), sender)

    def counts(self) -> dict[str, int]:
        return dict(self.table.counters)


@pytest.fixture
async def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


async def test_worker_with_the_right_token_is_accepted(table: Table) -> None:
    """Later frames need no check of the sender."""
    table.hello()
    assert not table.table.needs_sender(IDENT)
    table.table.accept(IDENT, table.worker.encode("ready", Ready(), now=0.0), 0)
    assert [kind for kind, _ in table.delivered] == ["hello", "ready"]


@pytest.mark.parametrize(
    "lie",
    [
        {"token": b"x" * 32},
        {"version": VERSION + 1},
        {"sender": PID + 1},
        {"sender": -1},
        {"pid": PID + 1},
    ],
    ids=["token", "version", "another process", "another user", "pid"],
)
async def test_worker_with_a_wrong_token_is_rejected_and_counted(table: Table, lie: dict[str, Any]) -> None:
    """The hello is not delivered, and the counter of impostors is increased."""
    table.hello(**lie)
    assert table.delivered == []
    assert table.counts() == {"impostor": 1}
    assert table.table.needs_sender(IDENT)


async def test_first_frame_must_be_hello(table: Table) -> None:
    """Another first frame counts as an impostor."""
    table.table.accept(IDENT, table.worker.encode("ready", Ready()), PID)
    assert table.delivered == []
    assert table.counts() == {"impostor": 1}


async def test_early_hello_is_held_until_the_pid_is_known(tmp_path: Path) -> None:
    """When the pid is known, a hello from another process is dropped."""
    table = Table(tmp_path, pid=None)
    table.hello()
    assert table.delivered == []
    table.table.confirm(table.peer, PID)
    assert [kind for kind, _ in table.delivered] == ["hello"]
    other = Table(tmp_path, pid=None)
    other.hello()
    other.table.confirm(other.peer, PID + 1)
    assert other.delivered == []


async def test_unknown_and_malformed_frames_are_counted_and_dropped(table: Table) -> None:
    """Frames of an unknown identity, malformed frames and frames of an earlier incarnation are counted."""
    table.hello()
    table.table.accept(b"nobody", b"junk", 1)
    table.table.accept(IDENT, b"junk", 0)
    table.table.accept(IDENT, FrameChannel(6, Path("/")).encode("ready", Ready()), 0)
    assert table.counts() == {"unknown_peer": 1, "bad_frame": 2}
    assert [kind for kind, _ in table.delivered] == ["hello"]


async def test_removed_worker_is_unknown(table: Table) -> None:
    """Frames of a removed worker are counted as frames of an unknown peer."""
    table.hello()
    table.peer.send("query", Query("x"), "q")
    table.table.forget(table.peer)
    table.table.accept(IDENT, table.worker.encode("ready", Ready()), 0)
    assert table.counts() == {"unknown_peer": 1}


async def test_pending_acknowledgements_are_sent_on_close(table: Table) -> None:
    """A received frame is acknowledged when the connection is flushed."""
    table.hello()
    table.table.accept(IDENT, table.worker.encode("ready", Ready(), now=0.0), 0)
    assert table.worker.unacked == 1
    table.peer.channel.flush()
    assert table.worker.decode(table.sent[-1][1]) is None
    assert table.worker.unacked == 0
    table.peer.channel.close()


async def test_socket_is_private_to_the_user(tmp_path: Path) -> None:
    """The mode of the socket does not depend on the umask of the program."""
    path = tmp_path / "r.sock"
    before = os.umask(0o022)
    try:
        router = Router(path, tmp_path, lambda *_: None)
    finally:
        os.umask(before)
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        router.close()


async def test_router_reads_the_sender_pid_from_the_kernel(tmp_path: Path) -> None:
    """The pid is that of this process. A frame with several parts is counted as malformed."""
    heard: list[tuple[str, Any]] = []
    router = Router(tmp_path / "r.sock", tmp_path, lambda _peer, kind, _id, body: heard.append((kind, body)))
    peer = router.peers.expect("a1", 1, IDENT, TOKEN)
    router.peers.confirm(peer, os.getpid())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.IDENTITY, IDENT)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(router.address)
    worker = FrameChannel(1, tmp_path)
    try:
        dealer.send_multipart([b"a", b"b", b"c"])
        dealer.send(worker.encode("hello", Hello(TOKEN, VERSION, os.getpid())))
        await _until(lambda: bool(heard))
        assert [kind for kind, _ in heard] == ["hello"]
        assert router.peers.counters["bad_frame"] == 1
        peer.send("stop", EmptyBody())
        assert dealer.poll(5000)
        received = worker.decode(dealer.recv())
        assert received is not None
        assert received[0].kind == "stop"
    finally:
        dealer.close()
        context.term()
        router.peers.forget(peer)
        router.close()
    assert not (tmp_path / "r.sock").exists()


async def _until(condition: Any) -> None:
    import asyncio

    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # yields; there is no event to wait for
            await asyncio.sleep(0)
