"""A file as lines of JSON objects: what is at the end of one that was cut off, and what is wrong within."""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

import msgspec

from orch_protocol.core.text import scrub

from .conversation import DECODE_ERRORS, Reading

__all__ = ["Row", "decoded", "lines_of", "rows_of", "text_of_file"]

BOM: Final = b"\xef\xbb\xbf"

Row: TypeAlias = tuple[int, dict[str, Any]]
"""A line's number, from 1, and the object on it."""


def text_of_file(data: bytes, reading: Reading) -> bytes:
    """Return `data` without a byte order mark, and without the zeros that a loss of power leaves at the end."""
    data = data.removeprefix(BOM)
    whole = data.rstrip(b"\0")
    if len(whole) < len(data) and whole:
        reading.mended(f"{len(data) - len(whole)} zero bytes at the end, as a loss of power leaves them: left out")
    return whole


def lines_of(data: bytes) -> list[tuple[int, bytes]]:
    """Return the lines of `data` that are not blank, with their numbers. What they end with is \\n, or \\r\\n."""
    split = ((number, line.removesuffix(b"\r")) for number, line in enumerate(data.split(b"\n"), 1))
    return [(number, line) for number, line in split if line.strip()]


def rows_of(data: bytes, reading: Reading) -> list[Row]:
    """Return the objects on the lines of `data`. What was being written when the writer ended is left out, reported.

    Raises DamagedError for a line that is none, ForeignFileError when hardly any is one.
    """
    lines = lines_of(data)
    values = [decoded(line) for _, line in lines]
    if not values or all(value is None for value in values):
        raise reading.foreign()
    rows: list[Row] = []
    for place, ((number, line), value) in enumerate(zip(lines, values, strict=True)):
        if isinstance(value, dict):
            rows.append((number, value))
        elif place == len(lines) - 1 and place and not data.endswith(b"\n") and value is None:
            reading.mended(f"line {number} is the beginning of a line that was never finished: left out")
        elif value is not None and not reading.repair:
            raise reading.foreign(f"line {number} is not an object: {line[:40]!r}")
        else:
            reading.fault(number, f"is not a JSON object ({line[:40]!r})", "it is left out")
    if not rows:
        raise reading.foreign()
    return rows


def decoded(text: bytes) -> Any:
    """Return the JSON value `text` is, None when it is none. A lone surrogate in it, which no UTF-8 carries, is
    replaced."""
    try:
        return msgspec.json.decode(text)
    except DECODE_ERRORS:
        pass
    if b"\\u" not in text:
        return None
    try:
        # JavaScript writes one half of a character that was cut in two, and reads it again.
        return scrub(json.loads(text, parse_constant=_refuse, parse_int=_integer))
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _integer(digits: str) -> int:
    value = int(digits)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError("an integer beyond 64 bits")
    return value
