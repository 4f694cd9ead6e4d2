"""The sound beginning of a durable file, a block of lines at a time: each line is checked, none is taken apart.

A checksum goes on where the one of the line before ended, so that those of a block are worked out in a row and compared
as a whole. Where that does not come out even, whoever looks at lines one by one says why.
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
"""Bytes: few enough that memory is used again, and is near the processor when it is looked at again."""
MAX_UNFINISHED_APPEND_BYTES: Final = 128 << 20
"""Bytes without the end of an append that are left to others."""
CHECKSUM_SUFFIX: Final = b',"c":"00000000"}'
CHECKSUM_DIGITS_OFFSET: Final = 6
"""Where in CHECK its digits begin."""
CHECKSUM_SUFFIX_BYTES: Final = len(CHECKSUM_SUFFIX)


class BlockReader:
    """Goes through `file` behind `first`, its first line, with the chain that this one made.

    Yields whole appends, as they stand in the file; `offset`, `number` and `chain` are those of what follows, `sum` is
    the CRC-32 of all before it. It ends where a line is not sound, or its append not there in full. Lines that are
    `known` to be sound are not looked at: whether they are what is known is found out when all of them were yielded.
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
            yield from self._sound(self.known)
        rest = b""
        while len(rest) < MAX_UNFINISHED_APPEND_BYTES and (data := self._file.read(max(BLOCK_BYTES, len(rest)))):
            data = rest + data
            stop = _end_of_last_append(data)
            if stop and not self._take(data[:stop]):
                return
            if stop:
                yield data[:stop]
            rest = data[stop:]

    def _sound(self, known: VerifiedPrefix) -> Iterator[bytes]:
        """Yield the blocks of what is known. Raises Mistaken, behind them all, when that is not so."""
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
        # What is appended goes on from here: a note that was damaged itself is not to spoil it.
        if self.sum != known.sum or not _last_line_matches(last, known):
            raise PrefixMismatchError
        self.number, self.chain = known.seq, ChecksumChain(known.seq, known.checksum)

    def _take(self, block: bytes) -> bool:
        """Take `block` in, if all of its lines are sound; return whether they are."""
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
    """Say whether the last line of `block` has the number and the checksum that are known."""
    sealed = unseal_line(block[block.rfind(b"\n", 0, -1) + 1 : -1])
    return sealed is not None and (sealed.seq, sealed.checksum, sealed.more) == (known.seq, known.checksum, False)


def _end_of_last_append(data: bytes) -> int:
    """Return where the last append ends that `data` has in full, 0 for none."""
    stop = data.rfind(b"\n") + 1
    while stop and data.endswith(MORE, 0, max(0, stop - CHECKSUM_SUFFIX_BYTES - 1)):
        stop = data.rfind(b"\n", 0, stop - 1) + 1
    return stop


def _line_checksums(block: bytes, checksum: int) -> tuple[array[int], bytes]:
    """Return the checksums that the lines of `block` should have, if `checksum` is that before them; and their ends."""
    lines = block.split(b"\n")
    lines.pop()  # what is behind the last of them: nothing
    return array("I", [checksum := crc32(line[:-CHECKSUM_SUFFIX_BYTES], checksum) for line in lines]), b"".join(
        [line[-CHECKSUM_SUFFIX_BYTES:] for line in lines]
    )


def _expected_suffixes(sums: array[int]) -> bytes:
    """Return how lines end that have these checksums, one after the other."""
    if sys.byteorder == "little":
        sums = sums[:]
        sums.byteswap()
    digits = sums.tobytes().hex().encode()
    ends = bytearray(CHECKSUM_SUFFIX * len(sums))
    for place in range(8):
        ends[CHECKSUM_DIGITS_OFFSET + place :: CHECKSUM_SUFFIX_BYTES] = digits[place::8]
    return bytes(ends)
