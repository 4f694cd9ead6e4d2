"""Convert text to one printable line, and to valid UTF-8. Decode files that a person wrote."""

from __future__ import annotations

import codecs
import re
from typing import Any, Final

__all__ = ["UTF8_MARK", "TextEncodingError", "decode_text", "plain_line", "scrub", "without_mark"]

UTF8_MARK: Final = codecs.BOM_UTF8
"""The byte order mark that some editors write at the beginning of a UTF-8 file."""

_OTHER_MARKS: Final = (
    # The mark of UTF-32 begins with the mark of UTF-16.
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)

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


# --- Files that a person wrote ---


class TextEncodingError(ValueError):
    """The bytes of a file are not UTF-8 text. The message names the encoding or the byte, and what to do.

    `line` is the number of the line with the first invalid byte, 1 for a file in another encoding.
    """

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


def decode_text(data: bytes, *, lossy: bool = False, keep_line_ends: bool = False) -> str:
    r"""Return the text of a file that a person wrote: UTF-8, with or without a byte order mark.

    The mark is left out, and `\r\n` becomes `\n` unless `keep_line_ends` is True. Raise TextEncodingError for UTF-16,
    UTF-32 and invalid UTF-8. If `lossy` is True, never raise: UTF-16 and UTF-32 with a mark are decoded, and invalid
    bytes become U+FFFD.
    """
    if lossy:
        encoding = _marked_encoding(data)
        text = data.decode(encoding, "replace") if encoding else without_mark(data).decode(errors="replace")
    elif encoding := _unmarked_encoding(data):
        raise _foreign_encoding(encoding)
    else:
        try:
            text = without_mark(data).decode()
        except UnicodeDecodeError as error:
            byte, line = error.object[error.start], error.object.count(b"\n", 0, error.start) + 1
            raise TextEncodingError(f"not UTF-8 (byte 0x{byte:02x}): save it as UTF-8", line) from None
    return text if keep_line_ends else text.replace("\r\n", "\n")


def without_mark(data: bytes) -> bytes:
    """Return `data` without the byte order mark of UTF-8. Raise TextEncodingError for the mark of another encoding."""
    if encoding := _marked_encoding(data):
        raise _foreign_encoding(encoding)
    return data.removeprefix(UTF8_MARK)


def _foreign_encoding(encoding: str) -> TextEncodingError:
    return TextEncodingError(f"it is encoded as {encoding}: save it as UTF-8")


def _marked_encoding(data: bytes) -> str:
    """Return the encoding that the byte order mark of `data` names, or "" for UTF-8 and for no mark."""
    return next((name for mark, name in _OTHER_MARKS if data.startswith(mark)), "")


def _unmarked_encoding(data: bytes) -> str:
    """Return the encoding of `data` if it looks like UTF-16 without a mark, otherwise "".

    Such a text usually begins with a character of ASCII, and no text in UTF-8 contains a zero byte.
    """
    return ("UTF-16LE" if data[0] else "UTF-16BE") if len(data) > 1 and data[:2].count(0) == 1 else ""
