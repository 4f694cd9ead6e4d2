"""Append-only JSONL files that survive kill -9, a full disk and a flipped bit.

One append is one write; after a crash all of its lines are there or none. The first line is the header, by which a
file is known as ours. Reading takes no lock and changes nothing. Bad lines at the end are a torn tail: opening cuts it
and keeps it aside. Bad lines before a good one are damage: kept in the file, skipped, reported. What is not ours is
never touched. `lines` has the shape of a line, `FolderLock` sees to the one writer, and `Rewriting` is for the rare
file that must lose something.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias
from zlib import crc32

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import Durability
from orch_protocol.core.errors import ForeignFileError, StoreError
from orch_protocol.session.entries import TranscriptPosition

from ...system.files import error_text, io_error, keep_aside, lines_backwards, open_regular, sync_folder
from .atomic_rewrite import discard_unfinished
from .blocks import BlockReader
from .lock import FolderLock
from .record_format import ChecksumChain, UncheckedLine, seal_lines, unseal_line
from .verified_prefix import (
    MIN_PREFIX_BYTES,
    LineSpan,
    PrefixMismatchError,
    VerifiedPrefix,
    read_verified_prefix,
    write_verified_prefix,
)

__all__ = [
    "MAX_LINE_BYTES",
    "AppendLog",
    "Damage",
    "FolderLock",
    "LogContents",
    "find_position",
    "last_position",
    "load",
    "newest_first",
    "read_objects",
    "scan_lines",
    "without_fsync",
]

MAX_LINE_BYTES: Final = 64 << 20
READ_BUFFER_BYTES: Final = 1 << 20
PREFIX_NOTE_INTERVAL_BYTES: Final = 2 << 20
"""Bytes, appended to a long file since anything was noted of it, after which it is noted what is known of it."""


class Damage(Struct, frozen=True):
    """One bad place inside a file. `line` counts from 1; `offset` and `length` are bytes."""

    line: int
    offset: int
    length: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


class LogContents(Struct, frozen=True):
    """What a file holds: its header (b"" if it has none), the good objects in order, the damage between them, the torn
    bytes behind them.

    `end` is the offset behind the last good line, `seq` and `checksum` are that line's. `aside` is where opening put
    the torn bytes. Of a file whose lines are all sound, `sum` is the CRC-32, None where that was not worked out, and
    so much of it, `noted`, was known already.
    """

    header: bytes
    objects: list[bytes]
    damage: list[Damage]
    torn: bytes
    end: int
    seq: int
    checksum: int
    aside: Path | None = None
    sum: int | None = None
    noted: int = 0

    @property
    def report(self) -> str:
        """One line about everything that was not as it should be; "" when all was."""
        parts = [str(damage) for damage in self.damage[:5]]
        if len(self.damage) > 5:
            parts.append(f"and {len(self.damage) - 5} more bad lines")
        if self.torn:
            where = f", kept in {self.aside.name}" if self.aside else ""
            parts.append(f"{len(self.torn)} bytes of an unfinished write at the end{where}")
        return "; ".join(parts)


Take: TypeAlias = Callable[[bytes], None]
TakeLines: TypeAlias = Callable[[bytes, LineSpan], None]
State: TypeAlias = tuple[int, int, int, int | None]


class _FileVersion(Struct):
    version: int = 0


_version: msgspec.json.Decoder[_FileVersion] = msgspec.json.Decoder(_FileVersion)


def load(
    path: Path,
    *,
    header: bytes | None = None,
    take: Take | None = None,
    take_lines: TakeLines | None = None,
    anew: Callable[[], None] | None = None,
) -> LogContents:
    """Return what the file at `path` holds. Takes no lock, changes nothing.

    With `take` each good object is handed to it, once all of its append is known to be there, and none is returned:
    so a file of any size is read. With `take_lines` too, that is handed sound lines as they stand in the file, many at
    a time, as long as there are such; the objects that stand behind them go to `take`. With `anew` lines that
    are known to be sound are not looked at; when that turns out to be wrong, it is called, and all is handed out again.

    A missing or empty file holds nothing. `header` is an encoded header such as this file's: the file must begin with
    one of the same first key and value and of no later `version`. Raises ForeignFileError when it does not, StoreError
    when the file cannot be read.
    """
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return LogContents(b"", [], [], b"", 0, 0, 0)
    found = b""
    objects: list[bytes] = []
    take = take or objects.append
    waiting: list[bytes] = []
    damage: list[Damage] = []
    bad: list[Damage] = []
    last = 0
    # Where the last whole append ends: the count of damage, the offset, the chain.
    whole = (0, 0, 0, 0)
    try:
        with open(descriptor, "rb", buffering=READ_BUFFER_BYTES) as file:
            first = file.readline(MAX_LINE_BYTES + 64)
            _require_ours(path, first, header)
            beside = read_verified_prefix(path) if anew is not None else None
            blocks = _blocks(file, first, header, beside) if take_lines is not None and header is not None else None
            if blocks is not None and take_lines is not None:
                found = unsealed.object if (unsealed := unseal_line(first[:-1])) else b""
                start, before = blocks.offset, blocks.sum
                for block in blocks:
                    take_lines(block, LineSpan(start, blocks.offset, before, blocks.sum))
                    start, before = blocks.offset, blocks.sum
                last, whole = blocks.offset, (0, blocks.offset, blocks.chain.seq, blocks.chain.checksum)
            file.seek(last)
            behind = scan_lines(file, blocks.chain, last) if blocks is not None else scan_lines(file)
            for number, (offset, line, sealed, remark) in enumerate(behind, blocks.number + 1 if blocks else 1):
                if remark:
                    bad.append(Damage(number, offset, len(line), remark))
                last = offset + len(line)
                if sealed is not None:
                    if header is not None and number == 1 and line.startswith(_magic(header)):
                        found = sealed.object
                    else:
                        waiting.append(sealed.object)
                    damage += bad
                    bad.clear()
                    if not sealed.more:
                        for each in waiting:
                            take(each)
                        waiting.clear()
                        whole = (len(damage), last, sealed.seq, sealed.checksum)
            damaged, end, seq, checksum = whole
            file.seek(end)
            torn = file.read(last - end)
    except PrefixMismatchError:
        assert anew is not None
        anew()
        return load(path, header=header, take=take, take_lines=take_lines)
    except OSError as error:
        raise io_error("read", path, error) from error
    del damage[damaged:]
    if blocks is None or blocks.offset != end or blocks.number != seq:
        return LogContents(found, objects, damage, torn, end, seq, checksum)
    noted = blocks.known.end if blocks.known is not None else 0
    return LogContents(found, objects, damage, torn, end, seq, checksum, None, blocks.sum, noted)


def read_objects(path: Path, *, header: bytes | None = None) -> Iterator[bytes]:
    """Yield the good objects of the file at `path`, its header first, holding little more of it than one append.

    What was not appended whole is left out. What seals a line may be left on its object: keys of the store's own. A
    missing file holds nothing; raises as `load` does.
    """
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    waiting: list[bytes] = []
    try:
        with open(descriptor, "rb", buffering=READ_BUFFER_BYTES) as file:
            first = file.readline(MAX_LINE_BYTES + 64)
            _require_ours(path, first, header)
            blocks = _blocks(file, first, header) if header is not None else None
            if blocks is not None:
                yield first[:-1]
                for block in blocks:
                    yield from block[:-1].split(b"\n")
            file.seek(blocks.offset if blocks is not None else 0)
            for _, _, sealed, _ in scan_lines(file, blocks.chain if blocks is not None else None):
                if sealed is None:
                    continue
                waiting.append(sealed.object)
                if not sealed.more:
                    yield from waiting
                    waiting.clear()
    except OSError as error:
        raise io_error("read", path, error) from error


def _blocks(file: BinaryIO, first: bytes, header: bytes, known: VerifiedPrefix | None = None) -> BlockReader | None:
    """Return the blocks behind the sound header `first`, None when it is none: the file is to be read line by line."""
    sealed = unseal_line(first[:-1]) if first.endswith(b"\n") else None
    if sealed is None or sealed.more or not sealed.fits(0) or not first.startswith(_magic(header)):
        return None
    return BlockReader(file, first, ChecksumChain(sealed.seq, sealed.checksum), known)


def scan_lines(
    file: BinaryIO, chain: ChecksumChain | None = None, offset: int = 0
) -> Iterator[tuple[int, bytes, UncheckedLine | None, str]]:
    """Yield the lines of `file` from `offset`, where it stands: where each begins, what it is, and that taken apart.

    `chain` is that of the lines before. What is no good line is not taken apart; the text says why, or what else is to
    be said about the line.
    """
    chain = chain or ChecksumChain()
    for line in file:
        content = line[:-1]
        sealed = unseal_line(content) if line.endswith(b"\n") else None
        good, remark = chain.take(content, sealed)
        yield offset, line, sealed if good else None, remark
        offset += len(line)


def _magic(header: bytes | None) -> bytes:
    return header[:-1].partition(b",")[0] if header else b"{"


def _require_ours(path: Path, line: bytes, header: bytes | None) -> None:
    magic = _magic(header)
    sealed = unseal_line(line[:-1])
    if line.startswith(b"\0"):
        # The power was cut before the first block reached the disk, though others may have.
        ours = not line.endswith(b"\n") or unseal_line(b"{" + line[:-1].lstrip(b"\0")) is not None
    elif not line.endswith(b"\n"):
        # The very first write was cut short.
        ours = magic.startswith(line) or line.startswith(magic)
    else:
        ours = sealed is not None and (line.startswith(magic) or not sealed.fits(0))
    if not ours:
        raise ForeignFileError(
            f"{path} has a foreign header ({magic.decode(errors='replace')}...) and was not changed: "
            "move it away, or choose another folder"
        )
    if header is None or sealed is None or not sealed.fits(0):
        return
    try:
        known, found = _version.decode(header).version, _version.decode(sealed.object).version
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ForeignFileError(f"{path} has a header without a version, so it was left alone: {error}") from error
    if found > known:
        raise ForeignFileError(
            f"{path} is of version {found} and this program knows {known}, so it was left alone: "
            "use the newer program that wrote it"
        )


def newest_first(path: Path) -> Iterator[bytes]:
    """Yield the checked objects of the file at `path`, the last one first; see `newest_sealed`."""
    return (sealed.object for sealed in newest_sealed(path))


def newest_sealed(path: Path) -> Iterator[UncheckedLine]:
    """Yield the checked lines of the file at `path`, the last one first, reading no more of it than is asked for.

    An unfinished append at the end, and every line that does not fit the one before it, is passed over. A missing file
    holds nothing. Raises StoreError when the file cannot be read.
    """
    finished = False
    after: UncheckedLine | None = None
    for line in lines_backwards(path):
        sealed = unseal_line(line)
        if after is not None and after.fits(sealed.checksum if sealed else 0):
            finished = finished or not after.more
            if finished:
                yield after
        after = sealed


def last_position(path: Path) -> TranscriptPosition | None:
    """Return the last line of the file at `path` by what it states, None if it has no such line. Raises StoreError."""
    return next(_positions(path), None)


def find_position(path: Path, seq: int) -> TranscriptPosition | None:
    """Return the line with the number `seq` of the file at `path`, else the one before the place where it is missing.

    None when there is no such line. Reads the file from its end, no further than that line, and checks no checksum.
    Raises StoreError.
    """
    return next((position for position in _positions(path) if position.seq <= seq), None)


def _positions(path: Path) -> Iterator[TranscriptPosition]:
    for line in lines_backwards(path):
        if (sealed := unseal_line(line)) is not None:
            yield TranscriptPosition(sealed.seq, sealed.checksum)


class AppendLog:
    """A file that only grows, with one writer. Made by `AppendLog.open`.

    For one thread; `sync` alone may run in another beside `append`.
    """

    # What tests of faults replace, and `without_fsync`.
    _write: Callable[[int, bytes | memoryview], int] = staticmethod(os.write)
    _fdatasync: Callable[[int], None] = staticmethod(getattr(os, "fdatasync", os.fsync))  # macOS has none
    _sync_folder: Callable[[Path], None] = staticmethod(sync_folder)

    def __init__(self, path: Path, descriptor: int, durability: Durability, loaded: LogContents) -> None:
        self.path = path
        self.on_dirty: Callable[[], None] | None = None
        """Called at the first append after a `sync`, or the opening, that leaves bytes unsynced."""
        self._descriptor = descriptor
        self._each = durability == "power"
        # Offset, seq, checksum, and the sum of all bytes, None: nobody knows. Assigned once an append: an interrupt
        # falls before it or after it, never between.
        self._state: State = (loaded.end, loaded.seq, loaded.checksum, loaded.sum)
        self._noted = loaded.noted
        self._synced = loaded.end
        # Also of a file that was there: who made it may have been killed before it came to that.
        self._named = False
        self._told = False
        self.fault = ""
        """Why nothing can be appended any more before the file is opened anew, "" as long as something can."""

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        durability: Durability = "process",
        header: bytes | None = None,
        take: Take | None = None,
        take_lines: TakeLines | None = None,
        anew: Callable[[], None] | None = None,
    ) -> tuple[AppendLog, LogContents]:
        """Open or create the file at `path`, mode 0600; return the log and what the file held already.

        `header`, an encoded object, becomes the first line of a new file and is what an old one is known by; for that,
        `take`, `take_lines` and `anew` see `load`. A torn tail is cut off and kept in `<name>.torn-<n>`. With
        `durability` "power" each append waits for the disk. Raises ForeignFileError for a file of another kind
        (untouched), StoreError when it cannot be opened.
        """
        discard_unfinished(path)
        loaded = load(path, header=header, take=take, take_lines=take_lines, anew=anew)
        if anew is not None and not loaded.end and not loaded.damage:
            loaded = msgspec.structs.replace(loaded, sum=0)  # what there is from here on, is ours
        try:
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except FileNotFoundError as error:
            raise StoreError(f"cannot create {path}: its folder does not exist") from error
        try:
            if loaded.torn:
                loaded = msgspec.structs.replace(loaded, aside=keep_aside(path, loaded.torn))
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
        """Offset behind the last line, in bytes."""
        return self._state[0]

    @property
    def seq(self) -> int:
        """Number of the last line; 0 in an empty file."""
        return self._state[1]

    @property
    def position(self) -> TranscriptPosition:
        """The last line."""
        return TranscriptPosition(self._state[1], self._state[2])

    @property
    def broken(self) -> bool:
        """Whether nothing can be appended any more: what the file holds is uncertain, and is to be read anew."""
        return bool(self.fault) and self._descriptor >= 0

    @property
    def dirty(self) -> int:
        """How many appended bytes are not synced."""
        return self._state[0] - self._synced

    def append(self, *objects: bytes, sync: bool = False) -> None:
        """Append encoded JSON objects, a line each, in one write: all of them or none.

        When it returns they survive the death of every process; with `sync`, or durability "power", also that of the
        machine. Raises StoreError naming file and cause: then nothing was appended and the log stays usable, unless it
        was the sync that failed.
        """
        self._require_usable()
        if not objects:
            return
        for object in objects:
            if len(object) > MAX_LINE_BYTES:
                raise StoreError(
                    f"cannot append to {self.path}: a line of {len(object)} bytes, the most is {MAX_LINE_BYTES}"
                )
            if len(object) < 3 or object[:1] != b"{" or object[-1:] != b"}" or b"\n" in object:
                raise StoreError(f"cannot append to {self.path}: not a JSON object on one line: {object[:40]!r}")
        end, seq, checksum, sum = self._state
        data, seq, checksum = seal_lines(objects, seq, checksum)
        self._commit(data, (end + len(data), seq, checksum, crc32(data, sum) if sum is not None else None))
        if end - self._noted >= PREFIX_NOTE_INTERVAL_BYTES:
            self._note()  # for whoever opens the file when this process was killed
        if sync or self._each:
            self.sync()
        elif not self._told and self.on_dirty is not None:
            self._told = True
            self.on_dirty()

    def sync(self) -> None:
        """Wait until everything appended is on the disk.

        A failure is the end of this log: the kernel may have dropped the bytes, and a second try could falsely
        succeed. Raises StoreError then and ever after; open the file again to see what it holds.
        """
        self._require_usable()
        self._told = False
        end = self._state[0]
        try:
            self._fdatasync(self._descriptor)
            if not self._named:
                # A new file is lost with its name: the folder, itself perhaps as new, must reach the disk as well.
                self._sync_folder(self.path.parent)
                self._sync_folder(self.path.parent.parent)
                self._named = True
            if not os.fstat(self._descriptor).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "somebody removed it")
        except OSError as error:
            # The descriptor stays taken until close, so that its number cannot come to mean another file.
            self.fault = f"cannot sync {self.path}: {error_text(error)}; what it holds is uncertain, open it anew"
            raise StoreError(self.fault) from error
        self._synced = max(self._synced, end)

    def close(self) -> None:
        """Sync what is unsynced and close the file; closing twice does nothing."""
        if self._descriptor < 0:
            return
        try:
            if self.dirty and not self.fault:
                self.sync()
            self._note()
        finally:
            descriptor, self._descriptor = self._descriptor, -1
            self.fault = self.fault or f"{self.path} is closed"
            os.close(descriptor)

    def _note(self) -> None:
        """Note what is known of a long file, if that is much more than was noted of it."""
        end, seq, checksum, sum = self._state
        if sum is not None and end - self._noted >= MIN_PREFIX_BYTES and not self.fault:
            write_verified_prefix(self.path, VerifiedPrefix(end, seq, checksum, sum))
            self._noted = end

    def _require_usable(self) -> None:
        if self.fault:
            raise StoreError(self.fault)

    def _commit(self, data: bytes, state: State) -> None:
        try:
            written = self._write(self._descriptor, data)
            while written < len(data):
                # Short without an error; writing the rest names the cause.
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
            self.fault = f"cannot take a half-written line back from {self.path}: {error_text(error)}; open it anew"
            raise StoreError(self.fault) from error


@contextmanager
def without_fsync() -> Iterator[None]:
    """Let no log of this process wait for the disk meanwhile: for files that are removed before anybody reads them."""
    fdatasync, folder = AppendLog._fdatasync, AppendLog._sync_folder
    AppendLog._fdatasync = AppendLog._sync_folder = staticmethod(lambda _: None)
    try:
        yield
    finally:
        AppendLog._fdatasync, AppendLog._sync_folder = staticmethod(fdatasync), staticmethod(folder)
