"""Messages between the root and a zygote."""

from __future__ import annotations

import pytest

from orch_protocol.agent.spec import WorkerBirth
from orch_protocol.wire.zygote_messages import (
    LENGTH_BYTES,
    MAX_BIRTH,
    ForkFailed,
    ForkWorker,
    Report,
    WorkerForked,
    WorkerProcessExited,
    ZygoteFailed,
    ZygoteReady,
    decode_birth,
    decode_fork,
    decode_report,
    encode,
    encode_birth,
)


@pytest.mark.parametrize(
    "report",
    [
        ZygoteReady(7, 9),
        ZygoteFailed("no such module"),
        WorkerForked(1, 99),
        ForkFailed(2, "EAGAIN"),
        WorkerProcessExited(1, -9),
    ],
)
def test_reports_round_trip(report: Report) -> None:
    """Each report is decoded to the value that was encoded."""
    assert decode_report(encode(report)) == report


def test_fork_request_round_trips() -> None:
    """A request for a worker is decoded to the value that was encoded."""
    fork = ForkWorker(3, "a1", 2, b"\x00\xff", "ipc:///tmp/s", "/tmp/a1.log", "/tmp/spool")
    assert decode_fork(encode(fork)) == fork


def test_worker_init_is_prefixed_with_its_length() -> None:
    """The encoded data of a new worker begins with the number of bytes that follow."""
    birth = WorkerBirth(b"t" * 32, {"name": "value"})
    data = encode_birth(birth)
    assert int.from_bytes(data[:LENGTH_BYTES]) == len(data) - LENGTH_BYTES
    assert decode_birth(data[LENGTH_BYTES:]) == birth


def test_worker_init_larger_than_a_pipe_is_refused() -> None:
    """Data that does not fit into a pipe is refused, because writing it would block the root."""
    with pytest.raises(ValueError, match=f"maximum {MAX_BIRTH}"):
        encode_birth(WorkerBirth(b"", {"name": "x" * MAX_BIRTH}))
