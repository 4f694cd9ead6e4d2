"""The format of a line in a log, and the checksum chain of the lines. This module does no I/O.

A line is a JSON object with three added keys. `s` is the line number, counted from 1. `m` is 1 if more lines of the
same append follow, and otherwise absent. The last key, `c`, is eight hex digits: the CRC-32 of the line before this
key, seeded with the `c` of the previous line. Removing these keys restores the object byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct

__all__ = [
    "END_BYTES",
    "MAX_LINE_BYTES",
    "UNCHECKED",
    "ChecksumChain",
    "UncheckedLine",
    "seal_lines",
    "sealed_at",
    "unseal_line",
]

MAX_LINE_BYTES: Final = 64 << 20
UNCHECKED: Final = "follows lost lines, so that it cannot be checked"
MORE: Final = b',"m":1'

END_BYTES: Final = 64
"""Number of bytes at the end of a line. `ChecksumChain.after` needs at least these bytes."""

_STATED = re.compile(rb'"c":"([0-9a-f]{8})"')
_END = re.compile(rb'"s":([0-9]{1,18})(?:,"m":1)?,"c":"([0-9a-f]{8})"}\n\Z')


class UncheckedLine(Struct, frozen=True, gc=False):
    """A parsed line whose checksum is not verified yet.

    `body` is the part that the checksum covers. `end` is the end of the original object in `body`. `stated` is the
    checksum that the line contains.
    """

    body: bytes
    end: int
    seq: int
    stated: bytes
    more: bool

    @property
    def object(self) -> bytes:
        """The original object."""
        return self.body[: self.end] + b"}"

    @property
    def checksum(self) -> int:
        """The checksum that the line contains."""
        return int(self.stated, 16)

    def fits(self, seed: int) -> bool:
        """Return whether the line's checksum is correct. `seed` is the checksum of the previous line."""
        return b"%08x" % crc32(self.body, seed) == self.stated


def seal_lines(objects: Sequence[bytes], seq: int, checksum: int, *, more: bool = False) -> tuple[bytes, int, int]:
    """Return the lines for `objects`, and the number and checksum of the last line.

    `seq` and `checksum` are the number and checksum of the previous line. `more` is True if further lines of the same
    append follow.
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
    """Return the parsed `line` (without its newline). Return None if the line does not have this format."""
    at = sealed_at(line, 0, len(line))
    if at < 0:
        return None
    body = line[:-16]
    more = body.endswith(MORE)
    return UncheckedLine(body, at, int(body[at + 5 : len(body) - len(MORE) * more]), line[-10:-2], more)


def sealed_at(data: bytes, start: int, stop: int) -> int:
    """Return the position of the added keys in a line. The line is the part of `data` from `start` to `stop`.

    Return -1 if there are no such keys.

    The line is not copied, because copying a long line takes longer than the search.
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
    """Verifies a file line by line, and continues after damaged lines.

    `seq` and `checksum` are the number and checksum of the last undamaged line.
    """

    def __init__(self, seq: int = 0, checksum: int = 0) -> None:
        self.seq = seq
        self.checksum = checksum
        self._seeds: tuple[int, ...] = (checksum,)
        self._expected = seq + 1

    @classmethod
    def after(cls, before: bytes) -> ChecksumChain:
        """Return the chain that continues after `before`, which is the end of the previous line with its newline."""
        stated = _END.search(before)
        return cls(int(stated[1]), int(stated[2], 16)) if stated else cls()

    def check_line(self, line: bytes, sealed: UncheckedLine | None) -> tuple[bool, str]:
        """Return whether `line` is undamaged, and a remark, which is usually "".

        `sealed` is the parsed line, or None if `line` does not have this format.
        """
        if sealed is None:
            self._suspect(_STATED.findall(line[-40:]))
            return False, "not in the format of orch"
        for seed in self._seeds:
            if sealed.fits(seed):
                self._accept(sealed)
                return True, ""
        # If the previous line is known, a wrong checksum means that this line is damaged. After lost lines, the
        # checksum cannot be verified. In this case, accept the line, because rejecting it would lose more.
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
        # The next line may continue the damaged line. If the damaged line was inserted from elsewhere, the next line
        # may continue the last undamaged line.
        self._seeds = tuple(dict.fromkeys([self.checksum, *(int(value, 16) for value in stated)]))[:8]


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    return True
