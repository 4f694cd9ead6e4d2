"""Results too long to be shown: kept whole on disk, each under a handle that survives the process."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from orch_protocol.taint import Bit, Mark, mark

from .base import ToolContext, ToolError
from .regular import open_regular

__all__ = ["FOLDER", "HANDLE", "LEAST_SHOWN", "Stash", "keep_only", "level"]

FOLDER: Final = "stash"
HANDLE: Final = re.compile(rb"h_\d{3,}")
"""A handle, as a session file names it."""

NAME: Final = re.compile(r"(h_\d{3,})-([0-9a-f]{32}(?:-[us]+)?)\.txt")
LETTERS: Final[dict[Bit, str]] = {"untrusted": "u", "sensitive": "s"}
LEAST_SHOWN: Final = 300


class Stash:
    """The stashed results of one agent: files named by handle and content, so that nothing is kept twice."""

    def __init__(self, context: ToolContext) -> None:
        if context.folder is None:
            raise ToolError("nothing is stashed here: this agent has no session folder")
        self._folder = context.folder / FOLDER

    def keep(self, text: str, bits: Collection[Bit] = ()) -> str:
        """Keep `text`, which brought `bits`, and return its handle, such as `.h_001`. Raises OSError."""
        data = text.encode()
        digest = hashlib.sha256(data).hexdigest()[:32]
        if letters := "".join(letter for bit, letter in LETTERS.items() if bit in bits):
            digest = f"{digest}-{letters}"
        files = self._files()
        for handle, file in files.items():
            if file.name.endswith(f"-{digest}.txt"):
                return f".{handle}"
        number = 1 + max((int(handle[2:]) for handle in files), default=0)
        handle = f"h_{number:03}"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        beside = self._folder / f"{digest}.tmp"
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as opened:
                opened.write(data)
            beside.rename(self._folder / f"{handle}-{digest}.txt")
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        return f".{handle}"

    def marks(self, handle: str) -> tuple[Mark, ...]:
        """Return what the text under `handle` brings into a conversation, again."""
        file = self._files().get(handle.strip().lstrip("."))
        found = NAME.fullmatch(file.name) if file is not None else None
        letters = found[2][32:] if found is not None else ""
        return tuple(mark(bit, f"what is kept as {handle}") for bit, letter in LETTERS.items() if letter in letters)

    def text(self, handle: str) -> str:
        """Return what is kept under `handle`. Raises ToolError when there is no such thing, OSError."""
        files = self._files()
        file = files.get(handle.strip().lstrip("."))
        if file is None:
            known = ", ".join(f".{name}" for name in list(files)[-5:])
            raise ToolError(f"There is no {handle!r}. {f'The last handles: {known}' if known else 'Nothing is kept'}.")
        with open_regular(file) as opened:
            return opened.read().decode()

    def _files(self) -> dict[str, Path]:
        return _files(self._folder)


def keep_only(session: Path, named: Collection[str]) -> None:
    """Remove what is stashed in the session folder under other handles than those `named`. Raises OSError."""
    for handle, file in _files(session / FOLDER).items():
        if handle not in named:
            file.unlink()


def _files(folder: Path) -> dict[str, Path]:
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return {}
    matches = filter(None, map(NAME.fullmatch, names))
    return {match[1]: folder / match[0] for match in matches}


def level(lengths: Iterable[int], total: int, most: int) -> int:
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
