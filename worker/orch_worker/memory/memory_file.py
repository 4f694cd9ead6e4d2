"""Notes in a file: private, whole at any moment, for any number of processes at once."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.core.errors import LockedError
from orch_protocol.resources.memory import Note

from ..session.log.lock import private_folder
from ..system.files import io_error, open_regular, sync_folder

__all__ = ["NAME", "FileMemory"]

NAME: Final = "notes.jsonl"
LOCK: Final = "notes.lock"
WAIT_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.01

_decoder: msgspec.json.Decoder[Note] = msgspec.json.Decoder(Note)
_encoder = msgspec.json.Encoder()
_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError)


class FileMemory:
    """The notes in `folder`, a JSON object a line, together at most `total` characters long.

    A change writes the file anew, beside it, and puts that in its place: who reads sees all of it or nothing. A line
    that cannot be read stays where it is.
    """

    def __init__(self, folder: Path, total: int) -> None:
        self.path = folder / NAME
        self._folder = folder
        self._total = total

    def notes(self) -> list[Note]:
        """Return every note, the oldest first. Raises StoreError."""
        return self._read()[0]

    def add(self, note: Note) -> Note:
        """Keep `note` durably; the oldest ones give way to it. Raises StoreError."""
        kept = note

        def change(notes: list[Note]) -> list[Note]:
            nonlocal kept
            same = next((each for each in notes if each.text == note.text), None)
            if same is not None:
                kept = same
                return notes
            notes = [*notes, note]
            while len(notes) > 1 and sum(len(each.text) for each in notes) > self._total:
                notes = notes[1:]
            return notes

        self._change(change)
        return kept

    def forget(self, ids: Iterable[str]) -> list[Note]:
        """Delete notes for good. Raises StoreError."""
        wanted, gone = set(ids), list[Note]()

        def change(notes: list[Note]) -> list[Note]:
            gone.extend(note for note in notes if note.id in wanted)
            return [note for note in notes if note.id not in wanted]

        self._change(change)
        return gone

    def _read(self) -> tuple[list[Note], list[bytes]]:
        """Return the notes, and the lines that are none."""
        try:
            with open(open_regular(self.path, os.O_RDONLY), "rb") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return [], []
        except OSError as error:
            raise io_error("read", self.path, error) from error
        notes, strange = [], []
        for line in filter(None, lines):
            try:
                notes.append(_decoder.decode(line))
            except _ERRORS:
                strange.append(line)
        return notes, strange

    def _change(self, change: Callable[[list[Note]], list[Note]]) -> None:
        with self._owned():
            before, strange = self._read()
            after = change(before)
            if after != before:
                self._write([*strange, *map(_encoder.encode, after)])

    def _write(self, lines: list[bytes]) -> None:
        beside = self.path.with_name(f"{NAME}.new")
        try:
            beside.unlink(missing_ok=True)
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:
                file.write(b"".join(line + b"\n" for line in lines))
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self.path)
            sync_folder(self._folder)
        except OSError as error:
            raise io_error("write", self.path, error) from error

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """Keep everybody else from changing the file. Raises LockedError when somebody does so for seconds."""
        private_folder(self._folder)
        descriptor = open_regular(self._folder / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            until = time.monotonic() + WAIT_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise LockedError(f"{self.path} is being changed by another process: try again") from None
                    time.sleep(PAUSE_SECONDS)
            yield
        finally:
            os.close(descriptor)
