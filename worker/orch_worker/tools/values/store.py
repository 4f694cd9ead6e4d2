"""The files of values under handles. A file name contains the handle and a hash of the content.

The files outlive the process.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.taint import Bit, TaintLabel, taint_label

from ...system.atomic_write import atomic_write
from ...system.files import open_regular_file
from ..api.base import ToolContext, ToolError

__all__ = [
    "FOLDER",
    "HANDLE",
    "MIN_SHOWN",
    "TEXT",
    "HandleFile",
    "HandleMetadata",
    "ValueFiles",
    "copy_values",
    "delete_other_values",
    "handle_name",
    "shared_limit",
]

FOLDER: Final = "stash"
HANDLE: Final = re.compile(rb"h_\d{3,}")
"""A handle in a session file."""

NAME: Final = re.compile(r"(h_\d{3,})-([0-9a-f]{32})(?:-([us]+))?\.([a-z]+)")
NOTE_NAME: Final = re.compile(r"(h_\d{3,})\.note")
HANDLE_TEXT: Final = re.compile(r"\.?h_(\d{1,9})|(\d{1,9})")
BIT_LETTERS: Final[dict[Bit, str]] = {"untrusted": "u", "sensitive": "s"}
MIN_SHOWN: Final = 300
TEXT: Final = "txt"
MAX_TEXTS: Final = 256 << 20
"""Maximum total size in bytes of the texts under one agent's handles."""


class HandleMetadata(Struct, frozen=True, omit_defaults=True):
    """Metadata of a value under a handle.

    `kind` is the kind of the value's encoding. If the value could not be stored, `kind` is "" and `not_stored_reason`
    is set: the value exists only as long as its process. `deletion_reason` is the reason why a value was deleted. If
    `local` is True, only local models may receive the value.
    """

    type: str
    extent: str = ""
    size: int = 0
    lines: tuple[str, ...] = ()
    kind: str = ""
    not_stored_reason: str = ""
    pinned: bool = False
    deletion_reason: str = ""
    local: bool = False


class HandleFile(Struct, frozen=True):
    """The file of a value under a handle."""

    path: Path
    digest: str
    letters: str
    extension: str

    @property
    def bits(self) -> tuple[Bit, ...]:
        """The taint bits of the value's content."""
        return tuple(bit for bit, letter in BIT_LETTERS.items() if letter in self.letters)


