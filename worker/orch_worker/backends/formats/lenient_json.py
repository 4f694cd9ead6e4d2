"""JSON data of clients that our JSON library or the archives cannot represent.

Servers and other libraries accept it: integers above 64 bits, numbers above the range of a float, halves of UTF-16
surrogate pairs, which clients create when they cut a text, and deep nesting. Values that are read contain its JSON text
in place of it. The bytes that are sent stay the same.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Raw

__all__ = ["decode_lenient", "decode_plain", "split_fields", "split_items"]

MAX_DEPTH: Final = 100
"""Maximum nesting of plain values. Deeper lists and objects become texts."""
MAX_DIGITS: Final = 18
"""Every integer with as many digits has less than 64 bits."""
LONG_NUMBER: Final = re.compile(rb"\d{%d}" % (MAX_DIGITS + 1))
STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
TOKEN: Final = re.compile(STRING + rb"|[\[\]{},]|-?(?:\d[\d.eE+-]*+|Infinity)|NaN", re.DOTALL)
FIELD: Final = re.compile(rb"\s*(" + STRING + rb")\s*:\s*", re.DOTALL)
ESCAPE: Final = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\.", re.DOTALL)
"""A pair of surrogates, a single one as group 1, or another escape."""
DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_items: Final = msgspec.json.Decoder(list[Raw])


def decode_lenient(raw: bytes | Raw) -> Any:
    """Return a JSON value, in which what cannot be decoded is a text. Raises ValueError or msgspec.MsgspecError."""
    try:
        return msgspec.json.decode(raw)
    except DECODE_ERRORS:
        return msgspec.json.decode(_plain(bytes(raw)))


def decode_plain(raw: bytes) -> Any:
    """Return a JSON value that archives can contain: see `decode_lenient`, with integers of 64 bits at most."""
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH or LONG_NUMBER.search(raw):
        return msgspec.json.decode(_plain(raw))
    return decode_lenient(raw)


def split_fields(body: bytes) -> dict[str, bytes]:
    """Return the bytes of each field of a JSON object. Raises ValueError or msgspec.MsgspecError."""
    try:
        return {name: bytes(raw) for name, raw in _fields.decode(body).items()}
    except DECODE_ERRORS:
        _fields.decode(_plain(body))
    found = {}
    for each in _split(body):
        if field := FIELD.match(each):
            found[str(decode_lenient(field[1]))] = each[field.end() :].rstrip()
    return found


def split_items(raw: bytes | Raw) -> list[bytes]:
    """Return the bytes of each item of a JSON list. Raises ValueError or msgspec.MsgspecError."""
    try:
        return [bytes(item) for item in _items.decode(raw)]
    except DECODE_ERRORS:
        _items.decode(_plain(bytes(raw)))
    return [each.strip() for each in _split(bytes(raw)) if each.strip()]


def _plain(raw: bytes) -> bytes:
    """Return JSON that can be decoded. Tokens are replaced, so the depth of the nesting is not limited."""
    raw = raw.decode(errors="replace").encode()
    result = []
    depth = done = 0
    for match in TOKEN.finditer(raw):
        token = match[0]
        start, new = match.start(), token
        if token in (b"[", b"{"):
            depth += 1
            if depth == MAX_DEPTH + 1:
                result.append(raw[done:start])
                done = start
        elif token in (b"]", b"}"):
            depth -= 1
            if depth == MAX_DEPTH:
                start, new = done, msgspec.json.encode(raw[done : match.end()].decode())
        elif depth <= MAX_DEPTH and token != b",":
            new = _plain_token(token)
        if new is not token:
            result += [raw[done:start], new]
            done = match.end()
    return b"".join([*result, raw[done:]])


def _plain_token(token: bytes) -> bytes:
    """Return a string or a number as JSON that can be decoded; `token` itself if it can be."""
    if token.startswith(b'"'):
        return ESCAPE.sub(_escaped, token) if b"\\u" in token else token
    digits = token.lstrip(b"-")
    if digits.isdigit():
        return token if len(digits) <= MAX_DIGITS else b'"' + token + b'"'
    try:
        is_finite = abs(float(token)) != float("inf") and token != b"NaN"
    except ValueError:
        return token
    return token if is_finite else b'"' + token + b'"'


def _escaped(escape: re.Match[bytes]) -> bytes:
    return b"\\" + escape[0] if escape[1] else escape[0]


def _split(raw: bytes) -> list[bytes]:
    """Return the bytes between the commas of a list or object."""
    parts = []
    depth = start = 0
    for match in TOKEN.finditer(raw):
        token = match[0]
        if token in (b"[", b"{"):
            depth += 1
            if depth == 1:
                start = match.end()
        elif token in (b"]", b"}", b","):
            if depth == 1:
                parts.append(raw[start : match.start()])
                start = match.end()
            depth -= token != b","
    return parts
