"""Frames between root and worker: one msgpack array per message. Frames are numbered, acknowledged and re-sent.

A `FrameChannel` is one end of the connection with one incarnation of a worker. A `FrameChannel` sends and receives
nothing itself. The sender keeps a frame with a sequence number until the peer acknowledges the frame, and `overdue`
returns the frame for sending again. The receiver delivers each number once and in order. Therefore, a lost frame causes
a delay, and no task runs twice. Frames without a number (`seq` 0: hello, ping, pong, progress, ack) may be lost.

A body larger than `MAX_BODY` bytes would block the frames behind it, so the sender does not send it through the socket.
The sender writes the body to `spool` and sends a `FileRef`. The receiver checks length and SHA-256, reads the file and
removes the file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from ..core.errors import ErrorInfo, MessageTooLargeError, ProtocolError, StoreError, error_info
from ..core.ids import new_id
from ..core.text import scrub
from .worker_messages import BODIES

__all__ = ["MAX_BODY", "MAX_SPILL", "VERSION", "FileRef", "Frame", "FrameChannel", "encode_body"]

VERSION: Final = 3
MAX_BODY: Final = 1 << 20
MAX_SPILL: Final = 256 << 20
RESEND_SECONDS: Final = 1.0


# The exceptions that msgspec raises for hostile bytes. Such bytes may also make msgspec allocate too much memory.
DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError, MemoryError)


class Frame(Struct, frozen=True, array_like=True, gc=False):
    """A message with its header. `id` links a reply to its request. `ack` is the last number received in order."""

    kind: str
    id: str
    incarnation: int
    seq: int
    ack: int
    spilled: bool
    body: msgspec.Raw


class FileRef(Struct, frozen=True, array_like=True):
    """A reference to a body that is too large for the socket.

    `name` is a file in the spool folder, `size` its length in bytes, and `sha256` its hash in hex.
    """

    name: str
    size: int
    sha256: str


_encoder = msgspec.msgpack.Encoder()
_frame_decoder = msgspec.msgpack.Decoder(Frame)
_ref_decoder = msgspec.msgpack.Decoder(FileRef)
_body_decoders = {kind: msgspec.msgpack.Decoder(body) for kind, body in BODIES.items()}


def encode_body(body: Any) -> bytes:
    """Return `body` (structs, lists) as msgpack. Replace lone surrogates, which cannot be encoded, by U+FFFD."""
    try:
        return _encoder.encode(body)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(body, builtin_types=(bytes, msgspec.Raw))
        return _encoder.encode(scrub(plain))
    except OverflowError as error:
        raise ProtocolError(
            f"{type(body).__name__} contains an integer of more than 64 bits: send the integer as text"
        ) from error


class FrameChannel:
    """One end of the connection with `incarnation` of a worker.

    Large bodies are passed as files in the folder `spool`.
    """

    def __init__(self, incarnation: int, spool: Path) -> None:
        self.incarnation = incarnation
        self._spool = spool
        self._sent = 0
        self._received = 0
        self._acked_to_peer = 0
        self._waiting: deque[tuple[int, float, bytes]] = deque()

    @property
    def owes_ack(self) -> bool:
        """Whether there are received frames without an acknowledgment."""
        return self._acked_to_peer < self._received

    @property
    def unacked(self) -> int:
        """The number of sent frames that the peer has not acknowledged."""
        return len(self._waiting)

    def encode(self, kind: str, body: Struct, id: str = "", *, now: float | None = None) -> bytes:
        """Return the frame that contains `body`.

        If `now` (monotonic seconds) is given, the channel keeps the frame until the peer acknowledges it. Raise
        MessageTooLargeError or ProtocolError for a body that cannot be sent. Raise StoreError if the file for a large
        body cannot be written.
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
        """Return the frame and the decoded body.

        Return None for an acknowledgment, a repeated frame, or a frame after a gap.

        If a body cannot be read, an ErrorInfo replaces it. The frame counts as received and the peer does not send it
        again, so the waiting caller must be notified. Raise ProtocolError for bytes that are not a frame, for an
        unknown kind, or for a frame of another incarnation.
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
                # Acknowledge a repeated frame again. After a gap, the peer sends the missing frames again in order.
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
        """Return the frames that have waited RESEND_SECONDS for their acknowledgment, in order.

        Restart the waiting time.
        """
        if not self._waiting or now - self._waiting[0][1] < RESEND_SECONDS:
            return []
        self._waiting = deque((seq, now, data) for seq, _, data in self._waiting)
        return [data for _, _, data in self._waiting]

    def _spill(self, kind: str, data: bytes) -> FileRef:
        if len(data) > MAX_SPILL:
            raise MessageTooLargeError(
                f"the message {kind!r} has {len(data)} bytes, but the maximum is {MAX_SPILL}: pass a path instead"
            )
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
            raise StoreError(
                f"cannot write the message {kind!r} ({len(data)} bytes) to {path}: {error.strerror}"
            ) from error
        return FileRef(name, len(data), hashlib.sha256(data).hexdigest())

    def _fetch(self, frame: Frame) -> bytes:
        try:
            ref = _ref_decoder.decode(frame.body)
        except DECODE_ERRORS as error:
            raise ProtocolError(f"not a file reference: {error}") from error
        if "/" in ref.name or "\0" in ref.name or ref.name.startswith("."):
            raise ProtocolError(f"file reference {ref.name!r} is outside the spool folder")
        if not 0 <= ref.size <= MAX_SPILL:
            raise ProtocolError(f"file reference {ref.name!r} is for {ref.size} bytes, but the maximum is {MAX_SPILL}")
        path = self._spool / ref.name
        try:
            data = _taken(path, ref.size)
        except OSError as error:
            raise ProtocolError(f"cannot read the message in file {ref.name!r}: {error}") from error
        if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
            raise ProtocolError(f"the message in file {ref.name!r} differs from the sent message")
        return data


def _taken(path: Path, size: int) -> bytes:
    """Return at most `size` + 1 bytes of the file at `path`, and remove the file."""
    # The peer chose the path, which may be a FIFO without a writer, or a link to another user's file.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(size + 1)
    finally:
        os.close(descriptor)
    path.unlink()
    return data
