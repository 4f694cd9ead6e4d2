"""Damages a file of lines at random.

Lines are removed, repeated, exchanged, cut, changed, or replaced by random bytes. A seed determines the changes.
"""

from __future__ import annotations

import random
import re

from orch_worker.session.log.record_format import seal_lines, unseal_line

__all__ = ["spoilt"]

NAMES = re.compile(rb'"(id|parentId|first|last|holder|turn|query_id|incarnation)":"?[0-9a-f]+"?')


def spoilt(data: bytes, seed: int) -> bytes:
    """Return `data` with some damaged lines. For odd seeds, the numbers and checksums of the lines are valid."""
    luck = random.Random(seed)
    lines = data.splitlines(keepends=True)
    for _ in range(luck.randint(1, 4)):
        at = luck.randrange(1, len(lines))
        other = luck.randrange(1, len(lines))
        match luck.randrange(7):
            case 0 if len(lines) > 4:
                del lines[at : at + luck.randint(1, 3)]
            case 1:
                lines.insert(at, lines[other])
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                lines[at] = _flipped(lines[at], luck)
            case 4:
                lines[at] = lines[at][: luck.randrange(len(lines[at]))]
            case 5:
                lines[at] = luck.randbytes(20) + b"\n"
            case _:
                lines[at] = NAMES.sub(
                    lambda name: b'"%b":"zz"' % name[1] if luck.random() < 0.5 else name[0], lines[at]
                )
        lines = [line for line in lines if line] or lines[:1]
        if len(lines) < 3:
            break
    return b"".join(lines) if seed % 2 == 0 else _sealed(b"".join(lines))


def _flipped(line: bytes, luck: random.Random) -> bytes:
    where, bit = luck.randrange(len(line)), 1 << luck.randrange(8)
    return line[:where] + bytes([line[where] ^ bit]) + line[where + 1 :]


def _sealed(data: bytes) -> bytes:
    """Return `data` with valid numbers and checksums on all lines that have the form of log lines."""
    objects = [sealed.object for line in data.split(b"\n") if (sealed := unseal_line(line)) is not None]
    return seal_lines(objects, 0, 0)[0]
