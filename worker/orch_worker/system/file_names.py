r"""Names of files as one line of text, and back: `a\nb` for a newline, `caf\xe9` for a byte that is not UTF-8.

A list of names shows the escaped form, so that a name cannot look like several entries. The tools that open a file
accept this form.
"""

from __future__ import annotations

import os
import re
import unicodedata
from itertools import islice
from typing import Final

from orch_protocol.core.text import scrub

__all__ = ["actual_path", "shown_name"]

MAX_NAMES: Final = 20_000
"""Maximum number of names of a folder that are compared with a name that does not exist."""

_SPECIAL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters
    "\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # line ends and changes of direction
    "\ud800-\udfff]"  # bytes that are not UTF-8
)
_LETTERS: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_ESCAPE: Final = re.compile(r"\\(?:([nrt\\])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|([0-3][0-7]{2}))")
_CHARACTERS: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}


def shown_name(path: str) -> str:
    """Return `path` as one line of printable text.

    A path is returned as it is unless it contains special characters, or a backslash that `actual_path` would read as
    an escape.
    """
    if _SPECIAL.search(path):
        return re.sub(f"{_SPECIAL.pattern}|\\\\", _escaped, path)
    return path.replace("\\", "\\\\") if "\\" in path and _ESCAPE.search(path) else path


def actual_path(folder: str, path: str) -> str:
    """Return `path`, which is relative to `folder`, with the names of existing files as they are on the disk.

    Each part of the path is the first of these names that exists: the name whose `shown_name` is the part, the part
    itself, the part with its escapes replaced, and the only name that differs in the normalization of its characters or
    has bytes that are not UTF-8 where the part has U+FFFD. If none exists, the part stays as it is.
    """
    if path.isascii() and "\\" not in path:
        return path
    parts = path.split("/")
    current = "/" if path.startswith("/") else folder
    for index, part in enumerate(parts):
        parts[index] = _actual_name(current, part)
        current = os.path.join(current, parts[index])
    return "/".join(parts)


def _actual_name(folder: str, part: str) -> str:
    plain = _unescaped(part)
    candidates = (plain, part) if shown_name(plain) == part else (part, plain)
    for name in candidates:
        if _exists(os.path.join(folder, name)):
            return name
    return _similar_name(folder, part)


def _exists(path: str) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:
        return False


def _similar_name(folder: str, part: str) -> str:
    """Return the only name in `folder` that looks like `part`. Return `part` if there is none."""
    if part.isascii():
        return part
    wanted = unicodedata.normalize("NFC", scrub(part))
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name
                for entry in islice(entries, MAX_NAMES)
                if not entry.name.isascii() and wanted in _readable_forms(entry.name)
            ]
    except (OSError, ValueError):
        return part
    return names[0] if len(names) == 1 else part


def _readable_forms(name: str) -> tuple[str, str]:
    """Return `name` with composed accents, and with U+FFFD for each invalid byte or for each invalid sequence."""
    decoded = os.fsencode(name).decode(errors="replace")
    return unicodedata.normalize("NFC", scrub(name)), unicodedata.normalize("NFC", decoded)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character in _LETTERS:
        return _LETTERS[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # This is how Python represents a byte that is not UTF-8.
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


def _unescaped(text: str) -> str:
    """Return `text` with the escapes of `shown_name`, of `repr` and of git replaced."""
    if "\\" not in text:
        return text
    data, end = b"", 0
    for match in _ESCAPE.finditer(text):
        data += _encoded(text[end : match.start()])
        letter, byte, unit, octal = match.groups()
        if letter:
            data += _CHARACTERS[letter]
        elif byte or octal:
            data += bytes([int(byte, 16) if byte else int(octal, 8)])
        else:
            data += _encoded(chr(int(unit, 16)))
        end = match.end()
    return os.fsdecode(data + _encoded(text[end:]))


def _encoded(text: str) -> bytes:
    """Return the bytes of `text`. A surrogate that stands for no byte is a part of no name."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode(errors="replace")
