"""Data about archives in a session file: which messages were archived, and the record that replaces them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from .messages import Message

__all__ = ["ArchiveKind", "ArchiveSource", "Collapse", "RecordUpgrade", "Span"]

ArchiveKind: TypeAlias = Literal["turn", "phase", "era"]
Span: TypeAlias = tuple[int, int]
"""Byte offset and length of whole lines in a session file."""


class Collapse(Struct, frozen=True):
    """The entry of a session that replaces a part of the conversation by `messages`.

    The replaced part is stored in the archive `holder`.

    - `first`, `last`: ids of the first and last replaced entry.
    - `spans`: the lines of the owner's session file that contain the archived messages. The lines include the prompt of
      a turn even if the prompt stays in the conversation.
    - `sha256`: the hash of these lines. An era has no hash, because its members have hashes and each line has a
      checksum.
    - `record`: additional JSON data about the archive.
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
    """The entry of a session that replaces the record of `holder` by the better text `stub`.

    If `at_once` is False, the new text takes effect later: with the next collapse that begins at the record or before
    it. Until then, the provider's prompt cache stays valid.
    """

    holder: str
    stub: str
    at_once: bool = True


class ArchiveSource(Struct, frozen=True):
    """Where a holder reads its archive: the lines `spans` of the session file in `folder`.

    `owner` is the agent of this session. An era is too long to be read at once. The holder of an era sees the records
    of the era's members (`shown`). With each question, the holder also gets the passages that a search finds.
    """

    folder: str
    owner: str
    kind: ArchiveKind
    task: str
    spans: tuple[Span, ...] = ()
    sha256: str = ""
    shown: tuple[Message, ...] = ()
