"""What is wrong with one file of lines of ours, and what to do about it. Only looked at: nothing here writes.

`orch fsck` asks this of every file of a home, `orch session fsck` of one session.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import DamagedError, LockedError, OrchError, StoreError
from orch_protocol.session.entries import Entry, MessageEntry, SessionHeader, TranscriptPosition
from orch_protocol.session.tree import FileFinding
from orch_worker.session.log.append_log import READ_BUFFER_BYTES, AppendLog, LogContents, load, read_objects, scan_lines
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.log_reader import KNOWN
from orch_worker.session.transcript import NAME as SESSION
from orch_worker.session.transcript import missing_lines
from orch_worker.system.files import open_regular

from ..archival.store.index import NAME as INDEX
from ..archival.store.index import index_fault, set_aside
from ..archival.store.session_archives import SessionArchives
from ..config import paths
from ..tree.agents.state import AgentRecord, TreeState
from ..tree.journal.entries import decode_entry
from ..tree.journal.journal import HEADER
from .formats.conversation import DECODE_ERRORS, fitting

__all__ = [
    "JOURNAL",
    "SESSION_HEADER",
    "examine",
    "in_acknowledged",
    "in_archives",
    "in_index",
    "in_lines",
    "in_session",
    "in_tree",
    "repair",
]


JOURNAL: Final = "journal.jsonl"
SESSION_HEADER: Final = b'{"type":"session","version":3}'

_entry: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


class _Place(Struct, rename="camel"):
    id: str
    parent_id: str | None = None
    type: str = ""


_place: msgspec.json.Decoder[_Place] = msgspec.json.Decoder(_Place)


def in_session(path: Path, agent: str = "", acknowledged: TranscriptPosition | None = None) -> Iterator[FileFinding]:
    """Yield what is wrong with the session file at `path`.

    `agent` is the id of the agent whose it should be, `acknowledged` the line that it must contain, if they are known.
    """
    found = list(in_lines(path, SESSION_HEADER))
    yield from found
    if any(each.kind == "foreign" for each in found):
        return
    try:
        yield from in_tree(path, agent)
    except OrchError as error:
        yield _foreign(path, error)
        return
    if acknowledged is not None:
        yield from in_acknowledged(path, acknowledged)
    yield from in_archives(path)


def in_acknowledged(path: Path, acknowledged: TranscriptPosition) -> Iterator[FileFinding]:
    """Yield that the session file at `path` does not contain the line `acknowledged`, if it does not."""
    try:
        missing = missing_lines(path, acknowledged)
    except OrchError as error:
        yield _foreign(path, error)
        return
    if missing:
        do = "put a copy from before in its place; a query to the agent goes on with what is left"
        yield FileFinding(str(path), "truncated", missing, do)


def in_lines(path: Path, header: bytes) -> Iterator[FileFinding]:
    """Yield what is wrong with the lines of the file at `path`, which begins with a header such as `header`."""
    try:
        loaded = load(path, header=header, take=lambda _: None)
    except OrchError as error:
        yield _foreign(path, error)
        return
    if loaded.torn:
        what = f"{len(loaded.torn)} bytes of a write that did not end, from byte {loaded.end} on"
        do = "whoever opens it cuts them off and keeps them beside it; so does --repair"
        yield FileFinding(str(path), "torn", what, do)
    yield from _damage(path, loaded)


def _foreign(path: Path, error: Exception) -> FileFinding:
    return FileFinding(str(path), "foreign", str(error), "move it away, or put a copy from before in its place")


def _damage(path: Path, loaded: LogContents) -> Iterator[FileFinding]:
    for each in loaded.damage:
        what = f"line {each.line} (bytes {each.offset} to {each.offset + each.length}): {each.reason}"
        if each.reason.startswith("follows"):
            do = "it is read; whether lines before it are gone, a copy from before tells"
        else:
            do = "it is passed over, everything else is read; it stays where it is"
        yield FileFinding(str(path), "damaged", what, do)


def in_tree(path: Path, agent: str = "") -> Iterator[FileFinding]:
    """Yield which sound lines of the session file at `path` say nothing, or do not follow one before them.

    Raises ForeignFileError, StoreError.
    """
    lines: dict[str, int] = {}
    lost = 0  # so many entries may be missing because their lines cannot be read, which is found already
    for number, object in _whole(path):
        if object is None:
            lost += 1
            continue
        try:
            entry = _entry.decode(object)
            if isinstance(entry, SessionHeader):
                if agent and entry.agent not in ("", agent):
                    what = f"it is the transcript of agent {entry.agent}, and is where that of {agent} should be"
                    yield FileFinding(str(path), "owner", what, "put each where it belongs: it is opened for neither")
                continue
            if isinstance(entry, MessageEntry):
                fitting(entry.message)
            place = _Place(entry.id, entry.parent_id)
        except (*DECODE_ERRORS, ValueError) as error:
            known = _placed(object)
            if known is None or object.startswith(KNOWN):
                what = f"line {number} is no entry that can be read: {error}"
                yield FileFinding(str(path), "entry", what, "it says nothing; its place in the conversation is kept")
            if known is None:
                continue
            place = known
        if lost and place.parent_id not in (None, place.id) and place.parent_id not in lines:
            lost -= 1
        else:
            yield from _faults(path, number, place, lines)
        lines[place.id] = number


def _faults(path: Path, number: int, place: _Place, lines: dict[str, int]) -> Iterator[FileFinding]:
    if place.id in lines:
        what = f"line {number} has the id {place.id[:40]!r} of line {lines[place.id]}"
        yield FileFinding(str(path), "tree", what, "what follows that id follows the later one")
    if place.parent_id is not None and place.parent_id not in lines:
        itself = place.parent_id == place.id
        what = f"line {number} follows {'itself' if itself else f'{place.parent_id[:40]!r}, which is not before it'}"
        yield FileFinding(str(path), "tree", what, "it is read as if it followed the line before it")


def _placed(object: bytes) -> _Place | None:
    try:
        return _place.decode(object)
    except DECODE_ERRORS:
        return None


def _whole(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines' numbers and objects, None where something is lost; none of an append that is not all there."""
    waiting: list[tuple[int, bytes | None]] = []
    try:
        with open(open_regular(path, os.O_RDONLY), "rb", buffering=READ_BUFFER_BYTES) as file:
            for number, (_, _, sealed, remark) in enumerate(scan_lines(file), 1):
                if remark:
                    waiting.append((number, None))
                if sealed is not None:
                    waiting.append((number, sealed.object))
                if sealed is not None and not sealed.more:
                    yield from waiting
                    waiting.clear()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def in_archives(path: Path) -> Iterator[FileFinding]:
    """Yield which archives of the session file at `path` cannot be read whole."""
    ledger = SessionArchives(path.parent, path.name)
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
            yield FileFinding(str(path), "archive", str(error), f"`orch archive read {id}` shows what is left of it")


