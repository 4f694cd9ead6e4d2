"""Convert text to one printable line, and to valid UTF-8."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["plain_line", "scrub"]

_SURROGATE = re.compile("[\ud800-\udfff]")


def plain_line(text: str, width: int) -> str:
    """Return `text` as one line of at most `width` printable characters. Cut a longer text at the end.

    Line ends, control characters, bidirectional marks and other characters without a glyph are escaped.
    """
    written = "".join(
        each if each.isprintable() else each.encode("unicode_escape", "backslashreplace").decode()
        for each in text[:width]
    )
    return written if len(written) <= width and len(text) <= width else f"{written[: width - 3]}..."


def scrub(value: Any) -> Any:
    """Return `value` (JSON-like data) with each lone surrogate in its strings replaced by U+FFFD."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {scrub(key): scrub(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    return value
