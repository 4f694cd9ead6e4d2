"""Who is at the other end of a Unix socket, by the kernel's word."""

from __future__ import annotations

import socket
import struct

__all__ = ["peer_of"]

# Of macOS, for which Python has no names: struct xucred begins with a version and the uid.
SOL_LOCAL = 0
LOCAL_PEERCRED, LOCAL_PEERPID = 1, 2
XUCRED_BYTES = 76


def peer_of(connected: socket.socket) -> tuple[int, int]:
    """Return pid and uid of who connected, or listened. Raises OSError where the kernel does not say."""
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid, uid
    _, uid = struct.unpack("Ii", connected.getsockopt(SOL_LOCAL, LOCAL_PEERCRED, XUCRED_BYTES)[:8])
    (pid,) = struct.unpack("i", connected.getsockopt(SOL_LOCAL, LOCAL_PEERPID, 4))
    return pid, uid
