"""Content encodings of bodies that the proxy reads."""

from __future__ import annotations

import zlib
from typing import Final

__all__ = ["DECODABLE", "Decoder", "decode"]

DECODABLE: Final = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
AUTO_DETECT: Final = zlib.MAX_WBITS | 32


class Decoder:
    """Decodes a body piece by piece. Raises ValueError for an encoding that is not in DECODABLE."""

    def __init__(self, encoding: str) -> None:
        if encoding not in DECODABLE:
            raise ValueError(f"content-encoding {encoding!r} is not supported")
        self._decoder = None if encoding in ("", "identity") else zlib.decompressobj(AUTO_DETECT)
        self._can_continue = encoding.endswith("gzip")

    def feed(self, piece: bytes, limit: int = 0) -> bytes:
        """Return the bytes that `piece` stands for, at most `limit` if it is not 0. Raises ValueError."""
        if self._decoder is None:
            return piece
        decoded = b""
        try:
            while piece and (not limit or len(decoded) < limit):
                if self._decoder.eof and self._can_continue:  # Some servers send a gzip file for each event.
                    self._decoder = zlib.decompressobj(AUTO_DETECT)
                decoded += self._decoder.decompress(piece, limit and limit - len(decoded))
                piece = self._decoder.unused_data if self._can_continue else b""
        except zlib.error as error:
            raise ValueError(f"the body is not valid: {error}") from error
        return decoded

    @property
    def is_complete(self) -> bool:
        """Whether the body has ended where its encoding says so."""
        return self._decoder is None or self._decoder.eof


def decode(body: bytes, encoding: str, limit: int) -> bytes | None:
    """Return a whole body decoded. Return None if it cannot be decoded or has more than `limit` bytes."""
    try:
        decoder = Decoder(encoding)
        decoded = decoder.feed(body, limit + 1)
    except ValueError:
        return None
    return decoded if decoder.is_complete and len(decoded) <= limit else None
