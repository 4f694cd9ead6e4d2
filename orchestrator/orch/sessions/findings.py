"""Check session files, journals and search indexes for problems. Only `repair` writes.

`orch fsck` checks every file of a home. `orch session fsck` checks one session.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.core.errors import DamagedError, LockedError, OrchError
from orch_protocol.services.sessions.repair import FileFinding
from orch_protocol.session.entries import MessageEntry, SessionHeader, TranscriptPosition
from orch_worker.session.entry_codec import (
    DECODE_ERRORS,
    ENTRY_PREFIXES,
    SESSION_HEADER,
    UnknownEntry,
    decode_link,
    read_entry,
)
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.log.log_reader import LogContents, LogLine, group_appends, load, read_objects, scan_file
from orch_worker.session.session_reader import NAME as SESSION
from orch_worker.session.session_reader import missing_lines

from ..archival.store.index import NAME as INDEX
from ..archival.store.index import index_fault, rename_damaged_index
from ..archival.store.session_archives import SessionArchives
from ..config import paths
from ..tree.agents.state import AgentRecord, TreeState
from ..tree.journal.entries import decode_entry
from ..tree.journal.journal import HEADER
from ..worktrees.lifecycle import FOLDER as WORKTREES
from ..worktrees.lifecycle import UNCOMMITTED, lost_work, records, remove_at
from .formats.conversation import check_blocks

__all__ = [
    "JOURNAL",
    "check_acknowledged",
    "check_archives",
    "check_entries",
    "check_home",
    "check_index",
    "check_lines",
    "check_session_file",
    "check_worktrees",
    "repair",
]

COMMITS_FIRST: Final = "--repair commits them; then "

JOURNAL: Final = "journal.jsonl"


def check_session_file(
    path: Path, agent: str = "", acknowledged: TranscriptPosition | None = None
) -> Iterator[FileFinding]:
    """Yield the problems of the session file at `path`.

    `agent` is the id of the expected owner, "" if the owner is unknown. `acknowledged` is a line that the file must
    contain, None if no such line is known.
    """
    found = list(check_lines(path, SESSION_HEADER))
    yield from found
    if any(each.kind == "foreign" for each in found):
        return
    try:
        yield from check_entries(path, agent)
    except OrchError as error:
        yield _foreign(path, error)
        return
    if acknowledged is not None:
        yield from check_acknowledged(path, acknowledged)
    yield from check_archives(path)


def check_acknowledged(path: Path, acknowledged: TranscriptPosition) -> Iterator[FileFinding]:
    """Yield a finding if the session file at `path` does not contain the line `acknowledged`."""
    try:
        missing = missing_lines(path, acknowledged)
    except OrchError as error:
        yield _foreign(path, error)
        return
    if missing:
        do = "replace it with a backup copy; without a backup, a query to the agent continues with the remaining lines"
        yield FileFinding(str(path), "truncated", missing, do)


def check_lines(path: Path, header: bytes) -> Iterator[FileFinding]:
    """Yield the problems of the lines of the file at `path`.

    The first line should be a header with the type of `header`.
    """
    try:
        loaded = load(path, header=header, on_object=lambda _: None)
    except OrchError as error:
        yield _foreign(path, error)
        return
    if loaded.torn:
        what = f"{len(loaded.torn)} bytes of a write that did not finish, from byte {loaded.end} on"
        do = "the next opening, or --repair, removes these bytes and keeps them in another file"
        yield FileFinding(str(path), "torn", what, do)
    yield from _damage(path, loaded)


def _foreign(path: Path, error: Exception) -> FileFinding:
    return FileFinding(str(path), "foreign", str(error), "move the file away, or replace it with a backup copy")


def _damage(path: Path, loaded: LogContents) -> Iterator[FileFinding]:
    for each in loaded.damage:
        what = f"line {each.line} (bytes {each.offset} to {each.offset + each.length}): {each.reason}"
        if each.reason.startswith("follows"):
            do = "the line is read; compare the file with a backup copy to see whether lines before it are missing"
        else:
            do = "the line is skipped and stays in the file; all other lines are read"
        yield FileFinding(str(path), "damaged", what, do)


def check_entries(path: Path, agent: str = "") -> Iterator[FileFinding]:
    """Yield a finding for each undamaged line of the session file at `path` whose content or parent is not valid.

    Raises ForeignFileError, StoreError.
    """
    lines: dict[str, int] = {}
    unreadable = 0  # the number of unreadable lines; they are already reported, and may be missing parents
    for line in _complete_lines(path):
        if line.remark:
            unreadable += 1
        if line.sealed is None:
            continue
        number, object = line.number, line.sealed.object
        try:
            entry = read_entry(object)
            if isinstance(entry, SessionHeader):
                if agent and entry.agent not in ("", agent):
                    what = f"it is the transcript of agent {entry.agent}, at the path of the transcript of {agent}"
                    yield FileFinding(str(path), "owner", what, "move it to the right path; neither agent can use it")
                continue
            if isinstance(entry, MessageEntry):
                check_blocks(entry.message)
            link = UnknownEntry(entry.id, entry.parent_id)
        except (*DECODE_ERRORS, ValueError) as error:
            known = decode_link(object)
            if known is None or object.startswith(ENTRY_PREFIXES):
                what = f"line {number} is not a readable entry: {error}"
                yield FileFinding(
                    str(path), "entry", what, "the entry has no content; it keeps its place in the conversation"
                )
            if known is None:
                continue
            link = known
        if unreadable and link.parent_id not in (None, link.id) and link.parent_id not in lines:
            unreadable -= 1
        else:
            yield from _parent_findings(path, number, link, lines)
        lines[link.id] = number


def _parent_findings(path: Path, number: int, link: UnknownEntry, lines: dict[str, int]) -> Iterator[FileFinding]:
    if link.id in lines:
        what = f"line {number} has the id {link.id[:40]!r} of line {lines[link.id]}"
        yield FileFinding(str(path), "tree", what, "entries that follow this id follow the later entry")
    if link.parent_id is not None and link.parent_id not in lines:
        itself = link.parent_id == link.id
        what = f"line {number} follows {'itself' if itself else f'{link.parent_id[:40]!r}, which is not before it'}"
        yield FileFinding(str(path), "tree", what, "the entry is read as if it followed the previous line")


def _complete_lines(path: Path) -> Iterator[LogLine]:
    for lines, complete in group_appends(scan_file(path)):
        if complete:
            yield from lines


def check_archives(path: Path) -> Iterator[FileFinding]:
    """Yield a finding for each archive in the session file at `path` that cannot be read completely."""
    ledger = SessionArchives(path.parent, path.name)
    try:
        ledger.catch_up()
    except OrchError:
        return  # the caller has already reported this error
    for id in list(ledger.records):
        if ledger.records[id].deleted:
            continue
        try:
            ledger.read(id)
        except DamagedError as error:
            yield FileFinding(
                str(path), "archive", str(error), f"`orch archive read {id}` shows the undamaged messages"
            )


def check_index(path: Path) -> Iterator[FileFinding]:
    """Yield the problems of the search index at `path`."""
    if fault := index_fault(path):
        do = "--repair renames the index; the next search builds a new index from the archives"
        yield FileFinding(str(path), "index", f"the index cannot be read: {fault}", do)


# Problems of the files below a home, and repairs that lose no data.

MODE: Final = 0o077
AGENT: Final = re.compile("[a-f][0-9a-f]{11}")


def check_home(home: Path, sessions: Path | None = None) -> Iterator[FileFinding]:
    """Yield the problems below `home` and in the session folders in `sessions`, file by file."""
    sessions = sessions or paths.sessions_dir(home)
    if not home.is_dir():
        return
    # A folder outside the home may also contain files of other programs.
    folders = [sessions] if sessions.is_relative_to(home) else list(_agent_folders(sessions))
    for path in sorted({home, *_own_files(home), *(path for each in folders for path in (each, *each.rglob("*")))}):
        if not path.is_symlink() and path.exists() and stat.S_IMODE(path.stat().st_mode) & MODE:
            yield FileFinding(str(path), "open", "other users may read it", "chmod go-rwx, or --repair")
    known: dict[str, AgentRecord] = {}
    for path in sorted(paths.runs_dir(home).glob(f"*/{JOURNAL}")):
        yield from check_lines(path, HEADER)
        known |= _acknowledged(path)
    for path in sorted(path for each in folders for path in each.rglob(SESSION)):
        agent = path.parent.name if AGENT.fullmatch(path.parent.name) else ""
        node = known.pop(agent, None)
        yield from check_session_file(path, agent, node.transcript if node is not None else None)
    for node in known.values():
        if node.transcript is not None:
            yield from check_acknowledged(Path(node.spec.folder, SESSION), node.transcript)
    imports = paths.imports_dir(home)
    for path in sorted(imports.glob("*/*/archive-*.jsonl")):
        yield from check_lines(path, SESSION_HEADER)
    for path in sorted(path for each in (*folders, imports) for path in each.rglob(INDEX)):
        yield from check_index(path)
    for folder in sorted(paths.runs_dir(home).glob("*")):
        yield from check_worktrees(folder)


def check_worktrees(run: Path) -> Iterator[FileFinding]:
    """Yield a finding for each worktree of an ended agent in the folder of a run.

    If the run is in use, yield nothing.
    """
    found = records(run)
    if not found or paths.is_in_use(run):
        return
    named = not run.name.startswith(paths.UNNAMED_RUN_PREFIX)
    agents = {node.spec.id: node.status for node in _agents(run / JOURNAL)} if named else {}
    for record in found:
        spec = record.spec
        id = Path(spec.path).name
        if agents.get(id, "killed") != "killed":
            continue
        try:
            lost_changes = lost_work(record)
        except OrchError as error:
            what = f"the worktree of an agent that has ended, which cannot be examined: {error}"
            yield FileFinding(spec.path, "worktree", what, "correct this, then run the check again")
            continue
        what = f"the worktree of an agent that has ended, with {lost_changes or 'no changes'}"
        if run.name == paths.DAEMON_RUN and id in agents:
            remedy = f"orch merge {id}"
        else:
            remedy = f"merge its branch {spec.branch}; --repair removes it"
            if lost_changes == UNCOMMITTED:
                # Git of the user must not run in this folder, because the agent wrote the configuration there.
                remedy = f"{COMMITS_FIRST}{remedy}"
        yield FileFinding(spec.path, "worktree", what, remedy if lost_changes else "--repair removes it")


def _own_files(home: Path) -> Iterator[Path]:
    """Yield the files and folders below `home`, except files in worktrees, because those have the modes of their
    repository.
    """
    runs = paths.runs_dir(home)
    for place, folders, files in os.walk(home):
        folder = Path(place)
        yield from (folder / name for name in (*folders, *files))
        if folder.parent == runs:
            folders[:] = [name for name in folders if name != WORKTREES]


def _acknowledged(journal: Path) -> dict[str, AgentRecord]:
    """Return the agents in `journal` with a known position in the transcript, by id."""
    return {node.spec.id: node for node in _agents(journal) if node.transcript is not None}


def _agents(journal: Path) -> list[AgentRecord]:
    """Return the agents that are recorded in `journal`.

    Return [] if the file cannot be read; `check_lines` reports the reason.
    """
    try:
        return list(
            TreeState(
                entry for line in read_objects(journal, header=HEADER) if (entry := decode_entry(line)) is not None
            )
        )
    except (OrchError, *DECODE_ERRORS):
        return []


def _agent_folders(sessions: Path) -> Iterator[Path]:
    return (path for path in sessions.glob("*") if AGENT.fullmatch(path.name) and path.is_dir())


def repair(found: FileFinding) -> FileFinding:
    """Repair the problem `found` if the repair loses no data. Return `found` with a description of the repair."""
    path = Path(found.path)
    try:
        if found.kind == "open":
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~MODE)
            return msgspec.structs.replace(found, repaired="other users can no longer read it")
        if found.kind == "torn":
            lock = FolderLock.acquire(path.parent)
            try:
                log, loaded = AppendLog.open(path, header=HEADER if path.name == JOURNAL else SESSION_HEADER)
                log.close()
            finally:
                lock.release()
            saved = loaded.torn_tail_file
            where = f"kept in {saved.name}" if saved else "there were no more bytes to remove"
            return msgspec.structs.replace(found, repaired=where)
        if found.kind == "worktree":
            lock = FolderLock.acquire(path.parent.parent)
            try:
                removed = remove_at(path)
            finally:
                lock.release()
            if removed:
                return msgspec.structs.replace(found, repaired="removed")
            committed = f"they are now committed; {found.do.removeprefix(COMMITS_FIRST)}"
            return msgspec.structs.replace(found, do=committed) if found.do.startswith(COMMITS_FIRST) else found
        if found.kind == "index":
            lock = FolderLock.acquire(path.parent)
            try:
                return msgspec.structs.replace(found, repaired=f"renamed to {rename_damaged_index(path).name}")
            finally:
                lock.release()
    except LockedError:
        return msgspec.structs.replace(found, do="another process is writing the file; run the check again later")
    except (OrchError, OSError) as error:
        return msgspec.structs.replace(found, do=f"{found.do}; it cannot be repaired now: {error}")
    return found