def in_index(path: Path) -> Iterator[FileFinding]:
    """Yield what is wrong with the search index at `path`."""
    if fault := index_fault(path):
        do = "whoever searches next makes it anew from the archives; --repair sets it aside for that"
        yield FileFinding(str(path), "index", f"the index cannot be read: {fault}", do)


# --- What is wrong with the files below a home, and what can be done about it without losing a byte ---

MODE: Final = 0o077
AGENT: Final = re.compile("[a-f][0-9a-f]{11}")


def examine(home: Path, sessions: Path | None = None) -> Iterator[FileFinding]:
    """Yield what is wrong below `home`, and in the session folders in `sessions`, file by file."""
    sessions = sessions or paths.sessions_dir(home)
    if not home.is_dir():
        return
    # Elsewhere there may be files of others beside them.
    folders = [sessions] if sessions.is_relative_to(home) else list(_of_agents(sessions))
    for path in sorted({home, *home.rglob("*"), *(path for each in folders for path in (each, *each.rglob("*")))}):
        if not path.is_symlink() and path.exists() and stat.S_IMODE(path.stat().st_mode) & MODE:
            yield FileFinding(str(path), "open", "other users may read it", "chmod go-rwx, or --repair")
    known: dict[str, AgentRecord] = {}
    for path in sorted(paths.runs_dir(home).glob(f"*/{JOURNAL}")):
        yield from in_lines(path, HEADER)
        known |= _acknowledged(path)
    for path in sorted(path for each in folders for path in each.rglob(SESSION)):
        agent = path.parent.name if AGENT.fullmatch(path.parent.name) else ""
        node = known.pop(agent, None)
        yield from in_session(path, agent, node.transcript if node is not None else None)
    for node in known.values():
        if node.transcript is not None:
            yield from in_acknowledged(Path(node.spec.folder, SESSION), node.transcript)
    for path in sorted(path for each in folders for path in each.rglob(INDEX)):
        yield from in_index(path)


def _acknowledged(journal: Path) -> dict[str, AgentRecord]:
    """Return the agents of a run of whose transcripts the journal knows a line, by id."""
    try:
        nodes = TreeState(
            entry for line in read_objects(journal, header=HEADER) if (entry := decode_entry(line)) is not None
        )
    except (OrchError, *DECODE_ERRORS):
        return {}  # that it cannot be read is found already
    return {node.spec.id: node for node in nodes if node.transcript is not None}


def _of_agents(sessions: Path) -> Iterator[Path]:
    return (path for path in sessions.glob("*") if AGENT.fullmatch(path.name) and path.is_dir())


def repair(found: FileFinding) -> FileFinding:
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
