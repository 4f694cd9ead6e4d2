"""Stores notes in a private file. Several processes can change the file safely."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.core.errors import LockedError, StoreError
from orch_protocol.core.text import TextEncodingError, without_mark
from orch_protocol.resources.memory import Note

from ..session.log.lock import private_folder
from ..system.atomic_write import atomic_write
from ..system.files import io_error, open_regular

__all__ = ["NAME", "FileMemory"]

NAME: Final = "notes.jsonl"
LOCK: Final = "notes.lock"
WAIT_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.01

_decoder: msgspec.json.Decoder[Note] = msgspec.json.Decoder(Note)
_encoder = msgspec.json.Encoder()
_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError)


class FileMemory:
    """The notes in `folder`: one JSON object per line. All notes together have at most `max_chars` characters.

    A change writes a new file and renames it over the old file, so that readers never see a partial file. Lines that
    cannot be read are kept.
    """

    def __init__(self, folder: Path, max_chars: int) -> None:
        self.path = folder / NAME
        self._folder = folder
        self._max_chars = max_chars

    def notes(self) -> list[Note]:
        """Return all notes, oldest first. Raise StoreError if the file cannot be read."""
        return self._read()[0]

    def add(self, note: Note) -> Note:
        """Store `note` durably. If the total becomes too long, the oldest notes are removed.

        Raise StoreError if the file cannot be written.
        """
        stored = note

        def change(notes: list[Note]) -> list[Note]:
            nonlocal stored
            existing = next((each for each in notes if each.text == note.text), None)
            if existing is not None:
                stored = existing
                return notes
            notes = [*notes, note]
            while len(notes) > 1 and sum(len(each.text) for each in notes) > self._max_chars:
                notes = notes[1:]
            return notes

        self._change(change)
        return stored

    def forget(self, ids: Iterable[str]) -> list[Note]:
        """Permanently delete the notes `ids`, and return them. Raise StoreError if the file cannot be written."""
        wanted_ids, removed = set(ids), list[Note]()

        def change(notes: list[Note]) -> list[Note]:
            removed.extend(note for note in notes if note.id in wanted_ids)
            return [note for note in notes if note.id not in wanted_ids]

        self._change(change)
        return removed

    def _read(self) -> tuple[list[Note], list[bytes]]:
        """Return the notes, and the lines that could not be decoded."""
        try:
            with open(open_regular(self.path, os.O_RDONLY), "rb") as file:
                lines = without_mark(file.read()).splitlines()
        except FileNotFoundError:
            return [], []
        except OSError as error:
            raise io_error("read", self.path, error) from error
        except TextEncodingError as error:
            raise StoreError(f"cannot read {self.path}: {error}") from None
        notes, undecodable = [], []
        for line in filter(None, lines):
            try:
                notes.append(_decoder.decode(line))
            except _ERRORS:
                undecodable.append(line)
        return notes, undecodable

    def _change(self, change: Callable[[list[Note]], list[Note]]) -> None:
        with self._lock_file():
            before, undecodable = self._read()
            after = change(before)
            if after != before:
                self._write([*undecodable, *map(_encoder.encode, after)])

    def _write(self, lines: list[bytes]) -> None:
        try:
            with atomic_write(self.path, locked=True) as file:
                file.write(b"".join(line + b"\n" for line in lines))
        except OSError as error:
            raise io_error("write", self.path, error) from error

    @contextmanager
    def _lock_file(self) -> Iterator[None]:
        """Hold the lock on the file. Raise LockedError if another process holds the lock for several seconds."""
        private_folder(self._folder)
        descriptor = open_regular(self._folder / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            deadline = time.monotonic() + WAIT_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise LockedError(f"{self.path} is being changed by another process: try again") from None
                    time.sleep(PAUSE_SECONDS)
            yield
        finally:
            os.close(descriptor)
