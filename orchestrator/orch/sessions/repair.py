"""A session file with damage, written again without it. The damaged one stays, as it is, under its own or another name.

What is left out, and what gets another place, is said. Archives are found where their lines stand in the new file.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.core.errors import DamagedError, ForeignFileError, OrchError, StoreError
from orch_protocol.core.ids import new_id
from orch_protocol.session.entries import SessionHeader
from orch_protocol.session.tree import FileFinding
from orch_worker.session.log.append_log import AppendLog, load
from orch_worker.session.log.atomic_rewrite import SUFFIX, discard_unfinished
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.transcript import NAME
from orch_worker.system.files import io_error, sync_folder

from ..tree.agents.state import iso_time
from .findings import SESSION_HEADER, in_archives, in_session
from .formats.conversation import DECODE_ERRORS, ImportedSession, Reading
from .formats.detect import read_file
from .formats.json_lines import text_of_file
from .formats.native import is_ours, read_own
from .import_ import write_entries

__all__ = ["findings_of", "mend", "mended_copy"]

KEPT: Final = "damaged"


def findings_of(path: Path) -> list[FileFinding]:
    """Return what is wrong with the session in the file at `path`, of whichever program. Raises StoreError: no file."""
    try:
        with open(path, "rb") as file:
            ours = is_ours(file.readline().rstrip(b"\r\n"))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if ours:
        return list(in_session(path))
    try:
        found = read_file(path, repair=True)
    except (ForeignFileError, DamagedError) as error:
        return [FileFinding(str(path), "foreign", str(error), "put a whole copy in its place")]
    do = f"`orch session import {path} --repair` takes the conversation over so"
    return [FileFinding(str(path), "damaged", each, do) for one in found for each in one.repairs]


def mended_copy(source: Path, target: Path) -> list[str]:
    """Write what the session file of ours at `source` says to the new file `target`, with nothing wrong in it.

    Return what was set right. Raises ForeignFileError for another program's file, StoreError when `target` is there or
    cannot be written.
    """
    if target.exists():
        raise StoreError(f"{target} is there already: name another file, or move it away")
    try:
        return _write(source, target, "")
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def mend(folder: Path, agent: str) -> tuple[list[str], Path]:
    """Put a mended copy in the place of the session file in `folder`, the agent's own; keep the damaged one beside it.

    Return what was set right, and where the damaged one is. Who is killed on the way leaves either file in its place.
    Raises LockedError when the agent has a process, ForeignFileError when the file is none of the agent's, StoreError.
    """
    lock = FolderLock.acquire(folder)
    path = folder / NAME
    beside = path.with_name(f"{NAME}{SUFFIX}")
    try:
        discard_unfinished(path)
        done = _write(path, beside, agent)
        kept = _keep(path)
        os.replace(beside, path)
        sync_folder(folder)
        return done, kept
    except OSError as error:
        raise io_error("mend", path, error) from error
    finally:
        discard_unfinished(path)
        lock.release()


def _keep(path: Path) -> Path:
    """Give the file at `path` the first free name `<name>.damaged-<n>` as well, and return it."""
    number = 1
    while True:
        kept = path.with_name(f"{path.name}.{KEPT}-{number}")
        try:
            os.link(path, kept)
            return kept
        except FileExistsError:
            number += 1


def _write(source: Path, target: Path, agent: str) -> list[str]:
    reading = Reading(source, repair=True)
    try:
        data = source.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {source}: {error.strerror}") from error
    if not is_ours(data.partition(b"\n")[0]):
        try:
            load(source, header=SESSION_HEADER, take=lambda _: None)  # the first line itself may be what is damaged
        except ForeignFileError:
            raise reading.foreign("not an orch session; use `orch session import --repair` for other formats") from None
    found = read_own(text_of_file(data, reading), reading)
    header = _header(source, found)
    if agent and header.agent not in ("", agent):
        raise ForeignFileError(f"{source} is the transcript of agent {header.agent!r}, not of {agent!r}")
    header = msgspec.structs.replace(header, agent=agent or header.agent)
    log, _ = AppendLog.open(target, header=msgspec.json.encode(header))
    try:
        write_entries(log, found, {})
    finally:
        log.close()
    less = [f"{each.what}: it goes on without that" for each in in_archives(source)]
    return [*reading.repairs, *less]


def _header(source: Path, found: ImportedSession) -> SessionHeader:
    try:
        return msgspec.json.decode(load(source, header=SESSION_HEADER, take=lambda _: None).header, type=SessionHeader)
    except (OrchError, *DECODE_ERRORS):
        return SessionHeader(id=new_id(), timestamp=iso_time(time.time()), cwd=found.cwd)
