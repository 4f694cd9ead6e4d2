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

from .lines import MORE, Chain, unseal

__all__ = ["Blocks"]

SIZE: Final = 1 << 16
"""Bytes: few enough that memory is used again, and is near the processor when it is looked at again."""
MOST: Final = 128 << 20
"""Bytes without the end of an append that are left to others."""
CHECK: Final = b',"c":"00000000"}'
DIGITS: Final = 6
"""Where in CHECK its digits begin."""
END: Final = len(CHECK)


class Blocks:
    """Goes through `file` from `offset`, behind `number` lines, with the chain that these made.

    Yields whole appends, as they stand in the file; `offset`, `number` and `chain` are those of what follows. It ends
    where a line is not sound, or its append not there in full.
    """

    def __init__(self, file: BinaryIO, offset: int, number: int, chain: Chain) -> None:
        self._file = file
        self.offset = offset
        self.number = number
        self.chain = chain

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(self.offset)
        rest = b""
        while len(rest) < MOST and (data := self._file.read(max(SIZE, len(rest)))):
            data = rest + data
            stop = _whole(data)
            if stop and not self._take(data[:stop]):
                return
            if stop:
                yield data[:stop]
            rest = data[stop:]

    def _take(self, block: bytes) -> bool:
        """Take `block` in, if all of its lines are sound; return whether they are."""
        sealed = unseal(block[block.rfind(b"\n", 0, -1) + 1 : -1])
        sums, ends = _checked(block, self.chain.checksum)
        if sealed is None or ends != _expected(sums):
            return False
        self.offset += len(block)
        self.number += len(sums)
        self.chain = Chain(sealed.seq, sums[-1])
        return True


def _whole(data: bytes) -> int:
    """Return where the last append ends that `data` has in full, 0 for none."""
    stop = data.rfind(b"\n") + 1
    while stop and data.endswith(MORE, 0, max(0, stop - END - 1)):
        stop = data.rfind(b"\n", 0, stop - 1) + 1
    return stop


def _checked(block: bytes, checksum: int) -> tuple[array[int], bytes]:
    """Return the checksums that the lines of `block` should have, if `checksum` is that before them; and their ends."""
    lines = block.split(b"\n")
    lines.pop()  # what is behind the last of them: nothing
    return array("I", [checksum := crc32(line[:-END], checksum) for line in lines]), b"".join(
        [line[-END:] for line in lines]
    )


def _expected(sums: array[int]) -> bytes:
    """Return how lines end that have these checksums, one after the other."""
    if sys.byteorder == "little":
        sums = sums[:]
        sums.byteswap()
    digits = sums.tobytes().hex().encode()
    ends = bytearray(CHECK * len(sums))
    for place in range(8):
        ends[DIGITS + place :: END] = digits[place::8]
    return bytes(ends)
