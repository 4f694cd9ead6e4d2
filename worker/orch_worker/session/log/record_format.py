"""The shape of a line in a durable file, and the chain that lines make. No I/O.

A line is a JSON object to which three keys are added: `s` (its number in the file, from 1), `m` (1 while more lines of
the same append follow, else absent) and, last, `c` (eight hex digits: the CRC-32 of all before it on the line, seeded
with the `c` of the line before). What was added is taken off again byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct

__all__ = ["END_BYTES", "UNCHECKED", "ChecksumChain", "UncheckedLine", "seal_lines", "sealed_at", "unseal_line"]

UNCHECKED: Final = "follows lost lines, so that it cannot be checked"
MORE: Final = b',"m":1'

END_BYTES: Final = 64
"""So much of a line's end is enough for `Chain.after`."""

_STATED = re.compile(rb'"c":"([0-9a-f]{8})"')
_END = re.compile(rb'"s":([0-9]{1,18})(?:,"m":1)?,"c":"([0-9a-f]{8})"}\n\Z')


class UncheckedLine(Struct, frozen=True, gc=False):
    """A line of our shape, its checksum not yet looked at.

    `body` is what the checksum covers, `end` where the object's own bytes end in it, `stated` the checksum as written.
    """

    body: bytes
    end: int
    seq: int
    stated: bytes
    more: bool

    @property
    def object(self) -> bytes:
        """The object as it was appended."""
        return self.body[: self.end] + b"}"

    @property
    def checksum(self) -> int:
        """The checksum the line states."""
        return int(self.stated, 16)

    def fits(self, seed: int) -> bool:
        """Whether the line is whole, if `seed` is the checksum of the line before it."""
        return b"%08x" % crc32(self.body, seed) == self.stated


def seal_lines(objects: Sequence[bytes], seq: int, checksum: int, *, more: bool = False) -> tuple[bytes, int, int]:
    """Return lines for `objects`, to follow the line with `seq` and `checksum`; and those of the last of them.

    `more` says that the append they belong to goes on behind them.
    """
    lines = []
    last = seq + len(objects)
    for object in objects:
        seq += 1
        body = b'%b,"s":%d%b' % (object[:-1], seq, MORE if more or seq < last else b"")
        checksum = crc32(body, checksum)
        lines.append(b'%b,"c":"%08x"}\n' % (body, checksum))
    return b"".join(lines), seq, checksum


def unseal_line(line: bytes) -> UncheckedLine | None:
    """Return `line` (without its newline) taken apart, or None when it is not of our shape."""
    at = sealed_at(line, 0, len(line))
    if at < 0:
        return None
    body = line[:-16]
    more = body.endswith(MORE)
    return UncheckedLine(body, at, int(body[at + 5 : len(body) - len(MORE) * more]), line[-10:-2], more)


def sealed_at(data: bytes, start: int, stop: int) -> int:
    """Return where in `data` the keys begin that were added to the line from `start` to `stop`; -1 if it is not ours.

    Nothing is copied: a long line takes longer to copy than to read.
    """
    if (
        data[stop - 16 : stop - 10] != b',"c":"'
        or data[stop - 2 : stop] != b'"}'
        or data[start : start + 1] != b"{"
        or not _STATED.fullmatch(data, stop - 15, stop - 1)
    ):
        return -1
    end = stop - 16
    if data.endswith(MORE, start, end):
        end -= len(MORE)
    at = data.rfind(b',"s":', max(start, end - 24), end)
    return at if at > start and data[at + 5 : end].isdigit() else -1


class ChecksumChain:
    """Follows a file line by line: which line is good, and what the next one's checksum may be seeded with.

    `seq` and `checksum` are those of the last good line.
    """

    def __init__(self, seq: int = 0, checksum: int = 0) -> None:
        self.seq = seq
        self.checksum = checksum
        self._seeds: tuple[int, ...] = (checksum,)
        self._expected = seq + 1

    @classmethod
    def after(cls, before: bytes) -> ChecksumChain:
        """Return the chain that goes on behind `before`, the end of the line before (its newline included)."""
        stated = _END.search(before)
        return cls(int(stated[1]), int(stated[2], 16)) if stated else cls()

    def take(self, line: bytes, sealed: UncheckedLine | None) -> tuple[bool, str]:
        """Return whether `line`, taken apart by `unseal_line` as `sealed`, is good; and a note about it, mostly ""."""
        if sealed is None:
            self._suspect(_STATED.findall(line[-40:]))
            return False, "not a line of ours"
        for seed in self._seeds:
            if sealed.fits(seed):
                self._accept(sealed)
                return True, ""
        # When the line before is known, a wrong checksum is this line's own fault. When lines are lost in between,
        # nothing is left to check this one against, and hiding it would lose more than showing it.
        known = sealed.seq == self._expected
        if known or sealed.seq <= self.seq or not _is_json(line):
            self._suspect([sealed.stated, *(b"%08x" % crc32(sealed.body, seed) for seed in self._seeds)])
            self._expected += known
            return False, "its checksum does not match"
        self._accept(sealed)
        return True, UNCHECKED

    def _accept(self, sealed: UncheckedLine) -> None:
        self.seq, self.checksum = sealed.seq, sealed.checksum
        self._seeds, self._expected = (self.checksum,), sealed.seq + 1

    def _suspect(self, stated: list[bytes]) -> None:
        # The next line may follow the bad one or, where that was put in from elsewhere, the last good one.
        self._seeds = tuple(dict.fromkeys([self.checksum, *(int(value, 16) for value in stated)]))[:8]


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    return True
