"""Reads durable files: from the start, from a given place, or from the end. Reading takes no lock and changes nothing.

Damaged lines at the end are a torn tail: an append that was never completed. Damaged lines before an undamaged line are
skipped and reported. `record_format` defines the format of a line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import ForeignFileError
from orch_protocol.session.entries import TranscriptPosition

from ...system.files import io_error, lines_backwards, open_regular
from .blocks import BlockReader
from .record_format import MAX_LINE_BYTES, ChecksumChain, UncheckedLine, unseal_line
from .verified_prefix import LineSpan, PrefixMismatchError, VerifiedPrefix, read_verified_prefix

__all__ = [
    "Damage",
    "LogContents",
    "LogCursor",
    "LogLine",
    "OnBlock",
    "OnObject",
    "find_position",
    "group_appends",
    "last_position",
    "load",
    "newest_first",
    "newest_sealed",
    "other_version",
    "read_header",
    "read_objects",
    "scan_file",
    "scan_lines",
]

READ_BUFFER_BYTES: Final = 1 << 20
TAIL_BYTES: Final = 24
"""Number of bytes at the end of a line that identify the line, because they contain its checksum."""


class LogLine(Struct, frozen=True, gc=False):
    """One line of a file.

    `number` is the line number, counted from 1. `offset` is in bytes. `data` is the unchanged line with its newline.
    `sealed` is None for a damaged line. `remark` describes a problem of the line, or is "". A readable line has a
    remark if the lines before it are lost.
    """

    number: int
    offset: int
    data: bytes
    sealed: UncheckedLine | None
    remark: str

    @property
    def end(self) -> int:
        """The offset after the line."""
        return self.offset + len(self.data)

    @property
    def object(self) -> bytes | None:
        """The object on the line, or None for a damaged line."""
        return self.sealed.object if self.sealed is not None else None


class Damage(Struct, frozen=True):
    """A range of damaged lines in a file. `line` is the first line number, counted from 1.

    `offset` and `length` are in bytes.
    """

    line: int
    offset: int
    length: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


class LogContents(Struct, frozen=True):
    """The contents of a file: its header (b"" if none), the undamaged objects in order, damage, and the torn tail.

    `end` is the offset after the last undamaged line. `seq` and `checksum` are the number and checksum of this line.
    `torn_tail_file` contains the saved torn tail. `sum` is the CRC-32 of a file without damage, or None if the CRC-32
    was not computed. `recorded_prefix_end` is the length of the verified prefix.
    """

    header: bytes
    objects: list[bytes]
    damage: list[Damage]
    torn: bytes
    end: int
    seq: int
    checksum: int
    torn_tail_file: Path | None = None
    sum: int | None = None
    recorded_prefix_end: int = 0

    @property
    def report(self) -> str:
        """One line about all problems, or "" if there are none."""
        parts = [str(damage) for damage in self.damage[:5]]
        if len(self.damage) > 5:
            parts.append(f"and {len(self.damage) - 5} more bad lines")
        if self.torn:
            where = f", kept in {self.torn_tail_file.name}" if self.torn_tail_file else ""
            parts.append(f"{len(self.torn)} bytes of an unfinished write at the end{where}")
        return "; ".join(parts)


OnObject: TypeAlias = Callable[[bytes], None]
OnBlock: TypeAlias = Callable[[bytes, LineSpan], None]


class _FileVersion(Struct):
    version: int = 0


_version: msgspec.json.Decoder[_FileVersion] = msgspec.json.Decoder(_FileVersion)


def load(
    path: Path,
    *,
    header: bytes | None = None,
    on_object: OnObject | None = None,
    on_block: OnBlock | None = None,
    on_restart: Callable[[], None] | None = None,
) -> LogContents:
    """Return the contents of the file at `path`. The contents are empty if the file is missing or empty.

    `header` is the expected header, encoded. The header of the file must have the same first key and value, and the
    same `version`.

    - `on_object` is called with each undamaged object of a complete append. In this case, the result contains no
      objects, so that files of any size can be read.
    - `on_block` is called with blocks of verified, unchanged lines. After the last block, `on_object` is called with
      each remaining object.
    - If `on_restart` is given, lines that were verified before are not checked one by one. If the file has changed,
      `on_restart` is called, and all lines are passed again.

    Raise ForeignFileError for a wrong header. Raise StoreError if the file cannot be read.
    """
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return LogContents(b"", [], [], b"", 0, 0, 0)
    found = torn = b""
    objects: list[bytes] = []
    on_object = on_object or objects.append
    damage: list[Damage] = []
    try:
        with open(descriptor, "rb", buffering=READ_BUFFER_BYTES) as file:
            first = file.readline(MAX_LINE_BYTES + 64)
            _check_header(path, first, header)
            prefix = read_verified_prefix(path) if on_restart is not None else None
            blocks = _blocks(file, first, header, prefix) if on_block is not None and header is not None else None
            chain, end, number = ChecksumChain(), 0, 0
            if blocks is not None and on_block is not None:
                found = unsealed.object if (unsealed := unseal_line(first[:-1])) else b""
                start, before = blocks.offset, blocks.sum
                for block in blocks:
                    on_block(block, LineSpan(start, blocks.offset, before, blocks.sum))
                    start, before = blocks.offset, blocks.sum
                chain, end, number = blocks.chain, blocks.offset, blocks.number
            seq, checksum = chain.seq, chain.checksum
            file.seek(end)
            for lines, complete in group_appends(scan_lines(file, chain, offset=end, number=number + 1)):
                if not complete:
                    torn = b"".join([line.data for line in lines])
                    break
                for line in lines:
                    if line.remark:
                        damage.append(Damage(line.number, line.offset, len(line.data), line.remark))
                    if line.sealed is None:
                        continue
                    if header is not None and line.number == 1 and line.data.startswith(_magic(header)):
                        found = line.sealed.object
                    else:
                        on_object(line.sealed.object)
                    end, seq, checksum = line.end, line.sealed.seq, line.sealed.checksum
    except PrefixMismatchError:
        assert on_restart is not None
        on_restart()
        return load(path, header=header, on_object=on_object, on_block=on_block)
    except OSError as error:
        raise io_error("read", path, error) from error
    if blocks is None or blocks.offset != end or blocks.number != seq:
        return LogContents(found, objects, damage, torn, end, seq, checksum)
    recorded_prefix_end = blocks.known.end if blocks.known is not None else 0
    return LogContents(found, objects, damage, torn, end, seq, checksum, None, blocks.sum, recorded_prefix_end)


def read_objects(path: Path, *, header: bytes | None = None) -> Iterator[bytes]:
    """Yield the undamaged objects of the file at `path`, the header first. At most one append is in memory at a time.

    Incomplete appends are omitted. An object may contain the keys that seal its line. A missing file yields nothing.
    Raise the same errors as `load`.
    """
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        with open(descriptor, "rb", buffering=READ_BUFFER_BYTES) as file:
            first = file.readline(MAX_LINE_BYTES + 64)
            _check_header(path, first, header)
            blocks = _blocks(file, first, header) if header is not None else None
            if blocks is not None:
                yield first[:-1]
                for block in blocks:
                    yield from block[:-1].split(b"\n")
            file.seek(blocks.offset if blocks is not None else 0)
            for lines, complete in group_appends(scan_lines(file, blocks.chain if blocks is not None else None)):
                if complete:
                    yield from (line.sealed.object for line in lines if line.sealed is not None)
    except OSError as error:
        raise io_error("read", path, error) from error


def read_header(path: Path, header: bytes) -> bytes:
    """Return the header of the file at `path` without reading the rest. Return b"" if the header is missing or damaged.

    `header` is the expected header, as in `load`. Raise ForeignFileError for a wrong header. Raise StoreError if the
    file cannot be read.
    """
    try:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            first = file.readline(MAX_LINE_BYTES + 64)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise io_error("read", path, error) from error
    _check_header(path, first, header)
    sealed = _sealed_header(first, header)
    return sealed.object if sealed is not None else b""


def scan_file(path: Path) -> Iterator[LogLine]:
    """Yield the lines of the file at `path`, which may have any header.

    Raise ForeignFileError if the path is not a regular file. Raise StoreError if the file cannot be read.
    """
    try:
        with open(open_regular(path, os.O_RDONLY), "rb", buffering=READ_BUFFER_BYTES) as file:
            yield from scan_lines(file)
    except OSError as error:
        raise io_error("read", path, error) from error


def scan_lines(
    lines: Iterable[bytes], chain: ChecksumChain | None = None, *, offset: int = 0, number: int = 1
) -> Iterator[LogLine]:
    """Check `lines`, such as the lines of an open file, and yield each line as a LogLine.

    `chain` is the checksum chain of the previous lines. `offset` and `number` describe the first line.
    """
    chain = chain or ChecksumChain()
    for place, data in enumerate(lines, number):
        content = data[:-1]
        sealed = unseal_line(content) if data.endswith(b"\n") else None
        good, remark = chain.check_line(content, sealed)
        yield LogLine(place, offset, data, sealed if good else None, remark)
        offset += len(data)


def group_appends(lines: Iterable[LogLine]) -> Iterator[tuple[list[LogLine], bool]]:
    """Yield the lines of each append, and whether the append is complete. Only the last append can be incomplete.

    Damaged lines belong to the append after them.
    """
    append: list[LogLine] = []
    for line in lines:
        append.append(line)
        if line.sealed is not None and not line.sealed.more:
            yield append, True
            append = []
    if append:
        yield append, False


class LogCursor:
    """The position in a growing file after the last complete append that was read.

    Callers pass the open file to each method, so that several calls read the same file.
    """

    def __init__(self) -> None:
        self.end = 0
        """The position as an offset in bytes."""
        self._number = 0
        self._chain = (0, 0)
        # The end of the last line. Its checksum depends on all lines before it.
        self._tail = b""

    def is_valid(self, file: BinaryIO) -> bool:
        """Return whether `file` still contains the lines that were read.

        The result is False if the file was replaced or truncated.
        """
        file.seek(self.end - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def read(self, file: BinaryIO) -> Iterator[LogLine]:
        """Yield the lines of the complete appends after this position. Move the position after each append."""
        file.seek(self.end)
        lines = scan_lines(file, ChecksumChain(*self._chain), offset=self.end, number=self._number + 1)
        for append, complete in group_appends(lines):
            if not complete:
                return
            yield from append
            last = append[-1]
            assert last.sealed is not None
            self.end, self._number = last.end, last.number
            self._chain, self._tail = (last.sealed.seq, last.sealed.checksum), last.data[-TAIL_BYTES:]


def _blocks(file: BinaryIO, first: bytes, header: bytes, known: VerifiedPrefix | None = None) -> BlockReader | None:
    """Return a block reader for the lines after the header `first`.

    Return None if the file must be read line by line.
    """
    sealed = _sealed_header(first, header)
    if sealed is None or sealed.more:
        return None
    return BlockReader(file, first, ChecksumChain(sealed.seq, sealed.checksum), known)


def _sealed_header(first: bytes, header: bytes) -> UncheckedLine | None:
    """Return the first line of a file if it is undamaged and matches `header`. Otherwise return None."""
    sealed = unseal_line(first[:-1]) if first.endswith(b"\n") else None
    return sealed if sealed is not None and sealed.fits(0) and first.startswith(_magic(header)) else None


def _magic(header: bytes | None) -> bytes:
    return header[:-1].partition(b",")[0] if header else b"{"


def _check_header(path: Path, line: bytes, header: bytes | None) -> None:
    magic = _magic(header)
    sealed = unseal_line(line[:-1])
    if line.startswith(b"\0"):
        # After a power loss, the first block may be missing although later blocks were written.
        is_own_file = not line.endswith(b"\n") or unseal_line(b"{" + line[:-1].lstrip(b"\0")) is not None
    elif not line.endswith(b"\n"):
        # The first write was incomplete.
        is_own_file = magic.startswith(line) or line.startswith(magic)
    else:
        is_own_file = sealed is not None and (line.startswith(magic) or not sealed.fits(0))
    if not is_own_file:
        raise ForeignFileError(
            f"{path} has a foreign header ({magic.decode(errors='replace')}...) and was not changed: "
            "move it away, or choose another folder"
        )
    if header is None or sealed is None or not sealed.fits(0):
        return
    try:
        known, found = _version.decode(header).version, _version.decode(sealed.object).version
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ForeignFileError(f"{path} has a header without a version and was not changed: {error}") from error
    if found != known:
        raise ForeignFileError(
            f"{path} {other_version(found, known)}, move the file away, or choose another folder. "
            "The file was not changed"
        )


def other_version(found: int, known: int) -> str:
    """Return why a file of the version `found` cannot be read by this program, which reads `known`, and a remedy."""
    age = "newer" if found > known else "older"
    return f"has version {found}, but this orch reads only version {known}: use the {age} orch that wrote it"


def newest_first(path: Path) -> Iterator[bytes]:
    """Yield the verified objects of the file at `path`, the last object first. See `newest_sealed`."""
    return (sealed.object for sealed in newest_sealed(path))


def newest_sealed(path: Path) -> Iterator[UncheckedLine]:
    """Yield the verified lines of the file at `path`, the last line first. Read only as much as necessary.

    An incomplete append at the end is skipped. Lines that do not match the line before them are skipped too. A missing
    file yields nothing. Raise StoreError if the file cannot be read.
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
    """Return the position that the last line with a position states. Return None if no line states a position.

    Raise StoreError if the file cannot be read.
    """
    return next(_positions(path), None)


def find_position(path: Path, seq: int) -> TranscriptPosition | None:
    """Return the position of the line with number `seq` in the file at `path`.

    If this line is missing, return the position of the last line with a smaller number, or None. The file is read
    backwards, and checksums are not verified. Raise StoreError if the file cannot be read.
    """
    return next((position for position in _positions(path) if position.seq <= seq), None)


def _positions(path: Path) -> Iterator[TranscriptPosition]:
    for line in lines_backwards(path):
        if (sealed := unseal_line(line)) is not None:
            yield TranscriptPosition(sealed.seq, sealed.checksum)
