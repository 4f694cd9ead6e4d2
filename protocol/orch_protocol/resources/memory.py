"""Memory: notes that agents keep across conversations."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from ..core.taint import TaintLabel

__all__ = ["MemoryConfig", "MemorySpec", "Note", "NoteSource"]

Chars = Annotated[int, Meta(ge=100, le=10_000_000)]
NoteSource: TypeAlias = Literal["agent", "compaction", "user"]
"""The author of a note: an agent, the model that summarized the agent's conversation, or a user."""


class Note(Struct, frozen=True, omit_defaults=True):
    """A note: its text, the agent that wrote it, and the query (`turn`) in which it was written.

    `at` is ISO 8601 UTC. `marks` are the taint labels of the conversation.
    """

    id: str
    text: str
    at: str
    source: NoteSource = "agent"
    agent: str = ""
    turn: str = ""
    marks: tuple[TaintLabel, ...] = ()


class MemoryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the memory."""

    enabled: bool = False
    provider: str = "file"
    """The storage of notes: `file`, or `package.module:make`. orch calls the function `make` with a MemorySpec."""
    tokens: Annotated[int, Meta(ge=0, le=1_000_000)] = 1_000
    """Maximum tokens of notes in each request. The most relevant notes come first."""
    note_chars: Chars = 2_000
    """Maximum length of a note."""
    total_chars: Chars = 100_000
    """Maximum length of all notes of a folder together. Beyond this length, orch deletes the oldest notes."""
    flush: bool = True
    """Let the model write notes before its conversation is compacted."""


class MemorySpec(Struct, frozen=True):
    """The memory of one agent: notes in `folder`, stored by `provider`."""

    folder: str
    provider: str = "file"
    tokens: int = 1_000
    note_chars: int = 2_000
    total_chars: int = 100_000
    flush: bool = True
