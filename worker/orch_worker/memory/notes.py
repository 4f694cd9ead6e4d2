"""Notes that agents keep between conversations: the interface of a note store, and the selection of relevant notes."""

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
    "list_notes",
    "make_memory",
    "memory_folder",
    "memory_text",
    "notes_within",
    "rank_notes",
]

HEADING: Final = "# Memory"
_INTRODUCTION: Final = """\
Notes from earlier conversations in this folder, as they were written then. They may be out of date: check what you \
build on. recall finds more, remember adds to them."""
NOTHING: Final = "(no notes)"
ROW_TOKENS: Final = 12


class MemoryStore(Protocol):
    """Stores the notes of many agents in several processes. Methods may be called from any thread.

    When `add` returns, the note is visible to all agents and survives a crash.
    """

    def notes(self) -> list[Note]:
        """Return all notes, oldest first. Raise StoreError if reading fails."""

    def add(self, note: Note) -> Note:
        """Store `note` and return it. If a note with the same text exists, return the existing note.

        Raise StoreError if writing fails.
        """

    def forget(self, ids: Iterable[str]) -> list[Note]:
        """Permanently delete the notes with these ids, and return the notes that existed.

        Raise StoreError if writing fails.
        """


def make_memory(spec: MemorySpec) -> MemoryStore:
    """Return the store configured by `spec`. Raise ConfigError for an unknown provider."""
    if spec.provider == "file":
        from .memory_file import FileMemory

        return FileMemory(Path(spec.folder), spec.total_chars)
    module, separator, name = spec.provider.partition(":")
    try:
        if not separator:
            raise ImportError("write file, or package.module:function")
        factory: Callable[[MemorySpec], MemoryStore] = getattr(import_module(module), name)
        return factory(spec)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"cannot load memory.provider = {spec.provider!r}: {error}") from error


def memory_folder(home: Path, cwd: Path) -> Path:
    """Return the folder below `home` for notes about the project that contains `cwd`.

    The project is the nearest folder that contains `.git`. If there is no such folder, the project is `cwd` itself.
    """
    root = next((each for each in (cwd, *cwd.parents) if (each / ".git").exists()), cwd)
    name = re.sub(r"[^\w.-]+", "-", root.name)[:40] or "root"
    return home / "memory" / f"{name}-{sha256(str(root).encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"


def check_note(text: str, limit: int) -> str:
    """Return `text` cleaned for a note. Raise ValueError if the text is empty or longer than `limit` characters."""
    text = scrub(text).strip()
    if not text:
        raise ValueError("the note is empty")
    if len(text) > limit:
        raise ValueError(f"the note has {len(text):,} characters, more than the limit of {limit:,}: shorten it")
    return text


def rank_notes(notes: Sequence[Note], question: str) -> list[Note]:
    """Return `notes`, ordered by the terms that they share with `question`.

    Among equal notes, the latest note comes first.
    """
    terms = [(re.compile(term.regex, re.IGNORECASE), term.weight) for term in terms_of(question)]
    score = {note.id: sum(weight for regex, weight in terms if regex.search(note.text)) for note in notes}
    latest = {note.id: index for index, note in enumerate(notes)}
    return sorted(notes, key=lambda note: (score[note.id], latest[note.id]), reverse=True)


def notes_within(notes: Iterable[Note], tokens: int, count_tokens: Callable[[str], int]) -> list[Note]:
    """Return the notes that fit into `tokens` tokens, in order. Notes that are too long are skipped."""
    chosen = []
    for note in notes:
        cost = count_tokens(note.text) + ROW_TOKENS
        if cost <= tokens:
            chosen.append(note)
            tokens -= cost
    return chosen


def memory_text(notes: Sequence[Note]) -> str:
    """Return the memory block of a request, or "" if there are no notes."""
    return f"{HEADING}\n\n{_INTRODUCTION}\n\n{list_notes(notes)}" if notes else ""


def list_notes(notes: Sequence[Note]) -> str:
    """Return `notes` as a list with ids and dates."""
    rows = (f"- [{note.id}, {note.at[:10]}] " + note.text.replace("\n", "\n  ") for note in notes)
    return "\n".join(rows) or NOTHING
