"""Append-only files to test on: what is in them, by the log and without it."""

from __future__ import annotations

import json
from pathlib import Path

from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.record_format import seal_lines

__all__ = ["HEADER", "encoded", "sealed", "written"]

HEADER = b'{"type":"test","version":1}'


def encoded(number: int, text: str = "x") -> bytes:
    """Return an object as an encoder would."""
    return json.dumps({"n": number, "text": text}, separators=(",", ":")).encode()


def written(path: Path, *appends: tuple[bytes, ...]) -> bytes:
    """Return the bytes of a file at `path` with these appends behind its header."""
    log, _ = AppendLog.open(path, header=HEADER)
    for objects in appends:
        log.append(*objects)
    log.close()
    return path.read_bytes()


def sealed(*appends: tuple[bytes, ...]) -> bytes:
    """Return what `written` does, without a file."""
    data, seq, checksum = seal_lines([HEADER], 0, 0)
    for objects in appends:
        lines, seq, checksum = seal_lines(objects, seq, checksum)
        data += lines
    return data
