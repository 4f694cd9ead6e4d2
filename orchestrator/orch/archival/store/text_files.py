"""Writes the archives of an agent as text files: a file for each archived turn, and an index of the files.

The files are derived data. The agent may read them with its file tools and commands. They are written again when they
are missing, and removed when an archive is deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_worker.conversation.archive_text import entry_lines, heading
from orch_worker.system import atomic_json
from orch_worker.system.atomic_write import atomic_write
from orch_worker.tools.api.archive_texts import INDEX_FILE, TEXT_FOLDER

from .catalog import ArchivedMessage, ArchiveRecord, SearchableCatalog
from .shown import ShownArchives

__all__ = ["remove_texts", "texts_missing", "write_texts"]

KEYS_FILE: Final = ".written.json"
"""Contains the key of each written file. A key identifies the messages in the file."""


class _TextFile(Struct, frozen=True):
    """A file with the entries `first` to `last` of the archive `record`."""

    name: str
    record: ArchiveRecord
    first: int
    last: int
    key: str


def texts_missing(folder: Path) -> bool:
    """Return whether the text files of the session in `folder` have to be written."""
    return not (folder / TEXT_FOLDER / INDEX_FILE).exists()


def write_texts(catalog: SearchableCatalog, shown: ShownArchives) -> Path:
    """Write the missing and changed text files of the archives `shown`, and remove files of other archives.

    Return the folder. Raises OSError, DamagedError, StoreError.
    """
    folder = catalog.folder / TEXT_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    files = [file for id in shown.ids for file in _files(catalog.records[id], shown)]
    keys = _read_keys(folder)
    entries: tuple[str, Sequence[ArchivedMessage]] = ("", ())
    for file in files:
        if keys.get(file.name) == file.key and (folder / file.name).exists():
            continue
        if entries[0] != file.record.id:
            entries = file.record.id, catalog.entries(file.record)
        _write(folder / file.name, _lines(file, entries[1]))
    wanted = {file.name for file in files}
    for path in folder.glob("*.txt"):
        if path.name not in wanted and path.name != INDEX_FILE:
            path.unlink()
    atomic_json.write(folder / KEYS_FILE, {file.name: file.key for file in files}, durable=False)
    _write(folder / INDEX_FILE, _index_lines(files))
    return folder


def remove_texts(folder: Path) -> None:
    """Remove the text files of the session in `folder`. Raises OSError."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / TEXT_FOLDER)


def _files(record: ArchiveRecord, shown: ShownArchives) -> Iterator[_TextFile]:
    """Yield the files of a shown archive, one for each turn."""
    owners, turns = shown.owners_of(record.id), shown.turns_of(record.id)
    start = 0
    for index in range(1, len(owners) + 1):
        if index < len(owners) and (not turns or turns[index] == turns[start]):
            continue
        name = f"archive-{record.id}.txt"
        if turns:
            part = f"-{record.id}" if record.kind == "phase" else ""
            name = f"turn-{turns[start]:03d}{part}.txt"
        key = sha256(repr(owners[start:index]).encode()).hexdigest()[:16]
        yield _TextFile(name, record, start + 1, index, key)
        start = index


def _lines(file: _TextFile, entries: Sequence[ArchivedMessage]) -> Iterator[str]:
    for entry in entries[file.first - 1 : file.last]:
        yield heading(entry.message)
        yield from entry_lines(entry.message).lines
        yield ""


def _index_lines(files: Sequence[_TextFile]) -> Iterator[str]:
    yield "# Text of the archived turns of this conversation: file, archive and its entries, title"
    for file in files:
        title = " ".join(file.record.task.split())
        yield f"{file.name}  {file.record.id} entries {file.first}-{file.last}  {title}"


def _read_keys(folder: Path) -> dict[str, str]:
    try:
        return atomic_json.read(folder / KEYS_FILE, dict[str, str], {}, "its files are written again")
    except ConfigError:
        return {}


def _write(path: Path, lines: Iterator[str] | Sequence[str]) -> None:
    with atomic_write(path, sync="none", locked=True) as file:
        file.writelines(f"{line}\n".encode(errors="replace") for line in lines)
