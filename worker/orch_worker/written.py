"""Files that agents wrote while they held what strangers wrote, or what is not for everybody: who reads them, does too.

One record for all agents whose sessions lie in one folder, by path: a file counts until somebody who held nothing of it
writes it whole, or it is gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.errors import ConfigError
from orch_protocol.taint import Bit, Mark, bits_in

from .kept import locked, read, write
from .policy import Grounds

__all__ = ["added", "changed_below", "note"]

MOST: Final = 4000
"""So many files are kept in mind: those that were written last."""
MOST_SEEN: Final = 20_000
"""Behind so many names nobody looks for what code has changed."""
TICK: Final = 20_000_000
"""Nanoseconds by which a file's time may lie before the clock's."""
LOST: Final = "what agents wrote from then on is followed"

Files = dict[str, tuple[Bit, ...]]


def note(record: Path, paths: Iterable[str], marks: Iterable[Mark], *, whole: bool) -> None:
    """Keep in mind what is in the files at `paths` now; `whole`: nothing of what was there before.

    Raises StoreError, ConfigError.
    """
    bits = tuple(sorted(bits_in(marks) - {"acts"}))
    real = [os.path.realpath(path) for path in paths]
    if not real or (not bits and not record.exists()):
        return
    with locked(record.with_name(f"{record.name}.lock")):
        files = _files(record)
        before = dict(files)
        for path in real:
            old = files.pop(path, ())
            if now := tuple(sorted({*bits, *(() if whole else old)})):
                files[path] = now
        if files != before or list(files) != list(before):
            write(record, list(files.items())[-MOST:])


def added(grounds: Grounds, record: Path) -> Grounds:
    """Return `grounds` with what is kept in mind. A record that cannot be read makes every file untrusted."""
    try:
        files = _files(record)
    except ConfigError:
        files = {"/": ("untrusted",)}
    there = {path: bits for path, bits in files.items() if os.path.lexists(path)}
    untrusted = tuple(path for path, bits in there.items() if "untrusted" in bits)
    sensitive = tuple(path for path, bits in there.items() if "sensitive" in bits)
    return msgspec.structs.replace(
        grounds,
        untrusted=(*grounds.untrusted, *untrusted),
        sensitive=(*grounds.sensitive, *sensitive),
        present=grounds.present | there.keys(),
    )


def changed_below(folder: Path, since: int, apart: Iterable[Path] = ()) -> list[str]:
    """Return the files below `folder` that changed after `since` (nanoseconds since the epoch), or are in a folder that
    was moved then, as far as that is seen quickly: of a great many names the first ones. Folders that are `apart` are
    not looked into."""
    found: list[str] = []
    for seen, (entry, moved) in enumerate(_walked(str(folder), since - TICK, frozenset(map(os.path.realpath, apart)))):
        if seen >= MOST_SEEN:
            break
        try:
            if entry.is_file(follow_symlinks=False) and (
                moved or entry.stat(follow_symlinks=False).st_ctime_ns > since - TICK
            ):
                found.append(entry.path)
        except OSError:
            continue  # it is gone again
    return found


def _walked(folder: str, after: int, apart: frozenset[str]) -> Iterator[tuple[os.DirEntry[str], bool]]:
    """Yield what is no folder, and whether it is in one that was moved."""
    waiting = [(os.path.realpath(folder), False)]
    while waiting:
        place, moved = waiting.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        yield entry, moved
                    elif entry.name != ".git" and entry.path not in apart:
                        waiting.append((entry.path, moved or _is_moved(entry, after)))
        except OSError:
            continue


def _is_moved(folder: os.DirEntry[str], after: int) -> bool:
    """Say whether the folder got another name: what is in it tells of that no more than its own time of change does."""
    try:
        found = folder.stat(follow_symlinks=False)
    except OSError:
        return False
    return found.st_ctime_ns > after >= found.st_mtime_ns


def _files(record: Path) -> Files:
    return dict(read(record, list[tuple[str, tuple[Bit, ...]]], [], LOST))
