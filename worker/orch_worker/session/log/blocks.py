"""Reads the undamaged beginning of a log in blocks of lines. Checksums are verified without parsing the lines.

The checksum of a line continues the checksum of the previous line. Therefore, the checksums of a block are computed one
after the other and then compared together. If the checksums differ, the caller checks the lines one by one.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import BinaryIO, Final
from zlib import crc32

from .record_format import MORE, ChecksumChain, unseal_line
from .verified_prefix import PrefixMismatchError, VerifiedPrefix

__all__ = ["BlockReader"]

BLOCK_BYTES: Final = 1 << 16
"""Block size in bytes. A block of this size stays in the processor's cache."""
MAX_UNFINISHED_APPEND_BYTES: Final = 128 << 20
"""If an append does not end within this number of bytes, the reader stops."""
CHECKSUM_SUFFIX: Final = b',"c":"00000000"}'
CHECKSUM_DIGITS_OFFSET: Final = 6
"""Offset of the digits in CHECKSUM_SUFFIX."""
CHECKSUM_SUFFIX_BYTES: Final = len(CHECKSUM_SUFFIX)


class BlockReader:
    """Reads `file` after its first line, `first`. `chain` is the checksum chain after the first line.

    The reader yields blocks of complete appends. `offset`, `number` and `chain` describe the next line. `sum` is the
    CRC-32 of all bytes before the next line. The reader stops at a damaged line or an incomplete append. The reader
    does not check each line of the `known` prefix. At the end of the prefix, the reader compares the CRC-32 of all
    these lines.
    """

    def __init__(self, file: BinaryIO, first: bytes, chain: ChecksumChain, known: VerifiedPrefix | None = None) -> None:
        self._file = file
        self.offset = len(first)
        self.number = 1
        self.chain = chain
        self.sum = crc32(first)
        self.known = known

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(self.offset)
        if self.known is not None:
            yield from self._prefix_blocks(self.known)
        rest = b""
        while len(rest) < MAX_UNFINISHED_APPEND_BYTES and (data := self._file.read(max(BLOCK_BYTES, len(rest)))):
            data = rest + data
            stop = _end_of_last_append(data)
            if stop and not self._advance(data[:stop]):
                return
            if stop:
                yield data[:stop]
            rest = data[stop:]

    def _prefix_blocks(self, known: VerifiedPrefix) -> Iterator[bytes]:
        """Yield the blocks of the known prefix.

        At the end of the prefix, raise PrefixMismatchError if the CRC-32 differs.
        """
        last = b""
        while (left := known.end - self.offset) > 0:
            block = (
                self._file.read(BLOCK_BYTES) + self._file.readline() if left > BLOCK_BYTES else self._file.read(left)
            )
            self.offset += len(block)
            self.sum = crc32(block, self.sum)
            if not block or self.offset > known.end:
                raise PrefixMismatchError
            yield block
            last = block
        # Appends continue from here, so an invalid prefix file must not be trusted.
        if self.sum != known.sum or not _last_line_matches(last, known):
            raise PrefixMismatchError
        self.number, self.chain = known.seq, ChecksumChain(known.seq, known.checksum)

    def _advance(self, block: bytes) -> bool:
        """Verify `block` and advance. Return False if a line is damaged."""
        sealed = unseal_line(block[block.rfind(b"\n", 0, -1) + 1 : -1])
        sums, ends = _line_checksums(block, self.chain.checksum)
        if sealed is None or ends != _expected_suffixes(sums):
            return False
        self.offset += len(block)
        self.sum = crc32(block, self.sum)
        self.number += len(sums)
        self.chain = ChecksumChain(sealed.seq, sums[-1])
        return True


def _last_line_matches(block: bytes, known: VerifiedPrefix) -> bool:
    """Return whether the last line of `block` has the known number and checksum."""
    sealed = unseal_line(block[block.rfind(b"\n", 0, -1) + 1 : -1])
    return sealed is not None and (sealed.seq, sealed.checksum, sealed.more) == (known.seq, known.checksum, False)


def _end_of_last_append(data: bytes) -> int:
    """Return the end of the last complete append in `data`, or 0."""
    stop = data.rfind(b"\n") + 1
    while stop and data.endswith(MORE, 0, max(0, stop - CHECKSUM_SUFFIX_BYTES - 1)):
        stop = data.rfind(b"\n", 0, stop - 1) + 1
    return stop


def _line_checksums(block: bytes, checksum: int) -> tuple[array[int], bytes]:
    """Return the correct checksums of the lines of `block`, computed from `checksum`, and the actual ends of
    the lines.
    """
    lines = block.split(b"\n")
    lines.pop()  # This is the empty string after the last newline.
    return array("I", [checksum := crc32(line[:-CHECKSUM_SUFFIX_BYTES], checksum) for line in lines]), b"".join(
        [line[-CHECKSUM_SUFFIX_BYTES:] for line in lines]
    )


def _expected_suffixes(sums: array[int]) -> bytes:
    """Return the concatenated line ends that contain these checksums."""
    if sys.byteorder == "little":
        sums = sums[:]
        sums.byteswap()
    digits = sums.tobytes().hex().encode()
    ends = bytearray(CHECKSUM_SUFFIX * len(sums))
    for place in range(8):
        ends[CHECKSUM_DIGITS_OFFSET + place :: CHECKSUM_SUFFIX_BYTES] = digits[place::8]
    return bytes(ends)
