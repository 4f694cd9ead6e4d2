"""What is wrong with the files below a home: which file, what, and what to do. Nothing that is found is thrown away.

Reading changes nothing. `repair` does what can be done without losing a byte: it cuts unfinished writes off, which are
kept beside the file, and closes files to other users. Damage inside a file stays where it is: readers pass over it, and
archives are found by where they stand.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from orch_protocol.errors import DamagedError, LockedError, OrchError
from orch_worker.lock import FolderLock
from orch_worker.store import AppendLog, Loaded, load
from orch_worker.transcript import NAME as SESSION

from . import paths
from .archival.ledger import Ledger
from .journal import HEADER

__all__ = ["Found", "examine", "repair"]

JOURNAL: Final = "journal.jsonl"
MODE: Final = 0o077
SESSION_HEADER: Final = b'{"type":"session","version":3}'


class Found(Struct, frozen=True):
    """One thing that is wrong with the file or folder at `path`, and what to do about it. `kind` is `torn`, `damaged`,
    `foreign`, `archive` or `open`; `mended` says what `repair` did, if it did something."""

    path: str
    kind: str
    what: str
    do: str
    mended: str = ""


def examine(home: Path) -> Iterator[Found]:
    """Yield what is wrong below `home`, file by file."""
    if not home.is_dir():
        return
    for path in sorted([home, *home.rglob("*")]):
        if not path.is_symlink() and path.exists() and stat.S_IMODE(path.stat().st_mode) & MODE:
            yield Found(str(path), "open", "other users may read it", "chmod go-rwx, or --repair")
    for path in sorted(paths.runs_dir(home).glob(f"*/{JOURNAL}")):
        yield from _lines(path)
    for path in sorted(paths.sessions_dir(home).rglob(SESSION)):
        yield from _lines(path)
        yield from _archives(path)


def repair(found: Found) -> Found:
    """Do what can be done about `found` without losing a byte, and return it with what was done."""
    path = Path(found.path)
    try:
        if found.kind == "open":
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~MODE)
            return msgspec.structs.replace(found, mended="nobody else may read it any more")
        if found.kind == "torn":
            lock = FolderLock.acquire(path.parent)
            try:
                log, loaded = AppendLog.open(path, header=_header(path))
                log.close()
            finally:
                lock.release()
            where = f"kept in {loaded.aside.name}" if loaded.aside else "there was nothing to cut off any more"
            return msgspec.structs.replace(found, mended=where)
    except LockedError:
        return msgspec.structs.replace(found, do="it is being written: nothing is wrong, unless this stays so")
    except (OrchError, OSError) as error:
        return msgspec.structs.replace(found, do=f"{found.do}; it cannot be repaired now: {error}")
    return found


def _lines(path: Path) -> Iterator[Found]:
    try:
        loaded = load(path, header=_header(path))
    except OrchError as error:
        yield Found(str(path), "foreign", str(error), "move it away, or put a copy from before in its place")
        return
    if loaded.torn:
        what = f"{len(loaded.torn)} bytes of a write that did not end, from byte {loaded.end} on"
        yield Found(
            str(path), "torn", what, "whoever opens it cuts them off and keeps them beside it; so does --repair"
        )
    yield from _damage(path, loaded)


def _damage(path: Path, loaded: Loaded) -> Iterator[Found]:
    for each in loaded.damage:
        what = f"line {each.line} (bytes {each.offset} to {each.offset + each.length}): {each.reason}"
        if each.reason.startswith("follows"):
            yield Found(
                str(path), "damaged", what, "it is read; whether lines before it are gone, a copy from before tells"
            )
        else:
            yield Found(str(path), "damaged", what, "it is passed over, everything else is read; it stays where it is")


def _archives(path: Path) -> Iterator[Found]:
    ledger = Ledger(path.parent)
    try:
        ledger.catch_up()
    except OrchError:
        return  # that it cannot be read is found already
    for id in list(ledger.records):
        if ledger.records[id].deleted:
            continue
        try:
            ledger.read(id)
        except DamagedError as error:
            yield Found(str(path), "archive", str(error), f"`orch archive read {id}` shows what is left of it")


def _header(path: Path) -> bytes:
    return HEADER if path.name == JOURNAL else SESSION_HEADER
