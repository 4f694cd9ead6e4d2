"""The JSON form of session entries: encoding, decoding, and the first bytes that identify a kind of entry.

This module does no I/O.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Image, Text, Thinking, ToolResult, Usage
from orch_protocol.core.text import scrub
from orch_protocol.session.entries import (
    AnyMessageEntry,
    Checkout,
    Entry,
    Label,
    MessageEntry,
    ModelChange,
    PlanApproved,
    SessionHeader,
    SessionInfo,
    TaintEntry,
    TasksEntry,
    ThinkingLevelChange,
    TurnEndEntry,
    TurnStartEntry,
    UpgradeEntry,
)

__all__ = [
    "DECODE_ERRORS",
    "ENTRY_PREFIXES",
    "HEADER_PREFIX",
    "MESSAGE_PREFIXES",
    "SESSION_HEADER",
    "EntryTurn",
    "UnknownEntry",
    "decode_entry",
    "decode_lines",
    "decode_link",
    "decode_turn",
    "encode_entry",
    "encode_json",
    "line_prefixes",
    "read_back",
    "read_entry",
    "timestamp",
]

DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError)
"""The exceptions of decoding a line that is not an entry known to this version."""
_ENCODE_ERRORS: Final = (*DECODE_ERRORS, TypeError, ValueError, NotImplementedError)


class UnknownEntry(Struct, frozen=True, rename="camel"):
    """An entry without its content, but with its place in the tree.

    The type is unknown, or the content is not needed.
    """

    id: str
    parent_id: str | None = None
    type: str = ""


class EntryTurn(Struct, gc=False):
    """The turn of an entry, its usage, and the time at which its content was deleted ("" if not). All may be absent."""

    turn: str = ""
    usage: Usage | None = None
    deleted: str = ""


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)
_link_decoder = msgspec.json.Decoder(UnknownEntry)
_turn_decoder = msgspec.json.Decoder(EntryTurn)


def line_prefixes(kinds: object) -> tuple[bytes, ...]:
    """Return the first bytes of lines whose entries have one of the types in `kinds`. `kinds` is a union or a type."""
    return tuple(b'{"type":"%b"' % kind.__struct_config__.tag.encode() for kind in get_args(kinds) or (kinds,))


MESSAGE_PREFIXES: Final = line_prefixes(AnyMessageEntry)
ENTRY_PREFIXES: Final = line_prefixes(Entry)
HEADER_PREFIX: Final = line_prefixes(SessionHeader)
SESSION_HEADER: Final = _encoder.encode(SessionHeader(id="", timestamp="", cwd=""))
"""An encoded header that begins like the header of every session file.

`log_reader.load` compares this header with the file.
"""


_EXACT_BLOCKS: Final = frozenset({Text, Thinking, Image, ToolResult})
_EXACT_ENTRIES: Final = frozenset(
    {
        TurnStartEntry,
        UpgradeEntry,
        PlanApproved,
        TasksEntry,
        TaintEntry,
        Checkout,
        Label,
        SessionInfo,
        ModelChange,
        ThinkingLevelChange,
    }
)


def encode_json(value: Any) -> bytes:
    """Return `value`, an entry or JSON data, as JSON, with lone surrogates replaced by U+FFFD.

    Raise StoreError if `value` cannot be encoded.
    """
    try:
        try:
            return _encoder.encode(value)
        except UnicodeEncodeError:
            return _encoder.encode(scrub(msgspec.to_builtins(value)))
    except _ENCODE_ERRORS as error:
        raise StoreError(f"cannot record a {type(value).__name__}: {error}") from error


def encode_entry(entry: Entry) -> tuple[bytes, Entry]:
    """Return the line for `entry`, and the entry that a reader gets from this line.

    If `entry` contains JSON data, or if the result may differ from `entry`, the line is decoded. Otherwise `entry` is
    returned. The session needs a copy of JSON data. Raise StoreError if `entry` cannot be encoded, or if its line
    cannot be decoded.
    """
    try:
        line = _encoder.encode(entry)
    except _ENCODE_ERRORS:
        line = encode_json(entry)
        return line, read_back(line)
    return line, entry if _is_exact(entry) else read_back(line)


def _is_exact(entry: Entry) -> bool:
    """Return whether `entry` is immutable and equals the entry that a reader gets from its line.

    Only JSON data is mutable. Of the typed fields, only floats that are not finite change when they are encoded.
    """
    if isinstance(entry, MessageEntry):
        if entry.origin is not None or not (entry.usage is None or _is_finite(entry.usage)):
            return False
        for block in entry.message.content:  # noqa: SIM110 - a generator takes 0.3 us, which is 3 % of an append
            if type(block) not in _EXACT_BLOCKS:
                return False
        return True
    if isinstance(entry, TurnEndEntry):
        return _is_finite(entry.reply.usage)
    return type(entry) in _EXACT_ENTRIES


def _is_finite(usage: Usage) -> bool:
    return isfinite(usage.cost_usd + usage.tool_seconds + usage.ceiling_usd)


def read_back(line: bytes) -> Entry:
    """Return the entry on `line`, which this version encoded. Raise StoreError if the line cannot be decoded."""
    try:
        return _decoder.decode(line)
    except DECODE_ERRORS as error:
        raise StoreError(f"cannot record an entry that could not be decoded again: {error}: {line[:80]!r}") from error


def read_entry(line: bytes) -> Entry:
    """Return the entry on `line`. Raise one of DECODE_ERRORS for a type or format that this version does not know."""
    return _decoder.decode(line)


def decode_entry(line: bytes) -> Entry | UnknownEntry | None:
    """Return the entry on `line`.

    If this version does not know the content, return the entry's place in the tree. Return None for an entry without a
    place.
    """
    try:
        return _decoder.decode(line)
    except DECODE_ERRORS:
        return decode_link(line)


def decode_link(line: bytes) -> UnknownEntry | None:
    """Return the place of an entry in the tree, without decoding the entry's content.

    Return None if the line names no place.
    """
    try:
        return _link_decoder.decode(line)
    except DECODE_ERRORS:
        return None


def decode_turn(line: bytes) -> EntryTurn:
    """Return the turn of the entry on `line` without decoding the content of the entry. Raises DECODE_ERRORS."""
    return _turn_decoder.decode(line)


def decode_lines(lines: bytes) -> Sequence[Entry | UnknownEntry]:
    """Return the entries on `lines`. The result is the same as that of `decode_entry` for each line."""
    try:
        return _decoder.decode_lines(lines)
    except DECODE_ERRORS:  # One of the entries has a type that this version does not know.
        return [entry for line in lines.split(b"\n") if (entry := decode_entry(line)) is not None]


def timestamp() -> str:
    """Return the current UTC time in ISO 8601 format with milliseconds."""
    milliseconds = time.time_ns() // 1_000_000
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=1)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
