"""Formats of images: the media type and the size in pixels, read from the first bytes, and the text for an image.

Front ends import this module at their start, so it imports no other module of the project.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["image_size", "image_text", "is_complete", "media_type_of", "part_text", "size_of"]

BRACKETS: Final = str.maketrans("[]", "()")
HEAD: Final = 1 << 18
"""Number of base64 characters to search for the size. In a JPEG file, the size follows the metadata."""
FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers of frame headers, which contain the size."""


def image_text(media_type: str, data: str, name: str = "") -> str:
    """Return the text that stands for an image in base64, such as `[image: a.png, 640x480]`."""
    width, height = image_size(data)
    shown = " ".join(name.translate(BRACKETS).split()) or media_type
    return f"[image: {shown}, {width}x{height}]" if width else f"[image: {shown}]"


def part_text(part: Mapping[str, Any]) -> str:
    """Return the text of a block as JSON data, a text or an image."""
    if part["type"] == "image":
        return image_text(part["media_type"], part["data"], part.get("name", ""))
    return str(part["text"])


def media_type_of(data: bytes) -> str:
    """Return the media type of the image that begins with `data`. Return "" for other data."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""


def image_size(encoded: str) -> tuple[int, int]:
    """Return width and height in pixels of the image in base64. Return (0, 0) if the size cannot be read."""
    try:
        return size_of(binascii.a2b_base64(encoded[:HEAD]))
    except (binascii.Error, ValueError):
        return 0, 0


def size_of(head: bytes) -> tuple[int, int]:
    """Return width and height in pixels of the image that begins with `head`. Return (0, 0) if they cannot be read."""
    match media_type_of(head):
        case "image/png":
            found = _big(head[16:20]), _big(head[20:24])
        case "image/gif":
            found = _little(head[6:8]), _little(head[8:10])
        case "image/webp":
            found = _webp_size(head)
        case "image/jpeg":
            found = _jpeg_size(head)
        case _:
            found = 0, 0
    return found if all(found) else (0, 0)


def is_complete(data: bytes) -> bool:
    """Return whether the image contains the end that its format requires. This detects most truncated files."""
    match media_type_of(data):
        case "image/png":
            return b"IEND" in data
        case "image/jpeg":
            return b"\xff\xd9" in data
        case "image/gif":
            return data.rstrip(b"\0\r\n").endswith(b";")
        case _:
            return len(data) >= 8 + _little(data[4:8])


def _webp_size(head: bytes) -> tuple[int, int]:
    if head[12:16] == b"VP8X":
        return _little(head[24:27]) + 1, _little(head[27:30]) + 1
    if head[12:16] == b"VP8L":
        bits = _little(head[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return _little(head[26:28]) & 0x3FFF, _little(head[28:30]) & 0x3FFF


def _jpeg_size(head: bytes) -> tuple[int, int]:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        kind = head[at + 1]
        if kind in FRAMES:
            return _big(head[at + 7 : at + 9]), _big(head[at + 5 : at + 7])
        # Fill bytes may precede a marker. Other segments contain their length.
        at += 1 if kind == 0xFF else 2 + _big(head[at + 2 : at + 4])
    return 0, 0


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
