"""The root's journal, an append-only file with one entry per line. The entries determine the state of the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from orch_protocol.agent.spec import Durability
from orch_protocol.core.errors import StoreError
from orch_protocol.wire.frames import DECODE_ERRORS
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.atomic_rewrite import LogRewrite, rewriting
from orch_worker.session.log.log_reader import LogContents, read_header, scan_file
from orch_worker.session.log.record_format import UncheckedLine

from .entries import (
    AgentKilled,
    AgentPlanApproved,
    AgentSpawned,
    BudgetChanged,
    Entry,
    LocalOnlySet,
    PlanStarted,
    QueryStarted,
    ReplyCollected,
    RootBudgetChanged,
    TaintAdded,
    ToolsRevoked,
    TranscriptRewritten,
    decode_entry,
    encode_entry,
    encoder,
    read_entry,
)

__all__ = ["HEADER", "JOURNAL", "Journal", "JournalCopy", "read_entries"]

JOURNAL = "journal.jsonl"
"""Name of the file in a run folder."""

HEADER = b'{"type":"orch_journal","version":2}'
REWRITE_MIN_BYTES = 4 << 20
"""Minimum size of a journal that is rewritten when a root starts."""
REWRITE_MAX_RATIO = 0.5
"""A journal is rewritten only if the new file has at most this fraction of the old size."""
SYNCED_ENTRIES: Final = frozenset(
    {
        TranscriptRewritten,
        BudgetChanged,
        ReplyCollected,
        AgentKilled,
        LocalOnlySet,
        TaintAdded,
        ToolsRevoked,
        AgentPlanApproved,
        PlanStarted,
        RootBudgetChanged,
    }
)


class Journal:
    """The open journal of a run. The caller holds the run folder's lock."""

    def __init__(self, log: AppendLog, entries: list[Entry], notes: list[str], durability: Durability) -> None:
        self.log = log
        self._syncs_prompts = durability == "power"
        self.entries = entries
        self.notes = notes
        self._unwritten: list[Entry] = []
        self._unstored_ids: set[str] = set()

    @classmethod
    def open(cls, path: Path, *, durability: Durability = "process") -> Journal:
        """Open or create the journal at `path`.

        Damaged and unknown lines are skipped, but stay in the file. `notes` lists these lines.
        """
        log, loaded = AppendLog.open(path, header=HEADER)
        entries: list[Entry] = []
        notes = [f"{path}: {loaded.report}"] if loaded.report else []
        for number, line in enumerate(loaded.objects):
            try:
                entries.append(read_entry(line))
            except DECODE_ERRORS as error:
                notes.append(f"{path}: entry {number + 1} skipped: {error}")
        return cls(log, entries, notes, durability)

    def append(self, entries: list[Entry]) -> None:
        """Write `entries`. Raises StoreError.

        Entries that could not be written earlier come first. Either all entries are written or none. When this method
        returns, entries of the types in `SYNCED_ENTRIES` are on disk. With durability "power", spawns and the prompts
        of asynchronous queries are on disk too, because no transcript contains them.
        """
        entries = self._unwritten + [entry for entry in entries if self._is_stored(entry)]
        if entries:
            self.log.append(*map(encode_entry, entries), sync=any(map(self._is_synced, entries)))
            self._unwritten = []

    def _is_synced(self, entry: Entry) -> bool:
        """Return whether `entry` must be on disk before the change takes effect."""
        if self._syncs_prompts and (
            isinstance(entry, AgentSpawned) or (isinstance(entry, QueryStarted) and entry.prompt)
        ):
            return True
        return type(entry) in SYNCED_ENTRIES

    def _is_stored(self, entry: Entry) -> bool:
        """Return whether `entry` may be written. Entries about an agent with persist=False are not written."""
        if isinstance(entry, AgentSpawned) and not entry.spec.persist:
            self._unstored_ids.add(entry.id)
        return getattr(entry, "id", None) not in self._unstored_ids

    def record(self, entries: list[Entry]) -> None:
        """Write entries that are facts.

        If the write fails, for example because the disk is full, write them with the next entries.
        """
        try:
            self.append(entries)
        except StoreError:
            self._unwritten = self._unwritten + [entry for entry in entries if self._is_stored(entry)]

    def take_entries(self) -> list[Entry]:
        """Return the entries that the file contained when the journal was opened, and release their memory."""
        entries, self.entries = self.entries, []
        return entries

    def shorten(self, make_snapshots: Callable[[], Sequence[Entry]]) -> bool:
        """If the file is large, replace its entries by snapshots. Return whether the file was replaced.

        `make_snapshots` returns the snapshots.

        The file is replaced only if the new file has at most half the size. The replacement is atomic. The numbers of
        later entries do not change. The file stays unchanged if it has damaged or unknown lines, or if the disk is
        full. No `sync` may be in progress. Raises StoreError if the file cannot be reopened.
        """
        if self.log.end < REWRITE_MIN_BYTES or self.notes or self._unwritten:
            return False
        try:
            lines = [encoder.encode(entry) for entry in make_snapshots()]
        except UnicodeEncodeError:  # a lone surrogate, which no journal contains so far
            return False
        if sum(map(len, lines)) > REWRITE_MAX_RATIO * self.log.end or len(lines) >= self.log.seq:
            return False
        first_number = self.log.seq - len(lines)
        try:
            self.sync()
            with self._replace_file() as new_file:
                new_file.append(HEADER, UncheckedLine(b"", 0, 1, b"", more=False))
                for number, line in enumerate(lines, first_number + 1):
                    new_file.append(line, UncheckedLine(b"", 0, number, b"", more=False))
        except StoreError:
            self.log.append()  # raises StoreError if the log is not open
            return False
        return True

    @contextmanager
    def _replace_file(self) -> Iterator[LogRewrite]:
        """Close the file, yield the writer of the replacement, and open the new file."""
        log, on_dirty = self.log, self.log.on_dirty
        log.close()
        try:
            with rewriting(log.path) as new_file:
                yield new_file
        finally:
            self.log, _ = AppendLog.open(log.path, header=HEADER)
            self.log.on_dirty = on_dirty

    def rewrite(self, change: Callable[[Sequence[Entry]], Sequence[Entry]]) -> None:
        """Replace the readable entries with the result of `change`. Raises StoreError.

        `change` returns one entry for each entry that it gets. The replacement is atomic. Unreadable lines and entries
        that are not written yet stay unchanged. No `sync` may be in progress.
        """
        self.sync()
        lines = list(scan_file(self.log.path))
        entries = {line.number: entry for line in lines if line.object and (entry := decode_entry(line.object))}
        changed = dict(zip(entries, change(list(entries.values())), strict=True))
        if all(changed[number] is entry for number, entry in entries.items()):
            return
        with self._replace_file() as new_file:
            for line in lines:
                if line.sealed is None:
                    new_file.keep(line.data)
                    continue
                is_unchanged = line.number not in entries or changed[line.number] is entries[line.number]
                new_file.append(line.sealed.object if is_unchanged else encode_entry(changed[line.number]), line.sealed)

    def sync(self) -> None:
        """Sync the file to disk. Raises StoreError.

        Another thread may call `append` while this method runs.
        """
        if self.log.dirty:
            self.log.sync()

    def close(self) -> None:
        """Sync the file to disk and close the file."""
        self.log.close()


class JournalCopy(Journal):
    """The entries of a journal that another root may write. New entries change the tree in memory and no file."""

    @classmethod
    def read(cls, path: Path) -> JournalCopy:
        """Read the journal at `path`. Raises ForeignFileError, StoreError."""
        closed = AppendLog(path, -1, "process", LogContents(HEADER, [], [], b"", 0, 0, 0))
        return cls(closed, read_entries(path), [], "process")

    def append(self, entries: list[Entry]) -> None:
        """Do not write `entries`."""


def read_entries(path: Path) -> list[Entry]:
    """Return the entries of the journal at `path`. Damaged lines are skipped.

    Another root may write to this file at the same time. Raises ForeignFileError, StoreError.
    """
    read_header(path, HEADER)
    _, *objects = [line.object for line in scan_file(path) if line.object is not None] or [HEADER]
    return [entry for object in objects if (entry := decode_entry(object)) is not None]
