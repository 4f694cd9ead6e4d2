"""Messages between a root and its zygote, one msgpack array per packet, and the content of a birth pipe.

Root to zygote: `ForkWorker`, with the read end of the worker's birth pipe. Zygote to root: first `ZygoteReady` or
`ZygoteFailed`. After that, `WorkerForked` (with a pidfd) or `ForkFailed` for each `ForkWorker`, and
`WorkerProcessExited` for each worker that ended. `req` is the root's number for the worker.

Worker to zygote: `ForkToolHost`, with one end of a stream socket pair, the read end of a lifeline and the log. The
zygote closes the socket if the fork fails. It sends the root `ToolHostForked` (with a pidfd) and `ToolHostExited`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from ..agent.spec import WorkerBirth

__all__ = [
    "MAX_BIRTH",
    "ForkFailed",
    "ForkToolHost",
    "ForkWorker",
    "Report",
    "ToolHostExited",
    "ToolHostForked",
    "WorkerForked",
    "WorkerProcessExited",
    "ZygoteFailed",
    "ZygoteReady",
    "decode_birth",
    "decode_fork",
    "decode_report",
    "decode_tool_host",
    "encode",
    "encode_birth",
]

# A pipe holds at least this number of bytes before a write blocks. The pipe has no reader yet when the root writes.
MAX_BIRTH: Final = 60_000
LENGTH_BYTES: Final = 4


class ForkWorker(Struct, frozen=True, array_like=True, tag=True):
    """Fork a worker: the arguments of its `main`, and the file for its stdout and stderr."""

    req: int
    agent_id: str
    incarnation: int
    ident: bytes
    address: str
    log: str
    spool: str


class ForkToolHost(Struct, frozen=True, array_like=True, tag=True):
    """Fork a tool host for the worker with the number `req`."""

    req: int


class ZygoteReady(Struct, frozen=True, array_like=True, tag=True):
    """The template is loaded. `fds` is the number of open descriptors of the zygote."""

    pid: int
    fds: int


class ZygoteFailed(Struct, frozen=True, array_like=True, tag=True):
    """The template could not be loaded. `text` is the end of the traceback."""

    text: str


class WorkerForked(Struct, frozen=True, array_like=True, tag=True):
    """The worker's process exists."""

    req: int
    pid: int


class ForkFailed(Struct, frozen=True, array_like=True, tag=True):
    """The system call failed. `text` is the error message."""

    req: int
    text: str


class WorkerProcessExited(Struct, frozen=True, array_like=True, tag=True):
    """The worker's process ended and was reaped. `code` is its exit status, or the negative number of the signal."""

    req: int
    code: int


class ToolHostForked(Struct, frozen=True, array_like=True, tag=True):
    """The tool host of a worker exists."""

    req: int
    pid: int


class ToolHostExited(Struct, frozen=True, array_like=True, tag=True):
    """The tool host `pid` of a worker ended and was reaped."""

    req: int
    pid: int


Report: TypeAlias = (
    ZygoteReady | ZygoteFailed | WorkerForked | ForkFailed | WorkerProcessExited | ToolHostForked | ToolHostExited
)

encode = msgspec.msgpack.Encoder().encode
decode_fork = msgspec.msgpack.Decoder(ForkWorker).decode
decode_tool_host = msgspec.msgpack.Decoder(ForkToolHost).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
decode_birth = msgspec.msgpack.Decoder(WorkerBirth).decode


def encode_birth(birth: WorkerBirth) -> bytes:
    """Return `birth` as the content of a birth pipe: four bytes of length (big endian), then msgpack.

    Raise ValueError for more than MAX_BIRTH bytes, because a pipe would not hold more.
    """
    body = encode(birth)
    if len(body) > MAX_BIRTH:
        raise ValueError(f"the start data of a worker has {len(body)} bytes; maximum {MAX_BIRTH}: use fewer API keys")
    return len(body).to_bytes(LENGTH_BYTES) + body
