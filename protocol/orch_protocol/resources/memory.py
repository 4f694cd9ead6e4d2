"""What agents remember from one conversation to the next, as data."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from ..core.taint import TaintLabel

__all__ = ["MemoryConfig", "MemorySpec", "Note", "NoteSource"]

Chars = Annotated[int, Meta(ge=100, le=10_000_000)]
NoteSource: TypeAlias = Literal["agent", "compaction", "user"]
"""Who wrote a note: an agent, when it thought of it; the model that summarised its conversation; a person."""


class Note(Struct, frozen=True, omit_defaults=True):
    """Something to remember, as text, and where it is from: the `agent` and the query (`turn`) that it was written in.

    `at` is when, ISO 8601 UTC. `marks` are those of the conversation that it is from, see `orch_protocol.core.taint`.
    """

    id: str
    text: str
    at: str
    source: NoteSource = "agent"
    agent: str = ""
    turn: str = ""
    marks: tuple[TaintLabel, ...] = ()


class MemoryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether agents remember, and how much."""

    enabled: bool = False
    provider: str = "file"
    """What keeps the notes: `file`, or `package.module:make`, which is called with a MemorySpec."""
    tokens: Annotated[int, Meta(ge=0, le=1_000_000)] = 1_000
    """What of it each request is told at most, by relevance."""
    note_chars: Chars = 2_000
    """How long a note may be."""
    total_chars: Chars = 100_000
    """How long all notes of a folder may be together; then the oldest give way."""
    flush: bool = True
    """Before a conversation is compacted, let its model write down what is worth knowing in others."""


class MemorySpec(Struct, frozen=True):
    """What one agent remembers: the notes in `folder`, by `provider`, as its configuration says."""

    folder: str
    provider: str = "file"
    tokens: int = 1_000
    note_chars: int = 2_000
    total_chars: int = 100_000
    flush: bool = True
