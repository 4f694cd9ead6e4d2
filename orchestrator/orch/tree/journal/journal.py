"""The root's journal: what happened to its agents, one entry a line. The tree is the fold of these entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from orch_protocol.agent.spec import Durability
from orch_protocol.core.errors import StoreError
from orch_protocol.wire.frames import DECODE_ERRORS
from orch_worker.session.log.append_log import AppendLog, scan_lines
from orch_worker.session.log.atomic_rewrite import LogRewrite, rewriting
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

__all__ = ["HEADER", "JOURNAL", "Journal", "read_entries"]

JOURNAL = "journal.jsonl"
"""The name of the file in a run folder."""

HEADER = b'{"type":"orch_journal","version":1}'
REWRITE_MIN_BYTES = 4 << 20
"""A journal of at least so many bytes is rewritten when a root starts, if that makes it small enough."""
REWRITE_MAX_RATIO = 0.5
"""A journal is rewritten only if the new file is at most this part of the old one."""
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
    """The open journal of a run. Its owner holds the run folder's lock."""

    def __init__(self, log: AppendLog, entries: list[Entry], notes: list[str], durability: Durability) -> None:
        self.log = log
        self._power = durability == "power"
        self.entries = entries
        self.notes = notes
        self._owed: list[Entry] = []
        self._unkept: set[str] = set()

    @classmethod
    def open(cls, path: Path, *, durability: Durability = "process") -> Journal:
        """Open or create the journal at `path`. Lines that are damaged or unknown are kept, skipped and noted."""
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
        """Write `entries`, behind those that are owed, in one write: all or none. Raises StoreError.

        A collect, a kill, a budget, an approved plan, what was taken from an agent and where a conversation may be read
        are on the disk when this returns, with durability "power" a spawn and the prompt of an asynchronous query
        too: no transcript has them.
        """
        entries = self._owed + [entry for entry in entries if self._is_kept(entry)]
        if entries:
            self.log.append(*map(encode_entry, entries), sync=any(map(self._is_synced, entries)))
            self._owed = []

    def _is_synced(self, entry: Entry) -> bool:
        """Whether `entry` has to be on the disk before anything follows from it."""
        if self._power and (isinstance(entry, AgentSpawned) or (isinstance(entry, QueryStarted) and entry.prompt)):
            return True
        return type(entry) in SYNCED_ENTRIES

    def _is_kept(self, entry: Entry) -> bool:
        """Whether `entry` is about an agent that is kept, or about none."""
        if isinstance(entry, AgentSpawned) and not entry.spec.persist:
            self._unkept.add(entry.id)
        return getattr(entry, "id", None) not in self._unkept

    def record(self, entries: list[Entry]) -> None:
        """Write what is a fact already. When that fails (a full disk) it is owed, and written with what comes next."""
        try:
            self.append(entries)
        except StoreError:
            self._owed = self._owed + [entry for entry in entries if self._is_kept(entry)]

    def taken(self) -> list[Entry]:
        """Return the entries that were in the file when it was opened; they are not kept here any longer."""
        entries, self.entries = self.entries, []
        return entries

    def shorten(self, kept: Callable[[], Sequence[Entry]]) -> bool:
        """Let the file hold what `kept` returns alone, to which all that it holds came, if that halves a large one;
        return whether it did. The old file is whole until the new one is.

        What follows is numbered as if nothing had been left out. A file with lines that are damaged or not known, or
        for which there is no room, stays as it is. No `sync` may be under way. Raises StoreError when it is gone then.
        """
        if self.log.end < REWRITE_MIN_BYTES or self.notes or self._owed:
            return False
        try:
            lines = [encoder.encode(entry) for entry in kept()]
        except UnicodeEncodeError:  # half a character, which has been in no file so far
            return False
        if sum(map(len, lines)) > REWRITE_MAX_RATIO * self.log.end or len(lines) >= self.log.seq:
            return False
        first = self.log.seq - len(lines)
        try:
            self.sync()
            with self._anew() as new:
                new.append(HEADER, UncheckedLine(b"", 0, 1, b"", more=False))
                for number, line in enumerate(lines, first + 1):
                    new.append(line, UncheckedLine(b"", 0, number, b"", more=False))
        except StoreError:
            self.log.append()  # says so when it is not open
            return False
        return True

    @contextmanager
    def _anew(self) -> Iterator[LogRewrite]:
        """Yield what is to be the file, which is closed meanwhile."""
        log, on_dirty = self.log, self.log.on_dirty
        log.close()
        try:
            with rewriting(log.path) as new:
                yield new
        finally:
            self.log, _ = AppendLog.open(log.path, header=HEADER)
            self.log.on_dirty = on_dirty

    def rewrite(self, change: Callable[[Sequence[Entry]], Sequence[Entry]]) -> None:
        """Let the entries be what `change` makes of them, one for one: the old file is whole until the new one is.

        What is owed or cannot be read stays as it is. No `sync` may be under way. Raises StoreError.
        """
        self.sync()
        with open(self.log.path, "rb") as file:
            lines = list(scan_lines(file))
        entries = {at: it for at, (_, _, line, _) in enumerate(lines) if line and (it := decode_entry(line.object))}
        changed = dict(zip(entries, change(list(entries.values())), strict=True))
        if all(changed[place] is entry for place, entry in entries.items()):
            return
        with self._anew() as new:
            for place, (_, line, sealed, _) in enumerate(lines):
                if sealed is None:
                    new.keep(line)
                    continue
                same = place not in entries or changed[place] is entries[place]
                new.append(sealed.object if same else encode_entry(changed[place]), sealed)

    def sync(self) -> None:
        """Bring everything to the disk; may run in another thread than `append`. Raises StoreError."""
        if self.log.dirty:
            self.log.sync()

    def close(self) -> None:
        """Sync and close."""
        self.log.close()


def read_entries(path: Path) -> list[Entry]:
    """Return the entries of the journal at `path`, which another root may be writing. Damaged lines are left out.

    Raises OSError.
    """
    with open(path, "rb") as file:
        sealed = [each for _, _, each, _ in scan_lines(file) if each is not None]
    return [entry for each in sealed[1:] if (entry := decode_entry(each.object)) is not None]
