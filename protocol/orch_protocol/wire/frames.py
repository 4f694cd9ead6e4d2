"""Frames between root and worker: one msgpack array a message, sequenced, acknowledged, re-sent. No I/O here.

A `FrameChannel` is one end of the conversation with one incarnation of a worker. Frames with a sequence number are kept
until the peer acknowledges them and handed out again by `overdue`; the receiving end delivers each number once, in
order. So a lost frame costs a delay and never runs a task twice. Frames without a number (`seq` 0: hello, ping, pong,
progress, ack) may be lost.

A body over `MAX_BODY` bytes never enters the socket, where it would take the queue behind it along: the sender writes
it to `spool` and sends a `FileRef`; the receiver checks length and SHA-256, reads it and removes it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections import deque
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from ..core.errors import ErrorInfo, MessageTooLargeError, ProtocolError, StoreError, error_info
from ..core.ids import new_id
from ..core.text import scrub
from .worker_messages import BODIES

__all__ = ["MAX_BODY", "MAX_SPILL", "VERSION", "FileRef", "Frame", "FrameChannel", "decode_body", "encode_body"]

VERSION: Final = 1
MAX_BODY: Final = 1 << 20
MAX_SPILL: Final = 256 << 20
RESEND_SECONDS: Final = 1.0

T = TypeVar("T", bound=Struct)

# The four families of error that hostile bytes raise in msgspec, and the memory they may ask for.
DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError, MemoryError)


class Frame(Struct, frozen=True, array_like=True, gc=False):
    """Header and body. `id` correlates an answer with its question; `ack` is the last number received in order."""

    kind: str
    id: str
    incarnation: int
    seq: int
    ack: int
    spilled: bool
    body: msgspec.Raw


class FileRef(Struct, frozen=True, array_like=True):
    """A body too large for the socket: `name` in the spool folder, its length in bytes and its SHA-256 in hex."""

    name: str
    size: int
    sha256: str


_encoder = msgspec.msgpack.Encoder()
_frame_decoder = msgspec.msgpack.Decoder(Frame)
_ref_decoder = msgspec.msgpack.Decoder(FileRef)
_body_decoders = {kind: msgspec.msgpack.Decoder(body) for kind, body in BODIES.items()}


def encode_body(body: Any) -> bytes:
    """Return `body` (structs, lists) as msgpack. Lone surrogates, which no encoding carries, become U+FFFD."""
    try:
        return _encoder.encode(body)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(body, builtin_types=(bytes, msgspec.Raw))
        return _encoder.encode(scrub(plain))
    except OverflowError as error:
        raise ProtocolError(f"{type(body).__name__} holds an integer beyond 64 bits: send it as text") from error


def decode_body(body: bytes | msgspec.Raw, type: type[T]) -> T:
    """Return `body` decoded as `type`; ProtocolError if it is not one."""
    try:
        return msgspec.msgpack.decode(body, type=type)
    except DECODE_ERRORS as error:
        raise ProtocolError(f"not a {type.__name__}: {error}") from error


class FrameChannel:
    """One end of the conversation with `incarnation` of a worker. Large bodies pass through the folder `spool`."""

    def __init__(self, incarnation: int, spool: Path) -> None:
        self.incarnation = incarnation
        self._spool = spool
        self._sent = 0
        self._received = 0
        self._acked_to_peer = 0
        self._waiting: deque[tuple[int, float, bytes]] = deque()

    @property
    def owes_ack(self) -> bool:
        """Whether frames have arrived that no frame of ours has acknowledged yet."""
        return self._acked_to_peer < self._received

    @property
    def unacked(self) -> int:
        """How many of our frames the peer has not acknowledged."""
        return len(self._waiting)

    def encode(self, kind: str, body: Struct, id: str = "", *, now: float | None = None) -> bytes:
        """Return the frame that carries `body`. With `now` (monotonic s) it is kept until acked.

        Raises MessageTooLargeError or ProtocolError for a body that cannot travel, StoreError when the file for a large
        one cannot be written.
        """
        data, spilled = encode_body(body), False
        if len(data) > MAX_BODY:
            data, spilled = _encoder.encode(self._spill(kind, data)), True
        seq = 0
        if now is not None:
            self._sent = seq = self._sent + 1
        frame = Frame(kind, id, self.incarnation, seq, self._received, spilled, msgspec.Raw(data))
        self._acked_to_peer = self._received
        encoded = _encoder.encode(frame)
        if now is not None:
            self._waiting.append((seq, now, encoded))
        return encoded

    def decode(self, data: bytes) -> tuple[Frame, Struct] | None:
        """Return the frame and its typed body, or None when there is nothing to deliver (an ack, a repeat, a gap).

        In place of a body that cannot be read stands an ErrorInfo: the frame counts as received and will not come
        again, so whoever waits for it must be told. Raises ProtocolError for bytes that are no frame, an unknown kind,
        or another incarnation's frame.
        """
        try:
            frame = _frame_decoder.decode(data)
        except DECODE_ERRORS as error:
            raise ProtocolError(f"not a frame ({len(data)} bytes): {error}") from error
        if frame.kind not in _body_decoders:
            raise ProtocolError(f"unknown kind of frame {frame.kind!r}")
        if frame.incarnation != self.incarnation:
            raise ProtocolError(f"frame of incarnation {frame.incarnation}, expected {self.incarnation}")
        while self._waiting and self._waiting[0][0] <= frame.ack:
            self._waiting.popleft()
        if frame.kind == "ack":
            return None
        if frame.seq:
            if frame.seq != self._received + 1:
                # A repeat is acknowledged again; after a gap the peer's re-send brings the missing ones in order.
                self._acked_to_peer = min(self._acked_to_peer, self._received - 1)
                return None
            self._received = frame.seq
        try:
            body = self._fetch(frame) if frame.spilled else frame.body
            return frame, _body_decoders[frame.kind].decode(body)
        except ProtocolError as error:
            return frame, error_info(error)
        except DECODE_ERRORS as error:
            return frame, ErrorInfo("ProtocolError", f"not a body of kind {frame.kind!r}: {error}")

    def overdue(self, now: float) -> list[bytes]:
        """Return the frames, in order, that have waited RESEND_SECONDS for their ack, and start their wait anew."""
        if not self._waiting or now - self._waiting[0][1] < RESEND_SECONDS:
            return []
        self._waiting = deque((seq, now, data) for seq, _, data in self._waiting)
        return [data for _, _, data in self._waiting]

    def _spill(self, kind: str, data: bytes) -> FileRef:
        if len(data) > MAX_SPILL:
            raise MessageTooLargeError(f"a {kind} of {len(data)} bytes, the most is {MAX_SPILL}: pass a path instead")
        name = f"{new_id()}.spill"
        path = self._spool / name
        try:
            self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink()
            raise StoreError(f"a {kind} of {len(data)} bytes cannot be spilled to {path}: {error.strerror}") from error
        return FileRef(name, len(data), hashlib.sha256(data).hexdigest())

    def _fetch(self, frame: Frame) -> bytes:
        try:
            ref = _ref_decoder.decode(frame.body)
        except DECODE_ERRORS as error:
            raise ProtocolError(f"not a file reference: {error}") from error
        if "/" in ref.name or "\0" in ref.name or ref.name.startswith("."):
            raise ProtocolError(f"file reference {ref.name!r} leaves the spool folder")
        if not 0 <= ref.size <= MAX_SPILL:
            raise ProtocolError(f"file reference {ref.name!r} is for {ref.size} bytes, the most is {MAX_SPILL}")
        path = self._spool / ref.name
        try:
            data = _taken(path, ref.size)
        except OSError as error:
            raise ProtocolError(f"spilled body {ref.name!r} cannot be read: {error}") from error
        if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
            raise ProtocolError(f"spilled body {ref.name!r} is not the one that was sent")
        return data


def _taken(path: Path, size: int) -> bytes:
    """Return what is in the file at `path`, as far as it is not longer than `size` bytes, and remove it."""
    # The peer names the file: it may be a FIFO that nobody writes to, or a link to what is not the peer's.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(size + 1)
    finally:
        os.close(descriptor)
    path.unlink()
    return data