class ValueFiles:
    """The value files of one agent.

    There is one file for each distinct content, with a metadata note where necessary.
    """

    def __init__(self, context: ToolContext) -> None:
        if context.folder is None:
            raise ToolError("no values are stored: this agent has no session folder")
        self._folder = context.folder / FOLDER
        self.lock = threading.RLock()
        """This lock is held while a new handle is assigned."""

    def keep(self, text: str, bits: Collection[Bit] = ()) -> str:
        """Store `text` with the taint `bits`. Return its handle, such as `.h_001`. Raise OSError if writing fails.

        If the stored texts exceed their size limit, the oldest unpinned texts are deleted. The notes of these texts
        record the deletion.
        """
        with self.lock:
            handle = self.put(text.encode(), TEXT, bits)
            self._make_room(handle_name(handle))
        return handle

    def _make_room(self, new_handle: str) -> None:
        texts = {handle: file.path for handle, file in self.files().items() if file.extension == TEXT}
        sizes = {handle: path.stat().st_size for handle, path in texts.items()}
        excess_bytes = sum(sizes.values()) - MAX_TEXTS
        for handle in sorted(sizes, key=lambda handle: int(handle[2:])):
            if excess_bytes <= 0:
                return
            note = self.metadata(handle) or HandleMetadata("text", size=sizes[handle])
            if handle != new_handle and not note.pinned:
                excess_bytes -= sizes[handle]
                self.note(
                    handle,
                    replace(note, deletion_reason=f"texts may take {MAX_TEXTS >> 20} MiB, and it was the oldest"),
                )
                self.drop(handle)

    def put(self, data: bytes, extension: str, bits: Collection[Bit] = (), note: HandleMetadata | None = None) -> str:
        """Store `data` in a file with the extension `extension` and the metadata `note`. Return its handle.

        If the same data is already stored, return the existing handle. Raise OSError if writing fails.
        """
        letters = "".join(letter for bit, letter in BIT_LETTERS.items() if bit in bits)
        suffix = f"{hashlib.sha256(data).hexdigest()[:32]}{f'-{letters}' if letters else ''}.{extension}"
        with self.lock:
            for handle, file in self.files().items():
                if file.path.name.endswith(f"-{suffix}"):
                    if note is not None and note.local:
                        self.note(handle, replace(self.metadata(handle) or note, local=True))
                    return f".{handle}"
            handle = self.next_handle()
            # The note is written before the file, so that `local` is known as soon as the file exists.
            try:
                if note is not None:
                    self.note(handle, note)
                _write_file(self._folder / f"{handle}-{suffix}", data)
            finally:
                if note is None:
                    self._note_file(handle).unlink(missing_ok=True)
            return f".{handle}"

    def next_handle(self) -> str:
        """Return a new handle.

        The tool host and the worker of an agent store values at the same time. An empty note reserves the handle until
        the caller stores its value.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        number = 1 + max((int(handle[2:]) for handle in self.handles()), default=0)
        while True:
            handle = f"h_{number:03}"
            try:
                os.close(os.open(self._note_file(handle), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                number += 1
                continue
            if handle not in self.files():
                return handle
            self._note_file(handle).unlink(missing_ok=True)  # Another process was faster and has released its note.
            number += 1

    def note(self, handle: str, note: HandleMetadata) -> None:
        """Store the metadata of `handle`. Raise OSError if writing fails."""
        _write_file(self._note_file(handle), msgspec.json.encode(note))

    def _note_file(self, handle: str) -> Path:
        return self._folder / f"{handle_name(handle)}.note"

    def metadata(self, handle: str) -> HandleMetadata | None:
        """Return the metadata of `handle`. Return None if there is only a file."""
        try:
            with open_regular_file(self._note_file(handle)) as opened:
                return msgspec.json.decode(opened.read(), type=HandleMetadata)
        except (OSError, msgspec.MsgspecError):
            return None

    def drop(self, handle: str) -> None:
        """Delete the file of `handle`. Its note stays. Raise OSError if deletion fails."""
        if (file := self.files().get(handle_name(handle))) is not None:
            file.path.unlink(missing_ok=True)

    def taint_labels(self, handle: str) -> tuple[TaintLabel, ...]:
        """Return the taint labels of the value under `handle`."""
        file = self.files().get(handle_name(handle))
        return tuple(taint_label(bit, f"what is kept as {handle}") for bit in file.bits) if file is not None else ()

    def text(self, handle: str) -> str:
        """Return the text stored under `handle`.

        Raise ToolError if nothing is stored there, and OSError if reading fails.
        """
        return self.read(handle).decode()

    def read(self, handle: str) -> bytes:
        """Return the bytes stored under `handle`.

        Raise ToolError if nothing is stored there, and OSError if reading fails.
        """
        file = self.files().get(handle_name(handle))
        if file is None:
            raise ToolError(self.missing(handle))
        with open_regular_file(file.path) as opened:
            return opened.read()

    def missing(self, handle: str) -> str:
        """Return the error message for a handle without a value."""
        if (note := self.metadata(handle)) is not None and note.deletion_reason:
            return f".{handle_name(handle)} is gone: {note.deletion_reason}."
        known = ", ".join(f".{name}" for name in self.handles()[-5:])
        return f"There is no {handle!r}. {f'The last handles: {known}' if known else 'Nothing is kept'}."

    def files(self) -> dict[str, HandleFile]:
        """Return the existing files, in order. Keys are handles."""
        return _files(self._folder)

    def handles(self) -> list[str]:
        """Return all handles that were ever assigned, such as `h_001`, in order."""
        return sorted({*_files(self._folder), *_notes(self._folder)}, key=lambda handle: int(handle[2:]))


def _write_file(path: Path, data: bytes) -> None:
    with atomic_write(path, sync="none", locked=True) as file:
        file.write(data)


def handle_name(handle: str) -> str:
    """Return the canonical form of `handle`, such as `h_001`. Text that is not a handle is returned unchanged."""
    match = HANDLE_TEXT.fullmatch(handle.strip())
    return f"h_{int(match[1] or match[2]):03}" if match else handle


def delete_other_values(session: Path, names: Collection[str]) -> None:
    """Delete the stored values in the session folder `session`, except the values under the handles `names`.

    Raise OSError if deletion fails.
    """
    folder = session / FOLDER
    for handle, file in _files(folder).items():
        if handle not in names:
            file.path.unlink()
    for handle, path in _notes(folder).items():
        if handle not in names:
            path.unlink()


def copy_values(session: Path, copy: Path, text: bytes) -> None:
    """Copy stored values from the session folder `session` to the session folder `copy`.

    `text` is the copied session file. Only values with a handle in this text are copied. The copies are hard links,
    because files are replaced but never modified. Raise OSError if copying fails.
    """
    names = {paths_by_name.decode() for paths_by_name in HANDLE.findall(text)}
    files = {name: file.path for name, file in _files(session / FOLDER).items()}
    paths = [
        path
        for paths_by_name in (files, _notes(session / FOLDER))
        for name, path in paths_by_name.items()
        if name in names
    ]
    if paths:
        (copy / FOLDER).mkdir(mode=0o700, exist_ok=True)
    for path in paths:
        try:
            os.link(path, copy / FOLDER / path.name, follow_symlinks=False)
        except OSError:  # The folders are on different file systems, or the file system does not support hard links.
            with open_regular_file(path) as opened:
                _write_file(copy / FOLDER / path.name, opened.read())


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _files(folder: Path) -> dict[str, HandleFile]:
    matches = filter(None, map(NAME.fullmatch, _list_names(folder)))
    return {match[1]: HandleFile(folder / match[0], match[2], match[3] or "", match[4]) for match in matches}


def _notes(folder: Path) -> dict[str, Path]:
    return {match[1]: folder / match[0] for match in filter(None, map(NOTE_NAME.fullmatch, _list_names(folder)))}


def shared_limit(lengths: Iterable[int], total: int, limit: int) -> int:
    """Return the maximum length of each text, so that no text exceeds `limit` and their total does not exceed `total`.

    Short texts stay complete. The longest texts are cut to the same length, but not below a minimum.
    """
    remaining, sizes = total, sorted(lengths)
    for index, size in enumerate(sizes):
        remaining_count = len(sizes) - index
        if min(size, limit) * remaining_count > remaining:
            return max(min(remaining // remaining_count, limit), MIN_SHOWN)
        remaining -= min(size, limit)
    return limit
