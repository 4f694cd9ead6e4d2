"""Write a repaired copy of a damaged session file. The damaged file is kept.

Entries that are left out or get another parent are reported. The archives in the copy contain the new offsets of their
messages.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.core.errors import DamagedError, ForeignFileError, OrchError, StoreError
from orch_protocol.core.ids import new_id
from orch_protocol.services.sessions.repair import FileFinding
from orch_protocol.session.entries import SessionHeader
from orch_worker.session.entry_codec import encode_json
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.atomic_rewrite import discard_unfinished
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.session_reader import NAME, foreign_transcript, read_header
from orch_worker.system.atomic_write import SUFFIX
from orch_worker.system.files import io_error, sync_folder

from ..tree.agents.state import iso_time
from .findings import check_archives, check_session_file
from .formats.conversation import ImportedSession, Reading
from .formats.detect import read_file
from .formats.json_lines import text_of_file
from .formats.native import is_orch_session, read_orch_session
from .import_ import write_entries

__all__ = ["findings_of", "replace_damaged", "write_repaired_copy"]

DAMAGED_SUFFIX: Final = "damaged"


def findings_of(path: Path) -> list[FileFinding]:
    """Return the problems of the session file at `path`. The file may have any known format.

    Raises StoreError if the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            is_orch = is_orch_session(file.readline().rstrip(b"\r\n"))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if is_orch:
        return list(check_session_file(path))
    try:
        found = read_file(path, repair=True)
    except (ForeignFileError, DamagedError) as error:
        return [FileFinding(str(path), "foreign", str(error), "replace it with an undamaged copy")]
    do = f"`orch session import {path} --repair` imports the conversation"
    return [FileFinding(str(path), "damaged", each, do) for one in found for each in one.repairs]


def write_repaired_copy(source: Path, target: Path) -> list[str]:
    """Write a repaired copy of the orch session file `source` to the new file `target`. Return the repairs.

    Raises ForeignFileError for a file of another program. Raises StoreError if `target` exists or cannot be written.
    """
    if target.exists():
        raise StoreError(f"{target} already exists; use another name, or move the file away")
    try:
        return _write(source, target, "")
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def replace_damaged(folder: Path, agent: str) -> tuple[list[str], Path]:
    """Replace the session file in `folder` with a repaired copy, and keep the damaged file in the same folder.

    Return the repairs and the path of the damaged file. If the process is killed during the repair, the session file is
    either the damaged file or the repaired copy. Raises LockedError if the agent has a process, ForeignFileError for a
    file of another agent or program, StoreError.
    """
    lock = FolderLock.acquire(folder)
    path = folder / NAME
    new_file = path.with_name(f"{NAME}{SUFFIX}")
    try:
        discard_unfinished(path)
        done = _write(path, new_file, agent)
        kept = _keep(path)
        os.replace(new_file, path)
        sync_folder(folder)
        return done, kept
    except OSError as error:
        raise io_error("repair", path, error) from error
    finally:
        discard_unfinished(path)
        lock.release()


def _keep(path: Path) -> Path:
    """Link the file at `path` to the first free name `<name>.damaged-<n>`, and return the new path."""
    number = 1
    while True:
        kept = path.with_name(f"{path.name}.{DAMAGED_SUFFIX}-{number}")
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
    data = text_of_file(data, reading)
    if not is_orch_session(data.partition(b"\n")[0].removesuffix(b"\r")):
        try:
            read_header(source)  # this checks the header, because the first line may be damaged
        except ForeignFileError:
            raise reading.foreign_error(
                "not an orch session; use `orch session import --repair` for other formats"
            ) from None
    found = read_orch_session(data, reading)
    header = _header(source, found)
    if agent and header.agent not in ("", agent):
        raise foreign_transcript(source, header.agent, agent)
    header = msgspec.structs.replace(header, agent=agent or header.agent)
    log, _ = AppendLog.open(target, header=encode_json(header))
    try:
        write_entries(log, found, {})
    finally:
        log.close()
    less = [f"{each.what}; the copy continues without this content" for each in check_archives(source)]
    return [*reading.repairs, *less]


def _header(source: Path, found: ImportedSession) -> SessionHeader:
    try:
        header = read_header(source)
    except OrchError:
        header = None
    return header or SessionHeader(id=new_id(), timestamp=iso_time(time.time()), cwd=found.cwd)
