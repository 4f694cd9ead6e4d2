"""What is kept under handles: files of one agent, named by handle and content, that survive its process."""

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

from ...system.files import regular_open_regular
from ..api.base import ToolContext, ToolError

__all__ = [
    "FOLDER",
    "HANDLE",
    "LEAST_SHOWN",
    "TEXT",
    "HandleFile",
    "HandleMetadata",
    "ValueFiles",
    "handle_name",
    "keep_only",
    "shared_limit",
    "take_along",
]

FOLDER: Final = "stash"
HANDLE: Final = re.compile(rb"h_\d{3,}")
"""A handle, as a session file names it."""

NAME: Final = re.compile(r"(h_\d{3,})-([0-9a-f]{32})(?:-([us]+))?\.([a-z]+)")
NOTE: Final = re.compile(r"(h_\d{3,})\.note")
SPELLING: Final = re.compile(r"\.?h_(\d{1,9})|(\d{1,9})")
LETTERS: Final[dict[Bit, str]] = {"untrusted": "u", "sensitive": "s"}
LEAST_SHOWN: Final = 300
TEXT: Final = "txt"
MOST_TEXTS: Final = 256 << 20
"""Bytes that texts may take under the handles of one agent: years of long results, and no full disk."""


class HandleMetadata(Struct, frozen=True, omit_defaults=True):
    """What is known of a value under a handle besides what is in its file.

    `kind` is that of `movable`, "" for one that could not be made data, which `why` says: it lives as long as its
    process. `gone` is why there is nothing any more. A `local` one is for models of this machine alone.
    """

    type: str
    extent: str = ""
    size: int = 0
    lines: tuple[str, ...] = ()
    kind: str = ""
    why: str = ""
    pinned: bool = False
    gone: str = ""
    local: bool = False


class HandleFile(Struct, frozen=True):
    """The file that holds what is under a handle."""

    path: Path
    digest: str
    letters: str
    ending: str

    @property
    def bits(self) -> tuple[Bit, ...]:
        """What its content brings into a conversation."""
        return tuple(bit for bit, letter in LETTERS.items() if letter in self.letters)


