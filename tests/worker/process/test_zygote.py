"""The zygote, tested without processes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from orch_protocol.wire.zygote_messages import ForkFailed, ForkToolHost, ForkWorker, decode_report, encode
from orch_worker.process.zygote import Zygote


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a control socket: the root's and the zygote's."""
    root, zygote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with root, zygote:
        yield root, zygote


@pytest.fixture
def requests() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of the socket for requests of workers: the zygote's and the workers'."""
    zygote, workers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with zygote, workers:
        yield zygote, workers


class Refused:
    """A process class whose `start` fails because the system has no resources."""

    def __init__(self, **_: object) -> None:
        pass

    def start(self) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")


def test_failed_fork_is_reported(
    line: tuple[socket.socket, socket.socket], requests: tuple[socket.socket, socket.socket]
) -> None:
    """The zygote answers each of two requests with the reason of the failure."""
    root, control = line
    pipe, wake = os.pipe(), os.pipe()
    never, writer = os.pipe()
    for req in (1, 2):
        socket.send_fds(root, [encode(ForkWorker(req, "a1", 1, b"i", "x", "log", "spool"))], [pipe[0]])
    root.shutdown(socket.SHUT_WR)
    Zygote(control, requests, lambda: 0, Refused).serve(never, wake[0])
    reports = [decode_report(root.recv(1 << 16)) for _ in range(2)]
    assert reports == [ForkFailed(req, "[Errno 11] Resource temporarily unavailable") for req in (1, 2)]
    for descriptor in (*pipe, *wake, never, writer):
        os.close(descriptor)


def test_end_of_the_root_ends_the_zygote(
    line: tuple[socket.socket, socket.socket], requests: tuple[socket.socket, socket.socket]
) -> None:
    """A readable pidfd ends the zygote before it reads a queued request."""
    root, control = line
    pidfd, end = os.pipe()
    wake = os.pipe()
    os.close(end)
    root.send(b"not even read")
    Zygote(control, requests, lambda: 0, Refused).serve(pidfd, wake[0])
    assert control.recv(64) == b"not even read"
    for descriptor in (pidfd, *wake):
        os.close(descriptor)


def test_failed_fork_of_a_tool_host_closes_its_connection(
    line: tuple[socket.socket, socket.socket],
    requests: tuple[socket.socket, socket.socket],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The worker notices the end of its connection. An invalid request, or one without descriptors, has no effect."""
    log = os.open(os.devnull, os.O_WRONLY)
    ours, theirs = socket.socketpair()
    lifeline = os.pipe()
    with ours, theirs:
        requests[1].send(encode(ForkToolHost(1)))
        socket.send_fds(requests[1], [b"\xc1"], [theirs.fileno(), lifeline[0], log])
        socket.send_fds(requests[1], [encode(ForkToolHost(1))], [theirs.fileno(), lifeline[0], log])
        theirs.close()
        zygote = Zygote(line[1], requests, lambda: 0, Refused)
        for _ in range(3):
            zygote.handle_request()
        assert ours.recv(1) == b""
    assert "invalid request of a worker" in capfd.readouterr().out
    for descriptor in (*lifeline, log):
        os.close(descriptor)
