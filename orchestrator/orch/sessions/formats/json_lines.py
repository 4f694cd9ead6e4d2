"""Read files with one JSON object per line, including files that end in an incomplete line."""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeAlias

import msgspec

from orch_protocol.core.text import TextEncodingError, scrub, without_mark
from orch_worker.session.entry_codec import DECODE_ERRORS

from .conversation import Reading

__all__ = ["DIALOGUE_KEYS", "Row", "complete_items", "decoded", "lines_of", "rows_of", "text_of_file"]

DIALOGUE_KEYS: Final = ("traj", "messages", "conversation", "history", "trajectory")
"""The keys of a dialogue that can contain its messages."""
_LIST: Final = re.compile(rf"""\s*(?:\{{(?:[^\[]*,)?\s*"(?:{"|".join(DIALOGUE_KEYS)})"\s*:\s*)?\[""")

Row: TypeAlias = tuple[int, dict[str, Any]]
"""A line number, which starts at 1, and the object on that line."""


def text_of_file(data: bytes, reading: Reading) -> bytes:
    """Return `data` without a byte order mark, and without zero bytes at the end.

    A power loss can leave such zero bytes. Raises ForeignFileError for a file in another encoding than UTF-8.
    """
    try:
        data = without_mark(data)
    except TextEncodingError as error:
        raise reading.foreign_error(str(error)) from None
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
    ForeignFileError if no line is an object. A repair replaces bytes that are not text, and leaves out copies of
    messages.
    """
    lines = lines_of(data)
    values = [decoded(line) for _, line in lines]
    if not values or all(value is None for value in values):
        raise reading.foreign_error()
    rows: list[Row] = []
    seen: dict[bytes, int] = {}
    for index, ((number, line), value) in enumerate(zip(lines, values, strict=True)):
        if value is None and reading.repair and isinstance(value := _decoded_text(line), dict):
            reading.add_repair(f"line {number} contains bytes that are not text: they are replaced")
        if isinstance(value, dict):
            if reading.repair and "message" in value and seen.setdefault(line, number) != number:
                reading.add_repair(f"line {number} is a copy of line {seen[line]}: it is left out")
                continue
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


def complete_items(data: bytes, reading: Reading) -> list[Any]:
    """Return the readable items of the damaged JSON document `data`: a list, or an object with a list of messages.

    Return an empty list for other documents. The damaged lines are reported.
    """
    text = data.decode(errors="replace")
    start = _LIST.match(text)
    items: list[Any] = []
    at = start.end() if start else len(text)
    while (separator := _SEPARATOR.match(text, at)) is not None:
        at = separator.end()
        try:
            item, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        items.append(scrub(item))
    else:
        if items:
            reading.add_repair("the file contains bytes that are not text, or ends too early")
        return items
    keys = _item_keys([item for item in items if isinstance(item, dict)])
    whole = True
    while at >= 0:
        try:
            item, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            if whole:
                line = text.count("\n", 0, at) + 1
                reading.add_repair(f"the item that begins on line {line} is damaged: it is left out")
            whole, end = False, at + 1
        else:
            if isinstance(item, dict) and not item.keys().isdisjoint(keys):
                whole = True
                items.append(scrub(item))
        at = text.find("{", end)
    return items


def _item_keys(items: list[dict[str, Any]]) -> frozenset[str]:
    """Return keys of which each item after `items` has one. The values inside an item do not have them."""
    if not items:
        return frozenset({"role", *DIALOGUE_KEYS})
    if all("role" in item for item in items):
        return frozenset({"role"})
    dialogues = frozenset(DIALOGUE_KEYS)
    return frozenset({"role", "type"}) if any(dialogues.isdisjoint(item) for item in items) else dialogues


def _decoded_text(line: bytes) -> Any:
    """Return the JSON value in a line with control characters and bytes that are not UTF-8, or None."""
    try:
        return scrub(_DECODER.decode(line.decode(errors="replace")))
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _integer(digits: str) -> int:
    value = int(digits)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError("an integer beyond 64 bits")
    return value


_SEPARATOR: Final = re.compile(r"[\s,]*(?=[^\s,\]])")
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_int=_integer, strict=False)
