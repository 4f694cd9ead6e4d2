"""What it says on record when a part of a conversation goes to a holder."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from .messages import Message

__all__ = ["ArchiveKind", "ArchiveSource", "Collapse", "RecordUpgrade", "Span"]

ArchiveKind: TypeAlias = Literal["turn", "phase", "era"]
Span: TypeAlias = tuple[int, int]
"""Offset and length, in bytes, of whole lines in a session file."""


class Collapse(Struct, frozen=True):
    """A part of a conversation is `holder`'s now, and `messages` stand in its place.

    The part is everything from the entry `first` to the entry `last` that the conversation still shows. What the holder
    consists of are the messages on the lines `spans` of the owner's file, which hash to `sha256`; the prompt of a turn
    is among them, whether it leaves the conversation or not. An era has no hash: its members have theirs, and each line
    has a checksum. `record` is what else is known of it, as JSON data.
    """

    holder: str
    kind: ArchiveKind
    task: str
    first: str
    last: str
    messages: tuple[Message, ...]
    spans: tuple[Span, ...]
    sha256: str
    record: dict[str, Any] = {}


class RecordUpgrade(Struct, frozen=True):
    """`stub` is a better text for what stands in `holder`'s place.

    Not `at_once`, it is used from the next collapse at or before that place on: until then what a provider has cached
    of the conversation is worth more.
    """

    holder: str
    stub: str
    at_once: bool = True


class ArchiveSource(Struct, frozen=True):
    """Where a holder finds what it holds: the lines `spans` of the session file in `folder`, of its agent `owner`.

    An era holds more than anybody reads at once: it is shown the records of its members, `shown`, and with each
    question the passages that a search finds.
    """

    folder: str
    owner: str
    kind: ArchiveKind
    task: str
    spans: tuple[Span, ...] = ()
    sha256: str = ""
    shown: tuple[Message, ...] = ()
