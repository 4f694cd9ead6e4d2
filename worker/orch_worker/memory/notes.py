"""What agents remember from one conversation to the next: the contract of whatever keeps it, and what is relevant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import scrub
from orch_protocol.resources.memory import MemorySpec, Note

from ..backends.offline.bm25 import terms_of

__all__ = [
    "HEADING",
    "NOTHING",
    "MemoryStore",
    "check_note",
    "folder_of",
    "list_notes",
    "make_memory",
    "memory_text",
    "notes_within",
    "rank_notes",
]

HEADING: Final = "# Memory"
_WHAT: Final = """\
Notes from earlier conversations in this folder, as they were written then. They may be out of date: check what you \
build on. recall finds more, remember adds to them."""
NOTHING: Final = "(nothing is noted)"
ROW_TOKENS: Final = 12


class MemoryStore(Protocol):
    """Keeps notes for many agents at once, in whatever processes they are. Methods may be called from any thread.

    What a method returns or raises is about all of them: a note that was added is there for everybody afterwards, also
    after a crash.
    """

    def notes(self) -> list[Note]:
        """Return every note, the oldest first. Raises StoreError."""

    def add(self, note: Note) -> Note:
        """Keep `note`, and return it as it is kept: the one that is there, if one says the same. Raises StoreError."""

    def forget(self, ids: Iterable[str]) -> list[Note]:
        """Delete the notes with these ids for good, and return those that were there. Raises StoreError."""


def make_memory(spec: MemorySpec) -> MemoryStore:
    """Return what keeps the notes of `spec`. Raises ConfigError when there is no such provider."""
    if spec.provider == "file":
        from .memory_file import FileMemory

        return FileMemory(Path(spec.folder), spec.total_chars)
    module, found, name = spec.provider.partition(":")
    try:
        if not found:
            raise ImportError("write file, or package.module:function")
        make: Callable[[MemorySpec], MemoryStore] = getattr(import_module(module), name)
        return make(spec)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"memory.provider = {spec.provider!r} cannot be had: {error}") from error


def folder_of(home: Path, cwd: Path) -> Path:
    """Return where notes about the project in `cwd` are kept: below `home`, never in the project.

    That is what is above it with a `.git`, or the folder itself.
    """
    root = next((each for each in (cwd, *cwd.parents) if (each / ".git").exists()), cwd)
    name = re.sub(r"[^\w.-]+", "-", root.name)[:40] or "root"
    return home / "memory" / f"{name}-{sha256(str(root).encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"


def check_note(text: str, most: int) -> str:
    """Return `text` as a note may say it. Raises ValueError when it says nothing or is longer than `most`."""
    text = scrub(text).strip()
    if not text:
        raise ValueError("there is nothing to remember in it")
    if len(text) > most:
        raise ValueError(f"the note has {len(text):,} characters, more than the limit of {most:,}: shorten it")
    return text


def rank_notes(notes: Sequence[Note], question: str) -> list[Note]:
    """Return `notes`, those first that share most with `question`, of equals the latest first."""
    terms = [(re.compile(term.regex, re.IGNORECASE), term.weight) for term in terms_of(question)]
    score = {note.id: sum(weight for regex, weight in terms if regex.search(note.text)) for note in notes}
    latest = {note.id: place for place, note in enumerate(notes)}
    return sorted(notes, key=lambda note: (score[note.id], latest[note.id]), reverse=True)


def notes_within(notes: Iterable[Note], tokens: int, size: Callable[[str], int]) -> list[Note]:
    """Return those of `notes` that `tokens` have room for, in order; one that is too long is passed over."""
    chosen = []
    for note in notes:
        cost = size(note.text) + ROW_TOKENS
        if cost <= tokens:
            chosen.append(note)
            tokens -= cost
    return chosen


def memory_text(notes: Sequence[Note]) -> str:
    """Return what a request says of `notes`, "" when there are none."""
    return f"{HEADING}\n\n{_WHAT}\n\n{list_notes(notes)}" if notes else ""


def list_notes(notes: Sequence[Note]) -> str:
    """Return `notes`, an item each, with id and day."""
    rows = (f"- [{note.id}, {note.at[:10]}] " + note.text.replace("\n", "\n  ") for note in notes)
    return "\n".join(rows) or NOTHING
