"""What a root and a zygote say to each other."""

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
def test_reports_come_back_as_they_were(report: Report) -> None:
    """Each report is decoded to the value that was encoded."""
    assert decode_report(encode(report)) == report


def test_fork_comes_back_as_it_was() -> None:
    """A request for a worker is decoded to the value that was encoded."""
    fork = ForkWorker(3, "a1", 2, b"\x00\xff", "ipc:///tmp/s", "/tmp/a1.log", "/tmp/spool")
    assert decode_fork(encode(fork)) == fork


def test_birth_carries_its_length() -> None:
    """A birth begins with the number of bytes that follow it."""
    birth = WorkerBirth(b"t" * 32, {"name": "value"})
    data = encode_birth(birth)
    assert int.from_bytes(data[:LENGTH_BYTES]) == len(data) - LENGTH_BYTES
    assert decode_birth(data[LENGTH_BYTES:]) == birth


def test_birth_larger_than_a_pipe_is_refused() -> None:
    """A birth that would make the root wait for a reader is an error that says so."""
    with pytest.raises(ValueError, match=f"the most is {MAX_BIRTH}"):
        encode_birth(WorkerBirth(b"", {"name": "x" * MAX_BIRTH}))
