"""Copies sessions of other programs to archives. A session that has not changed since the last import is not read.

Each conversation of a file is a session, and each of its turns an archive. A grown session gets archives for its new
turns. A session whose beginning or last turn has changed is written again and replaces the old one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from itertools import accumulate, count
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import ConfigError, DamagedError, ForeignFileError, StoreError
from orch_protocol.core.messages import Message, text_of
from orch_protocol.session.entries import MessageEntry
from orch_worker.conversation.receipt import merge, receipt_of, with_places
from orch_worker.conversation.receipt_text import render
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.conversation.turns import first_line, responses, task_of, title_of, turns_of
from orch_worker.system.files import open_regular

from ..archival.adapters import ORCH_FORMAT
from ..archival.store.catalog import ArchiveRecord, StoredMessage
from ..archival.store.search import Search
from ..archival.store.store import ArchiveStore
from ..sessions.formats.conversation import SHAPE_ERRORS, ImportedSession, Reading
from ..sessions.formats.detect import read_with
from ..sessions.formats.files import SUFFIXES, check_exists, session_files
from ..tree.agents.state import iso_time
from .catalog import ImportCatalog, ImportRecord, session_id

__all__ = ["ImportResult", "OnProgress", "import_sessions"]

RECORD_CHARS: Final = 2_000
REASON: Final = "imported"
BLOCK_BYTES: Final = 1 << 20
MAX_REASONS: Final = 3

OnProgress = Callable[[int, int, str], None]
"""A function that is called before each file, with the bytes so far, the bytes of all files, and the path."""


class ImportResult(Struct):
    """What an import did.

    `new`, `grown`, `replaced`, `unchanged` and `forgotten` are numbers of sessions; forgotten sessions are not imported
    again. `turns` and `messages` are the numbers of imported turns and messages. `other_files` contains the reason for
    each file that is no session, and `unread` for each file that could not be read. `left_out` is the number of damaged
    places, and `damaged` describes the first 20 of each file. `bytes` is the disk space of all imported sessions.
    """

    files: int = 0
    new: int = 0
    grown: int = 0
    replaced: int = 0
    unchanged: int = 0
    forgotten: int = 0
    turns: int = 0
    messages: int = 0
    other_files: dict[str, str] = {}
    left_out: int = 0
    damaged: dict[str, tuple[str, ...]] = {}
    unread: dict[str, str] = {}
    bytes: int = 0

    @property
    def sessions(self) -> int:
        """The number of sessions in the files."""
        return self.new + self.grown + self.replaced + self.unchanged + self.forgotten


class _Source(Struct, frozen=True):
    """A file, with its name as text.

    `is_named` is True if the user named this file, and False if it was found in a folder.
    """

    path: Path
    name: str
    size: int
    modified_ns: int
    is_named: bool


class _Turn(Struct, frozen=True):
    """The messages of one turn, the number of its prompts, and the times of its first and last message."""

    messages: list[Message]
    prompts: int
    time: str
    ended: str


def import_sessions(catalog: ImportCatalog, paths: Sequence[Path], on_progress: OnProgress) -> ImportResult:
    """Import the sessions in the files and folders `paths`.

    Raises ConfigError if there is no session in them, LockedError during another import, and StoreError if a path
    cannot be read or a session cannot be written. The sessions that were imported before the error stay imported.
    """
    unread: dict[str, str] = {}
    other: dict[str, str] = {}

    def add_unread(error: OSError) -> None:
        unread[_plain(error.filename)] = _plain(f"cannot read {error.filename}: {error.strerror}")

    def add_special(path: Path) -> None:
        why = "is not a regular file" if path.exists() else "is a link without a target"
        other[_plain(path)] = _plain(f"{path} {why}")

    sources = list(_sources(paths, catalog.folder, add_unread, add_special))
    with catalog.lock():
        catalog.remove_unfinished()
        importer = _Importer(catalog, unread, other)
        total, done = sum(source.size for source in sources), 0
        try:
            for source in sources:
                on_progress(done, total, source.name)
                importer.import_file(source)
                done += source.size
        finally:
            catalog.write_seen_files(importer.seen)
    result = importer.result
    if not result.sessions and not result.unread:
        names = ", ".join(map(str, paths))
        if not sources and not other:
            raise ConfigError(
                f"{names} contains no files that end in {' or '.join(SUFFIXES)}: pass a folder of sessions"
            )
        raise ConfigError(
            f"{names} contains no session among {len(other)} files: pass the folder or file of a program whose "
            f"sessions orch reads. {'; '.join(list(other.values())[:MAX_REASONS])}"
        )
    result.bytes = sum(map(catalog.bytes_of, catalog.records()))
    return result


def _sources(
    paths: Iterable[Path], excluded: Path, on_error: Callable[[OSError], None], on_special: Callable[[Path], None]
) -> Iterator[_Source]:
    """Yield each file once. The file of a session stands for the files of its subagents too.

    `on_error` is called for each folder that cannot be read, `on_special` for each link without a target and each
    other path in a folder that is no regular file.
    """
    seen: set[str] = set()
    imported = os.path.join(os.path.realpath(excluded), "")
    for path in paths:
        check_exists(path)
        if f"{os.path.realpath(path)}{os.sep}".startswith(imported):
            raise ConfigError(f"{path} contains the imported sessions themselves: pass the folder of another program")
        if path.is_dir():
            files = [(file, False) for file in session_files(path, on_error)]
        else:
            beside = filter(os.path.isfile, session_files(path.with_suffix("") / "subagents"))
            files = [(path, True), *((file, True) for file in beside)]
        for file, is_named in files:
            real = os.path.realpath(file)
            if real in seen or real.startswith(imported):
                continue
            seen.add(real)
            if not is_named and not os.path.isfile(real):
                on_special(file)
                continue
            try:
                status = os.stat(real)
            except OSError as error:
                if is_named:
                    raise StoreError(f"cannot read {file}: {error.strerror}") from error
                continue  # the file was removed a moment ago
            # The name of a file need not be text, and JSON contains only text.
            name = os.fsencode(real).decode(errors="backslashreplace")
            yield _Source(Path(real), name, status.st_size, status.st_mtime_ns, is_named)


class _Importer:
    """Imports files, one at a time. `seen` are the files that need not be read again."""

    def __init__(self, catalog: ImportCatalog, unread: dict[str, str], other: dict[str, str]) -> None:
        self.result = ImportResult(unread=unread, other_files=other)
        self.seen = catalog.seen_files()
        self._catalog = catalog
        self._known: dict[str, dict[int, ImportRecord]] = {}
        for record in catalog.records():
            self._known.setdefault(record.source, {})[record.number] = record

    def import_file(self, source: _Source) -> None:
        """Import the sessions in one file. Raises StoreError if they cannot be written."""
        self.result.files += 1
        known = self._known.get(source.name, {})
        is_complete = bool(known) and len(known) == next(iter(known.values())).conversations
        is_readable = all(map(self._catalog.is_readable, known.values()))
        state = (source.size, source.modified_ns)
        is_same = all((record.size, record.modified_ns) == state for record in known.values())
        if is_complete and is_readable and is_same:
            self.result.unchanged += len(known)
            record = next(iter(known.values()))
            self._add_damage(source, record.left_out, record.damage)
            return
        reason = self.seen.reasons.get(source.name)
        if not known and not source.is_named and self.seen.other.get(source.name) == state and reason is not None:
            self.result.other_files[source.name] = reason
            return
        before = {record.size for record in known.values()}
        try:
            hashes = _hashes(source, before)
            reading = Reading(source.path, repair=True, subagent_files=False)
            found = _conversations(reading)
            reason = f"{source.name} contains no messages"
        except ForeignFileError as error:
            found, reason = [], _plain(error)
            if source.is_named and source.size:
                self.result.unread[source.name] = reason
                return
        except (DamagedError, StoreError) as error:
            self.result.unread[source.name] = _plain(error)
            return
        except SHAPE_ERRORS as error:
            # A file of an unknown version must not stop the import of all others.
            self.result.unread[source.name] = f"{source.name} has an unexpected content: {error!r:.200}"
            return
        if not found:
            self.result.other_files[source.name] = self.seen.reasons[source.name] = reason
            self.seen.other[source.name] = state
            return
        self.seen.other.pop(source.name, None)
        self.seen.reasons.pop(source.name, None)
        damage = tuple(map(_plain, reading.repairs))
        is_grown = (
            bool(known) and is_readable and all(hashes.get(record.size) == record.sha256 for record in known.values())
        )
        for number, conversation in enumerate(found, 1):
            id = session_id(source.name, number)
            if id in self.seen.forgotten and not source.is_named:
                self.result.forgotten += 1
                continue
            self.seen.forgotten.discard(id)
            session = _Session(
                self._catalog, id, source, number, len(found), conversation, reading.repair_count, damage
            )
            try:
                outcome = session.write(known.get(number), hashes[source.size], append=is_grown)
            except StoreError as error:
                if isinstance(error.__cause__, OSError):
                    raise  # for example a full disk
                self.result.unread[source.name] = f"session {number} of {source.name}: {error}"
                continue
            self._count(outcome, session)
        for number in known.keys() - range(1, len(found) + 1):
            self._catalog.forget(known[number])
        self._add_damage(source, reading.repair_count, damage)

    def _add_damage(self, source: _Source, count: int, damage: tuple[str, ...]) -> None:
        self.result.left_out += count
        if damage:
            self.result.damaged[source.name] = damage

    def _count(self, outcome: str, session: _Session) -> None:
        setattr(self.result, outcome, getattr(self.result, outcome) + 1)
        self.result.turns += session.written_turns
        self.result.messages += session.written_messages


class _Session:
    """One conversation of a file, and its archives."""

    def __init__(
        self,
        catalog: ImportCatalog,
        id: str,
        source: _Source,
        number: int,
        conversations: int,
        found: ImportedSession,
        left_out: int,
        damage: tuple[str, ...],
    ) -> None:
        self.written_turns = 0
        self.written_messages = 0
        self._catalog = catalog
        self._id = id
        self._source = source
        self._number = number
        self._conversations = conversations
        self._found = found
        self._left_out = left_out
        self._damage = damage
        self._turns = _turns(found, iso_time(source.modified_ns / 1e9))

    def write(self, old: ImportRecord | None, hash: str, *, append: bool) -> str:
        """Write the session. Return "new", "grown", "replaced" or "unchanged". Raises StoreError.

        `hash` is the hash of the file. If `append` is True, the file begins as it did when `old` was written.
        """
        if old is not None and append and self._append(old, hash):
            return "grown" if self.written_turns else "unchanged"
        folder = self._catalog.folder / self._id
        name = next(name for name in map(str, count(1)) if not (folder / name).exists())
        with closing(ArchiveStore.open(folder / name)) as store:
            record = self._add_turns(store, 0, hash, name)
        self._catalog.put(record)
        return "replaced" if old is not None else "new"

    def _append(self, old: ImportRecord, hash: str) -> bool:
        """Add the new turns to the archives of `old`. Return False if the turns of `old` are not what it stored."""
        with closing(ArchiveStore.open(self._catalog.store_folder(old))) as store:
            if len(store.records) != old.turns or old.turns > len(self._turns):
                return False  # an import was interrupted
            try:
                # The last turn may not have been finished. A grown file cannot have changed the turns before it.
                last_turn = [stored.message for stored in store.messages(store.order[-1])]
            except DamagedError:
                return False
            if last_turn != self._turns[old.turns - 1].messages:
                return False
            record = self._add_turns(store, old.turns, hash, old.store)
        self._catalog.put(record)
        return True

    def _add_turns(self, store: ArchiveStore, first: int, hash: str, name: str) -> ImportRecord:
        """Add the turns from the position `first` on. Return the record of the session."""
        search = Search(store)
        try:
            for turn in self._turns[first:]:
                store.add(
                    self._turn_record(turn),
                    [StoredMessage(message) for message in turn.messages],
                    repeat=True,
                )
                self.written_turns += 1
                self.written_messages += len(turn.messages)
            search.update_index()
        finally:
            search.close()
        records = [store.records[id] for id in store.order]
        firsts = accumulate((record.count for record in records), initial=0)
        receipts = [with_places(record.receipt, first, "") for record, first in zip(records, firsts, strict=False)]
        return ImportRecord(
            id=self._id,
            source=self._source.name,
            number=self._number,
            conversations=self._conversations,
            shape=self._found.shape,
            title=self._found.title or self._first_words(),
            cwd=self._found.cwd,
            started=self._turns[0].time,
            ended=max(turn.ended for turn in self._turns),
            turns=len(self._turns),
            messages=sum(len(turn.messages) for turn in self._turns),
            record=render(merge(receipts), RECORD_CHARS, requests=True),
            size=self._source.size,
            modified_ns=self._source.modified_ns,
            sha256=hash,
            left_out=self._left_out,
            store=name,
            damage=self._damage,
        )

    def _first_words(self) -> str:
        """Return the first words of the user, or else of the agent."""
        messages = [message for turn in self._turns for message in turn.messages]
        answers = (text_of(message).strip() for message in messages if message.role == "assistant")
        return title_of(messages) or first_line(next(filter(None, answers), ""))

    def _turn_record(self, turn: _Turn) -> ArchiveRecord:
        estimator = TokenEstimator(self._found.ratios)
        tokens = sum(map(estimator.message, turn.messages))
        return ArchiveRecord(
            id="",
            number=0,
            kind="turn",
            task=task_of(turn.messages[: turn.prompts]),
            count=0,
            prompts=turn.prompts,
            replaced_messages=max(turn.prompts, 1) + 1,
            calls=responses(turn.messages),
            turns=1,
            tokens=tokens,
            level=0,
            timestamp=turn.time,
            format=ORCH_FORMAT,
            record="",
            reason=REASON,
            receipt=receipt_of(turn.messages, range(1, len(turn.messages) + 1)),
            original_tokens=tokens,
            entries=len(turn.messages),
        )


def _turns(found: ImportedSession, latest: str = "") -> list[_Turn]:
    """Return the turns of a session in the order of the file, with the messages of abandoned branches.

    `latest` is the modification time of the file, which is the time of messages without a time.
    """
    entries = [entry for entry in found.entries if isinstance(entry, MessageEntry) and not entry.deleted]
    messages = [entry.message for entry in entries]
    turns: list[_Turn] = []
    for span in turns_of(messages):
        start = span.start if turns else 0  # system messages before the first turn belong to this turn
        times = [min(entries[place].timestamp, latest) for place in (start, span.stop - 1)]
        turns.append(_Turn(messages[start : span.stop], span.body - start, *times))
    return turns


def _conversations(reading: Reading) -> list[ImportedSession]:
    """Return the conversations with messages in the file of `reading`, each before its subagents. Raises OrchError."""
    return [each for session in read_with(reading) for each in (session, *session.subagents) if _turns(each)]


def _plain(text: object) -> str:
    """Return the text of a path or an error without parts of names that are not text, which JSON cannot contain."""
    return str(text).encode(errors="backslashreplace").decode()


def _hashes(source: _Source, sizes: set[int]) -> dict[int, str]:
    """Return the hashes of the first bytes of a file: of all bytes, and of the first `sizes`."""
    hash, at = sha256(), 0
    found: dict[int, str] = {}
    with open(open_regular(source.path, os.O_RDONLY), "rb") as file:
        for size in sorted({size for size in sizes if size < source.size} | {source.size}):
            while at < size and (block := file.read(min(BLOCK_BYTES, size - at))):
                hash.update(block)
                at += len(block)
            found[size] = hash.hexdigest()
    return found
