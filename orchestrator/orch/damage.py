"""What is wrong with the files below a home, and what can be done about it without losing a byte.

Looking changes nothing. `repair` cuts unfinished writes off, which are kept beside the file, sets a search index aside
that cannot be read, and closes files to other users. Damage inside a file stays where it is: readers pass over it, and
archives are found by where they stand.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.errors import LockedError, OrchError
from orch_protocol.sessions import Finding
from orch_worker.lock import FolderLock
from orch_worker.store import AppendLog
from orch_worker.transcript import NAME as SESSION

from . import paths
from .archival.index import NAME as INDEX
from .archival.index import set_aside
from .findings import JOURNAL, SESSION_HEADER, in_index, in_lines, in_session
from .journal import HEADER

__all__ = ["examine", "repair"]

MODE: Final = 0o077
AGENT: Final = re.compile("[a-f][0-9a-f]{11}")


def examine(home: Path, sessions: Path | None = None) -> Iterator[Finding]:
    """Yield what is wrong below `home`, and in the session folders in `sessions`, file by file."""
    sessions = sessions or paths.sessions_dir(home)
    if not home.is_dir():
        return
    # Elsewhere there may be files of others beside them.
    folders = [sessions] if sessions.is_relative_to(home) else list(_of_agents(sessions))
    for path in sorted({home, *home.rglob("*"), *(path for each in folders for path in (each, *each.rglob("*")))}):
        if not path.is_symlink() and path.exists() and stat.S_IMODE(path.stat().st_mode) & MODE:
            yield Finding(str(path), "open", "other users may read it", "chmod go-rwx, or --repair")
    for path in sorted(paths.runs_dir(home).glob(f"*/{JOURNAL}")):
        yield from in_lines(path, HEADER)
    for path in sorted(path for each in folders for path in each.rglob(SESSION)):
        yield from in_session(path)
    for path in sorted(path for each in folders for path in each.rglob(INDEX)):
        yield from in_index(path)


def _of_agents(sessions: Path) -> Iterator[Path]:
    return (path for path in sessions.glob("*") if AGENT.fullmatch(path.name) and path.is_dir())


def repair(found: Finding) -> Finding:
    """Do what can be done about `found` without losing a byte, and return it with what was done."""
    path = Path(found.path)
    try:
        if found.kind == "open":
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~MODE)
            return msgspec.structs.replace(found, mended="nobody else may read it any more")
        if found.kind == "torn":
            lock = FolderLock.acquire(path.parent)
            try:
                log, loaded = AppendLog.open(path, header=HEADER if path.name == JOURNAL else SESSION_HEADER)
                log.close()
            finally:
                lock.release()
            where = f"kept in {loaded.aside.name}" if loaded.aside else "there was nothing to cut off any more"
            return msgspec.structs.replace(found, mended=where)
        if found.kind == "index":
            lock = FolderLock.acquire(path.parent)
            try:
                return msgspec.structs.replace(found, mended=f"set aside as {set_aside(path).name}")
            finally:
                lock.release()
    except LockedError:
        return msgspec.structs.replace(found, do="it is being written: nothing is wrong, unless this stays so")
    except (OrchError, OSError) as error:
        return msgspec.structs.replace(found, do=f"{found.do}; it cannot be repaired now: {error}")
    return found
