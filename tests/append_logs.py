"""Append-only files for tests, and their contents with and without the log classes."""

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
    """Write a file at `path` that has these appends after its header. Return the bytes of the file."""
    log, _ = AppendLog.open(path, header=HEADER)
    for objects in appends:
        log.append(*objects)
    log.close()
    return path.read_bytes()


def sealed(*appends: tuple[bytes, ...]) -> bytes:
    """Return the bytes that `written` returns, without writing a file."""
    data, seq, checksum = seal_lines([HEADER], 0, 0)
    for objects in appends:
        lines, seq, checksum = seal_lines(objects, seq, checksum)
        data += lines
    return data
