"""The writer of append-only JSONL files. The files survive kill -9, a full disk and a flipped bit.

One append is one write: after a crash, the file contains either all lines of the append or none. The first line is the
header, which identifies the kind of file. When a file is opened, a torn tail is cut off and saved in another file.
Damaged lines before an undamaged line stay. Files of another kind are never changed. `log_reader` reads these files.
`FolderLock` ensures that there is only one writer. `rewriting` replaces a file when something is deleted from it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias
from zlib import crc32

import msgspec

from orch_protocol.agent.spec import Durability
from orch_protocol.core.errors import StoreError
from orch_protocol.session.entries import TranscriptPosition

from ...system.files import error_text, io_error, keep_aside, open_regular, sync_folder
from .atomic_rewrite import discard_unfinished
from .log_reader import LogContents, OnBlock, OnObject, load
from .record_format import MAX_LINE_BYTES, seal_lines
from .verified_prefix import MIN_PREFIX_BYTES, VerifiedPrefix, write_verified_prefix

__all__ = ["AppendLog", "without_fsync"]

PREFIX_NOTE_INTERVAL_BYTES: Final = 2 << 20
"""Number of appended bytes after which the verified prefix of a long file is recorded again."""

State: TypeAlias = tuple[int, int, int, int | None]


class AppendLog:
    """An append-only file with one writer. Create a log with `AppendLog.open`.

    Use the log from one thread. Only `sync` may run in another thread during `append`.
    """

    # Fault tests and `without_fsync` replace these functions.
    _write: Callable[[int, bytes | memoryview], int] = staticmethod(os.write)
    _fdatasync: Callable[[int], None] = staticmethod(getattr(os, "fdatasync", os.fsync))  # macOS has no fdatasync.
    _sync_folder: Callable[[Path], None] = staticmethod(sync_folder)

    def __init__(self, path: Path, descriptor: int, durability: Durability, loaded: LogContents) -> None:
        self.path = path
        self.on_dirty: Callable[[], None] | None = None
        """Called at the first append that leaves unsynced bytes after opening the file or after a `sync`."""
        self._descriptor = descriptor
        self._sync_each_append = durability == "power"
        # Offset, seq, checksum, and CRC-32 of all bytes (None: unknown). Each append makes one assignment, so that an
        # interrupt cannot leave a partial state.
        self._state: State = (loaded.end, loaded.seq, loaded.checksum, loaded.sum)
        self._recorded_prefix_end = loaded.recorded_prefix_end
        self._synced = loaded.end
        # False for an existing file too, because its creator may have been killed before it synced the folder.
        self._folder_synced = False
        self._reported_dirty = False
        self.fault = ""
        """The reason why appending is not possible until the file is opened again, or ""."""

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        durability: Durability = "process",
        header: bytes | None = None,
        on_object: OnObject | None = None,
        on_block: OnBlock | None = None,
        on_restart: Callable[[], None] | None = None,
    ) -> tuple[AppendLog, LogContents]:
        """Open or create the file at `path` with mode 0600. Return the log and the previous contents of the file.

        `header`, an encoded object, is the first line of a new file and identifies an existing file. For `on_object`,
        `on_block` and `on_restart`, see `load`. A torn tail is cut off and saved in `<name>.torn-<n>`. With
        `durability` "power", each append waits for the disk. Raise ForeignFileError for a file of another kind, which
        stays unchanged. Raise StoreError if the file cannot be opened.
        """
        discard_unfinished(path)
        loaded = load(path, header=header, on_object=on_object, on_block=on_block, on_restart=on_restart)
        if on_restart is not None and not loaded.end and not loaded.damage:
            loaded = msgspec.structs.replace(loaded, sum=0)  # All bytes appended from here on are known.
        try:
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except FileNotFoundError as error:
            raise StoreError(f"cannot create {path}: its folder does not exist") from error
        try:
            if loaded.torn:
                loaded = msgspec.structs.replace(loaded, torn_tail_file=keep_aside(path, loaded.torn))
                os.ftruncate(descriptor, loaded.end)
                os.fsync(descriptor)
            log = cls(path, descriptor, durability, loaded)
            if header is not None and loaded.end == 0:
                log.append(header)
        except OSError as error:
            os.close(descriptor)
            raise io_error("repair", path, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        return log, loaded

    @property
    def end(self) -> int:
        """The offset after the last line, in bytes."""
        return self._state[0]

    @property
    def seq(self) -> int:
        """The number of the last line; 0 in an empty file."""
        return self._state[1]

    @property
    def position(self) -> TranscriptPosition:
        """The position of the last line."""
        return TranscriptPosition(self._state[1], self._state[2])

    @property
    def broken(self) -> bool:
        """Whether appending is impossible because the file's state is uncertain. The file must then be read again."""
        return bool(self.fault) and self._descriptor >= 0

    @property
    def dirty(self) -> int:
        """Number of appended bytes that are not synced."""
        return self._state[0] - self._synced

    def append(self, *objects: bytes, sync: bool = False) -> None:
        """Append encoded JSON objects, one per line, in one write: all objects or none.

        When this method returns, the lines survive the death of every process. If `sync` is True, or with durability
        "power", the lines also survive a power loss. Raise StoreError with the file and the cause. In this case,
        nothing was appended, and the log stays usable unless the sync failed.
        """
        self._require_usable()
        if not objects:
            return
        for object in objects:
            if len(object) > MAX_LINE_BYTES:
                raise StoreError(
                    f"cannot append to {self.path}: a line has {len(object)} bytes, but the maximum is {MAX_LINE_BYTES}"
                )
            if len(object) < 3 or object[:1] != b"{" or object[-1:] != b"}" or b"\n" in object:
                raise StoreError(f"cannot append to {self.path}: not a JSON object on one line: {object[:40]!r}")
        end, seq, checksum, sum = self._state
        data, seq, checksum = seal_lines(objects, seq, checksum)
        self._commit(data, (end + len(data), seq, checksum, crc32(data, sum) if sum is not None else None))
        if end - self._recorded_prefix_end >= PREFIX_NOTE_INTERVAL_BYTES:
            self._record_prefix()  # This speeds up opening the file after this process was killed.
        if sync or self._sync_each_append:
            self.sync()
        elif not self._reported_dirty and self.on_dirty is not None:
            self._reported_dirty = True
            self.on_dirty()

    def sync(self) -> None:
        """Wait until all appended lines are on the disk.

        After a failure, the log is unusable: the kernel may have dropped the data, and a second attempt could falsely
        succeed. This call and all later calls then raise StoreError. Open the file again to see its contents.
        """
        self._require_usable()
        self._reported_dirty = False
        end = self._state[0]
        try:
            self._fdatasync(self._descriptor)
            if not self._folder_synced:
                # The name of a new file must be on the disk too. Sync the folder, and its parent, because the folder
                # may be new.
                self._sync_folder(self.path.parent)
                self._sync_folder(self.path.parent.parent)
                self._folder_synced = True
            if not os.fstat(self._descriptor).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "the file was removed")
        except OSError as error:
            # Keep the descriptor open until close, so that its number is not used for another file.
            self.fault = f"cannot sync {self.path}: {error_text(error)}; its content is uncertain, open it again"
            raise StoreError(self.fault) from error
        self._synced = max(self._synced, end)

    def close(self) -> None:
        """Sync and close the file. Calling this method twice is allowed."""
        if self._descriptor < 0:
            return
        try:
            if self.dirty and not self.fault:
                self.sync()
            self._record_prefix()
        finally:
            descriptor, self._descriptor = self._descriptor, -1
            self.fault = self.fault or f"{self.path} is closed"
            os.close(descriptor)

    def _record_prefix(self) -> None:
        """If a long file has grown enough, record its verified prefix."""
        end, seq, checksum, sum = self._state
        if sum is not None and end - self._recorded_prefix_end >= MIN_PREFIX_BYTES and not self.fault:
            write_verified_prefix(self.path, VerifiedPrefix(end, seq, checksum, sum))
            self._recorded_prefix_end = end

    def _require_usable(self) -> None:
        if self.fault:
            raise StoreError(self.fault)

    def _commit(self, data: bytes, state: State) -> None:
        try:
            written = self._write(self._descriptor, data)
            while written < len(data):
                # The write was too short but raised no error. Writing the rest raises the cause.
                more = self._write(self._descriptor, memoryview(data)[written:])
                if not more:
                    raise OSError(errno.ENOSPC, "nothing was written")
                written += more
            self._state = state
        except BaseException as error:
            if self._state is not state:
                self._roll_back()
            if isinstance(error, OSError):
                raise io_error("append to", self.path, error) from error
            raise

    def _roll_back(self) -> None:
        try:
            os.ftruncate(self._descriptor, self._state[0])
        except OSError as error:
            self.fault = f"cannot remove a partially written line from {self.path}: {error_text(error)}; open it again"
            raise StoreError(self.fault) from error


@contextmanager
def without_fsync() -> Iterator[None]:
    """Within the block, disable fsync for all logs of this process. Use this function for temporary files only."""
    fdatasync, folder = AppendLog._fdatasync, AppendLog._sync_folder
    AppendLog._fdatasync = AppendLog._sync_folder = staticmethod(lambda _: None)
    try:
        yield
    finally:
        AppendLog._fdatasync, AppendLog._sync_folder = staticmethod(fdatasync), staticmethod(folder)
