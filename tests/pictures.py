"""Image files made up for tests: valid PNG files, and the beginning and end of other formats."""

from __future__ import annotations

import struct
import zlib

__all__ = ["GIF", "JPEG", "WEBP_ALPHA", "WEBP_LOSSLESS", "WEBP_LOSSY", "png"]


def png(width: int, height: int, padding: int = 0) -> bytes:
    """Return a black image of this size; `padding` is the size of a chunk that viewers ignore."""
    rows = zlib.compress((b"\0" * (width + 1)) * height)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"prVt", b"\0" * padding), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


GIF = b"GIF89a" + struct.pack("<HH", 30, 20) + b"\0" * 9 + b";"
JPEG = (
    b"\xff\xd8\xff\xe1"
    + struct.pack(">H", 60_002)
    + b"\xff\xc0" * 30_000  # metadata that looks like a frame header
    + b"\xff\xff\xc2"  # a fill byte before the marker
    + struct.pack(">HBHHB", 17, 8, 20, 30, 3)
    + b"\0" * 9
    + b"\xff\xd9"
)
WEBP_ALPHA = b"RIFF\x1e\0\0\0WEBPVP8X" + struct.pack("<II", 10, 16) + b"\x1d\0\0\x13\0\0" + b"\0" * 9
WEBP_LOSSLESS = b"RIFF\0\0\0\0WEBPVP8L" + struct.pack("<IBI", 9, 0x2F, 29 | 19 << 14) + b"\0" * 9
WEBP_LOSSY = (
    b"RIFF\0\0\0\0WEBPVP8 " + struct.pack("<I", 9) + b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 30, 20) + b"\0" * 9
)
