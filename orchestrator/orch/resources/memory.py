"""Notes about a folder. Functions open the memory of the folder, add a note, and find notes by id."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from orch_protocol.core.errors import ConfigError, EntryNotFoundError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.resources.memory import MemorySpec, Note
from orch_worker.memory.notes import MemoryStore, check_note, make_memory, memory_folder

from ..config.config import load

__all__ = ["add_note", "open_memory", "select_notes"]


def open_memory(cwd: Path, home: Path) -> tuple[MemoryStore, MemorySpec]:
    """Return the memory of the folder `cwd` and its limits. Raises ConfigError."""
    settings = load(cwd, home=home).config.memory
    spec = MemorySpec(str(memory_folder(home, cwd)), settings.provider, total_chars=settings.total_chars)
    return make_memory(spec), msgspec.structs.replace(spec, note_chars=settings.note_chars)


def add_note(memory: MemoryStore, spec: MemorySpec, text: str) -> Note:
    """Add `text` as a note of the user and return the note. Raises ConfigError."""
    try:
        text = check_note(text, spec.note_chars)
    except ValueError as error:
        raise ConfigError(f"cannot add the note: {error}") from error
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return memory.add(Note(new_entry_id(()), text, now, "user"))


def select_notes(notes: list[Note], ids: list[str]) -> list[Note]:
    """Return the notes with these ids. Raises EntryNotFoundError."""
    known = {note.id: note for note in notes}
    for id in ids:
        if id not in known:
            raise EntryNotFoundError(f"no note with id {id[:40]!r} in this folder; list notes with `orch memory list`")
    return [known[id] for id in dict.fromkeys(ids)]
