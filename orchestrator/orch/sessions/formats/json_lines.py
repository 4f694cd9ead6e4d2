"""Read files with one JSON object per line, including files that end in an incomplete line."""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

import msgspec

from orch_protocol.core.text import scrub
from orch_worker.session.entry_codec import DECODE_ERRORS

from .conversation import Reading

__all__ = ["Row", "decoded", "lines_of", "rows_of", "text_of_file"]

BOM: Final = b"\xef\xbb\xbf"

Row: TypeAlias = tuple[int, dict[str, Any]]
"""A line number, which starts at 1, and the object on that line."""


def text_of_file(data: bytes, reading: Reading) -> bytes:
    """Return `data` without a byte order mark, and without zero bytes at the end.

    A power loss can leave such zero bytes.
    """
    data = data.removeprefix(BOM)
    trimmed = data.rstrip(b"\0")
    if len(trimmed) < len(data) and trimmed:
        reading.add_repair(f"{len(data) - len(trimmed)} zero bytes at the end, which a power loss can cause: left out")
    return trimmed


def lines_of(data: bytes) -> list[tuple[int, bytes]]:
    r"""Return the non-blank lines of `data` with their numbers. Line ends are \n or \r\n."""
    split = ((number, line.removesuffix(b"\r")) for number, line in enumerate(data.split(b"\n"), 1))
    return [(number, line) for number, line in split if line.strip()]


def rows_of(data: bytes, reading: Reading) -> list[Row]:
    """Return the objects on the lines of `data`.

    An incomplete last line is left out and reported. Raises DamagedError for a line that is not an object. Raises
    ForeignFileError if no line is an object.
    """
    lines = lines_of(data)
    values = [decoded(line) for _, line in lines]
    if not values or all(value is None for value in values):
        raise reading.foreign_error()
    rows: list[Row] = []
    for index, ((number, line), value) in enumerate(zip(lines, values, strict=True)):
        if isinstance(value, dict):
            rows.append((number, value))
        elif index == len(lines) - 1 and index and not data.endswith(b"\n") and value is None:
            reading.add_repair(f"line {number} is the beginning of a line that was never finished: left out")
        elif value is not None and not reading.repair:
            raise reading.foreign_error(f"line {number} is not an object: {line[:40]!r}")
        else:
            reading.handle_fault(number, f"is not a JSON object ({line[:40]!r})", "it is left out")
    if not rows:
        raise reading.foreign_error()
    return rows


def decoded(text: bytes) -> Any:
    """Return the JSON value in `text`. Return None if `text` is not valid JSON.

    Lone surrogates are replaced, because UTF-8 cannot encode them.
    """
    try:
        return msgspec.json.decode(text)
    except DECODE_ERRORS:
        pass
    if b"\\u" not in text:
        return None
    try:
        # JavaScript reads and writes lone surrogates.
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