class ValueFiles:
    """The files of one agent: one a handle, so named that nothing is kept twice, and a note where there is one."""

    def __init__(self, context: ToolContext) -> None:
        if context.folder is None:
            raise ToolError("nothing is stashed here: this agent has no session folder")
        self._folder = context.folder / FOLDER
        self.lock = threading.RLock()
        """Held by whoever takes a new handle until it stands for something."""

    def keep(self, text: str, bits: Collection[Bit] = ()) -> str:
        """Keep `text`, which brought `bits`, and return its handle, such as `.h_001`. Raises OSError.

        When texts take too much the oldest go that are not pinned; their handles say so.
        """
        with self.lock:
            handle = self.put(text.encode(), TEXT, bits)
            self._make_room(handle_name(handle))
        return handle

    def _make_room(self, but: str) -> None:
        texts = {handle: file.path for handle, file in self.files().items() if file.ending == TEXT}
        sizes = {handle: path.stat().st_size for handle, path in texts.items()}
        over = sum(sizes.values()) - MOST_TEXTS
        for handle in sorted(sizes, key=lambda handle: int(handle[2:])):
            if over <= 0:
                return
            note = self.noted(handle) or HandleMetadata("text", size=sizes[handle])
            if handle != but and not note.pinned:
                over -= sizes[handle]
                self.note(handle, replace(note, gone=f"texts may take {MOST_TEXTS >> 20} MiB, and it was the oldest"))
                self.drop(handle)

    def put(self, data: bytes, ending: str, bits: Collection[Bit] = (), note: HandleMetadata | None = None) -> str:
        """Keep `data` in a file that ends so, with `note`, and return its handle: the old one of the same data.

        Raises OSError.
        """
        letters = "".join(letter for bit, letter in LETTERS.items() if bit in bits)
        tail = f"{hashlib.sha256(data).hexdigest()[:32]}{f'-{letters}' if letters else ''}.{ending}"
        with self.lock:
            for handle, file in self.files().items():
                if file.path.name.endswith(f"-{tail}"):
                    if note is not None and note.local:
                        self.note(handle, replace(self.noted(handle) or note, local=True))
                    return f".{handle}"
            handle = self.next()
            if note is not None:  # before its file: that it is local is never not known
                self.note(handle, note)
            _written(self._folder / f"{handle}-{tail}", data)
            return f".{handle}"

    def next(self) -> str:
        """Return a handle that stands for nothing yet."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        return f"h_{1 + max((int(handle[2:]) for handle in self.handles()), default=0):03}"

    def note(self, handle: str, note: HandleMetadata) -> None:
        """Let `note` be what is known of `handle`. Raises OSError."""
        _written(self._folder / f"{handle}.note", msgspec.json.encode(note))

    def noted(self, handle: str) -> HandleMetadata | None:
        """Return what is known of `handle`, None when that is only its file."""
        try:
            with regular_open_regular(self._folder / f"{handle_name(handle)}.note") as opened:
                return msgspec.json.decode(opened.read(), type=HandleMetadata)
        except (OSError, msgspec.MsgspecError):
            return None

    def drop(self, handle: str) -> None:
        """Let the file under `handle` be gone; its note stays. Raises OSError."""
        if (file := self.files().get(handle_name(handle))) is not None:
            file.path.unlink(missing_ok=True)

    def marks(self, handle: str) -> tuple[TaintLabel, ...]:
        """Return what is under `handle` brings into a conversation, again."""
        file = self.files().get(handle_name(handle))
        return tuple(taint_label(bit, f"what is kept as {handle}") for bit in file.bits) if file is not None else ()

    def text(self, handle: str) -> str:
        """Return the text that is kept under `handle`. Raises ToolError when there is no such thing, OSError."""
        return self.read(handle).decode()

    def read(self, handle: str) -> bytes:
        """Return what is in the file under `handle`. Raises ToolError when there is none, OSError."""
        file = self.files().get(handle_name(handle))
        if file is None:
            raise ToolError(self.missing(handle))
        with regular_open_regular(file.path) as opened:
            return opened.read()

    def missing(self, handle: str) -> str:
        """Return what is to be said of a handle under which nothing is."""
        if (note := self.noted(handle)) is not None and note.gone:
            return f".{handle_name(handle)} is gone: {note.gone}."
        known = ", ".join(f".{name}" for name in self.handles()[-5:])
        return f"There is no {handle!r}. {f'The last handles: {known}' if known else 'Nothing is kept'}."

    def files(self) -> dict[str, HandleFile]:
        """Return the file of each handle that has one, in order."""
        return _files(self._folder)

    def handles(self) -> list[str]:
        """Return all handles that were ever given out, in order: `h_001` and so on."""
        return sorted({*_files(self._folder), *_notes(self._folder)}, key=lambda handle: int(handle[2:]))


def _written(path: Path, data: bytes) -> None:
    beside = path.with_name(f"{path.name}.tmp")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as opened:
            opened.write(data)
        beside.rename(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def handle_name(handle: str) -> str:
    """Return the handle that `handle` spells, as `h_001`; what is none comes back as it is."""
    match = SPELLING.fullmatch(handle.strip())
    return f"h_{int(match[1] or match[2]):03}" if match else handle


def keep_only(session: Path, names: Collection[str]) -> None:
    """Remove what is stashed in the session folder under other handles than those named. Raises OSError."""
    folder = session / FOLDER
    for handle, file in _files(folder).items():
        if handle not in names:
            file.path.unlink()
    for handle, path in _notes(folder).items():
        if handle not in names:
            path.unlink()


def take_along(session: Path, copy: Path, text: bytes) -> None:
    """Let the session folder `copy`, whose session says `text`, have what that names of the stash of `session`.

    Files of a stash are replaced, never written to: both have the same ones. Raises OSError.
    """
    names = {found.decode() for found in HANDLE.findall(text)}
    there = {name: file.path for name, file in _files(session / FOLDER).items()}
    paths = [path for found in (there, _notes(session / FOLDER)) for name, path in found.items() if name in names]
    if paths:
        (copy / FOLDER).mkdir(mode=0o700, exist_ok=True)
    for path in paths:
        try:
            os.link(path, copy / FOLDER / path.name, follow_symlinks=False)
        except OSError:  # another file system, or one without links
            with regular_open_regular(path) as opened:
                _written(copy / FOLDER / path.name, opened.read())


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _files(folder: Path) -> dict[str, HandleFile]:
    matches = filter(None, map(NAME.fullmatch, _listed(folder)))
    return {match[1]: HandleFile(folder / match[0], match[2], match[3] or "", match[4]) for match in matches}


def _notes(folder: Path) -> dict[str, Path]:
    return {match[1]: folder / match[0] for match in filter(None, map(NOTE.fullmatch, _listed(folder)))}


def shared_limit(lengths: Iterable[int], total: int, most: int) -> int:
    """Return how long each text may be at most, so that none is over `most` and all together are not over `total`.

    Short texts stay whole: the longest are cut first, down to one level, which is never absurdly low.
    """
    left, sizes = total, sorted(lengths)
    for place, size in enumerate(sizes):
        others = len(sizes) - place
        if min(size, most) * others > left:
            return max(min(left // others, most), LEAST_SHOWN)
        left -= min(size, most)
    return most
