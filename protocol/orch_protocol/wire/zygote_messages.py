"""What a root and its zygote say to each other, one msgpack array a packet, and what goes through a birth pipe.

Root to zygote: `ForkWorker`, with the read end of the worker's birth pipe beside it.
Zygote to root: `ZygoteReady` or `ZygoteFailed` once; then `WorkerForked` (with a pidfd) or `ForkFailed` for each
`ForkWorker`, and one `WorkerProcessExited` for each worker that came up. `req` is the root's number for the worker.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from ..agent.spec import WorkerBirth

__all__ = [
    "MAX_BIRTH",
    "ForkFailed",
    "ForkWorker",
    "Report",
    "WorkerForked",
    "WorkerProcessExited",
    "ZygoteFailed",
    "ZygoteReady",
    "decode_birth",
    "decode_fork",
    "decode_report",
    "encode",
    "encode_birth",
]

# A pipe takes this much before a writer has to wait for a reader, and nobody reads yet when the root writes.
MAX_BIRTH: Final = 60_000
LENGTH_BYTES: Final = 4


class ForkWorker(Struct, frozen=True, array_like=True, tag=True):
    """Fork a worker: the arguments of its `main`, and the file its descriptors 1 and 2 are bound to."""

    req: int
    agent_id: str
    incarnation: int
    ident: bytes
    address: str
    log: str
    spool: str


class ZygoteReady(Struct, frozen=True, array_like=True, tag=True):
    """The template is warm. `fds` is how many descriptors the zygote holds."""

    pid: int
    fds: int


class ZygoteFailed(Struct, frozen=True, array_like=True, tag=True):
    """The template could not be loaded; `text` is the end of the traceback."""

    text: str


class WorkerForked(Struct, frozen=True, array_like=True, tag=True):
    """The worker exists."""

    req: int
    pid: int


class ForkFailed(Struct, frozen=True, array_like=True, tag=True):
    """The system refused to fork."""

    req: int
    text: str


class WorkerProcessExited(Struct, frozen=True, array_like=True, tag=True):
    """The worker is gone and reaped: its exit code, or minus the signal's number."""

    req: int
    code: int


Report: TypeAlias = ZygoteReady | ZygoteFailed | WorkerForked | ForkFailed | WorkerProcessExited

encode = msgspec.msgpack.Encoder().encode
decode_fork = msgspec.msgpack.Decoder(ForkWorker).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
decode_birth = msgspec.msgpack.Decoder(WorkerBirth).decode


def encode_birth(birth: WorkerBirth) -> bytes:
    """Return `birth` as a birth pipe carries it: four bytes of length (big endian), then msgpack.

    Raises ValueError past MAX_BIRTH bytes, which a pipe would not take at once.
    """
    body = encode(birth)
    if len(body) > MAX_BIRTH:
        raise ValueError(f"a birth of {len(body)} bytes, the most is {MAX_BIRTH}: fewer or shorter keys")
    return len(body).to_bytes(LENGTH_BYTES) + body
