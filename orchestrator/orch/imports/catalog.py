"""The folder of imported sessions. Each session has a subfolder with its record and its archives.

The record names the folder of the archives. A new record replaces an old one in one step, so that an interrupted
import leaves the session as it was before.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import (
    AgentNotFoundError,
    AmbiguousRefError,
    ConfigError,
    ForeignFileError,
    LockedError,
    StoreError,
)
from orch_worker.session.entry_codec import SESSION_HEADER
from orch_worker.session.log.lock import FolderLock, owner_of
from orch_worker.session.log.log_reader import read_header
from orch_worker.system import atomic_json
from orch_worker.system.files import io_error

from ..archival.store.store import ArchiveStore
from ..config import paths

__all__ = ["ImportCatalog", "ImportRecord", "SeenFiles", "session_id"]

RECORD: Final = "session.json"
SEEN: Final = "files.json"


class ImportRecord(Struct, frozen=True):
    """An imported session.

    `source` is the path of its file, and `number` its number in this file, which contains `conversations` of them.
    `shape` is the format, `title` the title or the first request. `started` and `ended` are times of messages. `record`
    is the computed record of the whole session. `size` is the number of bytes of the source that were read, `sha256`
    their hash, and `modified_ns` the modification time. `left_out` is the number of damaged places in the file, and
    `damage` describes the first 20 of them. `store` is the name of the folder with the archives.
    """

    id: str
    source: str
    number: int
    conversations: int
    shape: str
    title: str
    cwd: str
    started: str
    ended: str
    turns: int
    messages: int
    record: str
    size: int
    modified_ns: int
    sha256: str
    left_out: int
    store: str
    damage: tuple[str, ...] = ()


class SeenFiles(Struct):
    """Files that were read before and are not read again until they change.

    `other` contains the size and modification time of each file that is no session, by path, and `reasons` why it is
    none. `forgotten` contains the ids of forgotten sessions.
    """

    other: dict[str, tuple[int, int]] = {}
    reasons: dict[str, str] = {}
    forgotten: set[str] = set()


def session_id(source: str, number: int) -> str:
    """Return the id of the session with the number `number` in the file `source`."""
    digest = sha256(f"{number}:{source}".encode())
    return "abcdef"[digest.digest()[0] % 6] + digest.hexdigest()[1:12]


class ImportCatalog:
    """The imported sessions in the orch folder `home`."""

    def __init__(self, home: Path) -> None:
        self.folder = paths.imports_dir(home)
        self.unreadable: list[Path] = []
        """The folders of sessions whose records could not be read by the last `records`."""

    def records(self) -> list[ImportRecord]:
        """Return the records of all sessions, the latest session first."""
        found = []
        self.unreadable = []
        for path in self._session_folders():
            try:
                record = _read_record(path)
            except ConfigError:
                self.unreadable.append(path)
                continue
            if record is not None:  # otherwise the import of this session did not finish
                found.append(record)
        return sorted(found, key=lambda record: (record.ended, record.id), reverse=True)

    def find(self, ref: str) -> ImportRecord:
        """Return the session whose id is `ref` or starts with `ref`. Raises AgentNotFoundError, AmbiguousRefError."""
        found = [record for record in self.records() if ref and record.id.startswith(ref)]
        if len(found) > 1:
            ids = ", ".join(record.id for record in found[:8])
            raise AmbiguousRefError(f"{ref!r} is a prefix of {len(found)} ids of imported sessions: {ids}")
        if not found:
            raise AgentNotFoundError(f"no imported session {ref[:80]!r}: list them with `orch import --list`")
        return found[0]

    def store_folder(self, record: ImportRecord) -> Path:
        """Return the folder with the archives of a session."""
        return self.folder / record.id / record.store

    def open(self, record: ImportRecord) -> ArchiveStore:
        """Return the archives of a session, one for each turn, for reading. Raises StoreError, ForeignFileError."""
        try:
            return ArchiveStore.read(self.store_folder(record))
        except ForeignFileError as error:
            raise ForeignFileError(
                f"the copy of {record.source} was not written by this version of orch: copy it again with "
                f"`orch import {shlex.quote(record.source)}`"
            ) from error

    def is_readable(self, record: ImportRecord) -> bool:
        """Return whether the first file of a session's archives exists and has the version that this orch reads."""
        first = ArchiveStore(None, self.store_folder(record)).path(1)
        try:
            return bool(read_header(first, SESSION_HEADER))
        except StoreError:
            return False

    def bytes_of(self, record: ImportRecord) -> int:
        """Return the disk space of a session in bytes."""
        total = 0
        for path in (self.folder / record.id, self.store_folder(record)):
            with suppress(OSError):
                total += sum(each.stat().st_size for each in os.scandir(path) if each.is_file(follow_symlinks=False))
        return total

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Allow changes by this process only. Raises LockedError, StoreError."""
        try:
            lock = FolderLock.acquire(self.folder)
        except LockedError:
            raise LockedError(
                f"another import is running (process {owner_of(self.folder)}): wait until it ends, then run the "
                "command again. Sessions that it has imported are not read again"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def put(self, record: ImportRecord) -> None:
        """Write the record of a session, which makes the session visible. The caller holds the lock.

        Raises StoreError.
        """
        atomic_json.write(self.folder / record.id / RECORD, record)
        self._remove_other_stores(record.id, record.store)

    def forget(self, record: ImportRecord) -> int:
        """Remove a session, and return the number of freed bytes. The caller holds the lock. Raises StoreError."""
        size, folder = self.bytes_of(record), self.folder / record.id
        try:
            (folder / RECORD).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=False)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise io_error("remove", folder, error) from error
        return size

    def exclude(self, record: ImportRecord) -> int:
        """Remove a session, which is imported again only if its file is named. Return the number of freed bytes.

        Raises LockedError, StoreError.
        """
        with self.lock():
            seen = self.seen_files()
            seen.forgotten.add(record.id)
            self.write_seen_files(seen)
            return self.forget(record)

    def remove_unfinished(self) -> None:
        """Remove what interrupted imports left. The caller holds the lock."""
        for folder in self._session_folders():
            try:
                record = _read_record(folder)
            except ConfigError:
                continue  # its source may be gone; the archives stay
            if record is None:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                self._remove_other_stores(record.id, record.store)

    def seen_files(self) -> SeenFiles:
        """Return the files that were read before. Raises ConfigError for a damaged file."""
        return atomic_json.read(self.folder / SEEN, SeenFiles, SeenFiles(), "run `orch import` again")

    def write_seen_files(self, seen: SeenFiles) -> None:
        """Store the files that were read. Raises StoreError."""
        atomic_json.write(self.folder / SEEN, seen)

    def _session_folders(self) -> list[Path]:
        try:
            return [Path(each.path) for each in os.scandir(self.folder) if each.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise io_error("read", self.folder, error) from error

    def _remove_other_stores(self, id: str, store: str) -> None:
        for each in os.scandir(self.folder / id):
            if each.name not in (RECORD, store):
                with suppress(OSError):
                    shutil.rmtree(each.path) if each.is_dir(follow_symlinks=False) else os.unlink(each.path)


def _read_record(folder: Path) -> ImportRecord | None:
    """Return the record of the session in `folder`, or None. Raises ConfigError for a damaged record."""
    kind: type[ImportRecord | None] = ImportRecord
    return atomic_json.read(folder / RECORD, kind, None, "import its source again")
