"""Deleting archives for good: which lines of a session file go, and the file without what they said.

Every entry keeps its place, its id and what it follows, so that the conversation stays what it was. What an archive is
made of are offsets in the file, and hashes of what stands there: both are made anew.
"""

from __future__ import annotations

import mmap
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Struct

from orch_protocol.core.archives import Collapse, RecordUpgrade, Span
from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Block, Message, Text
from orch_protocol.core.taint import without_sources
from orch_protocol.core.workspace import WORKSPACE, KeepArtifact, WorkspaceSteps
from orch_protocol.hooks.stages import ACTED, HookActions
from orch_protocol.session.entries import (
    ArchiveEntry,
    CompactionEntry,
    Custom,
    MarksEntry,
    MessageEntry,
    PhaseEntry,
    TasksEntry,
    Telling,
    TurnEndEntry,
    UpgradeEntry,
)
from orch_worker.conversation.stubs import deletion_marker, holder_of, holders_in, stub_text
from orch_worker.session.log.append_log import scan_lines
from orch_worker.session.log.atomic_rewrite import LogRewrite, rewriting
from orch_worker.session.log_reader import MESSAGES, read_spans, sha256_of
from orch_worker.tools.values.store import HANDLE

from ...tree.agents.agent_record import redacted_message, redacted_reply
from .catalog import ArchiveRecord
from .session_archives import SessionArchives

__all__ = ["Doomed", "entries_to_delete", "rewrite_session_file"]

TASKS: Final = b'{"type":"tasks"'
TELLING: Final = frozenset({"answer", "receipt", "rest"})
"""What of a record tells of the messages, beside its text and its task."""
SPOILT: Final = b'{"type":"message",deleted}'
"""What is left of a message on a damaged line: so much that the others keep their numbers. No JSON, so it stays bad."""
_DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError)


class _Said(Struct, gc=False):
    """Of a message's entry, what is needed of each: what it says is passed over unread."""

    turn: str = ""
    deleted: str = ""


_encoder = msgspec.json.Encoder()
_said = msgspec.json.Decoder(_Said)
_message: msgspec.json.Decoder[Telling] = msgspec.json.Decoder(Telling)
_turn_end = msgspec.json.Decoder(TurnEndEntry)
_archive = msgspec.json.Decoder(ArchiveEntry)
_upgrade = msgspec.json.Decoder(UpgradeEntry)
_tasks = msgspec.json.Decoder(TasksEntry)
_marks = msgspec.json.Decoder(MarksEntry)
_phase = msgspec.json.Decoder(PhaseEntry)
_compaction = msgspec.json.Decoder(CompactionEntry)
_custom = msgspec.json.Decoder(Custom)


class Doomed(Struct, frozen=True):
    """What is to go: the archives `records`, and the messages that begin at `lines`, which take `bytes` bytes.

    `stale` says that more can be forgotten of what was deleted before.
    """

    records: tuple[ArchiveRecord, ...] = ()
    lines: frozenset[int] = frozenset()
    bytes: int = 0
    stale: bool = False

    @property
    def due(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.records or self.lines or self.stale)


def entries_to_delete(ledger: SessionArchives, before: str) -> Doomed:
    """Return what goes with the archives that were made at `before` (ISO 8601) or earlier, and with their members.

    A message that the conversation still shows stays.
    """
    known = ledger.records
    chosen = {record.id for record in known.values() if not record.deleted and record.timestamp <= before}
    waiting = list(chosen)
    while waiting:
        members = [id for id in known[waiting.pop()].members if id in known and not known[id].deleted]
        waiting += [id for id in members if id not in chosen]
        chosen.update(members)
    deleted = [record for record in known.values() if record.deleted]
    going = [record for record in known.values() if record.id in chosen]
    live, told, briefed = ledger.live(), _told(ledger), ledger.briefs()
    damaged = {offset for offset, _ in ledger.damaged}
    lines: dict[int, int] = {}
    for record in (*deleted, *going):
        for (offset, _), part in zip(record.own, read_spans(ledger.path, record.own), strict=True):
            for line in part.removesuffix(b"\n").split(b"\n"):
                # What a damaged line was nobody can say: it may hold any of it.
                if (line.startswith(MESSAGES) or offset in damaged) and offset not in live and not _is_deleted(line):
                    lines[offset] = len(line) + 1
                offset += len(line) + 1
    stale = any(
        (record.id not in told and record.record != deletion_marker(record.deleted))
        or (record.id not in briefed and bool(record.task))
        for record in deleted
    )
    return Doomed(tuple(going), frozenset(lines), sum(lines.values()), stale)


def _told(ledger: SessionArchives) -> set[str]:
    """Return of which archives the conversation shows what is on record, and not only, beside a summary, the task."""
    tasked = {id for id in ledger.briefs() if ledger.view.task(id)}
    return ledger.stubs() - tasked


def rewrite_session_file(ledger: SessionArchives, going: Doomed, when: str) -> set[bytes]:
    """Write the session file anew, without what is `going`, at the time `when`. Return the handles it still names.

    It is in place, durably, when this returns; before that the old one is whole. For who has the folder's lock. Raises
    StoreError: then nothing was deleted.
    """
    handles: set[bytes] = set()
    try:
        with open(ledger.path, "rb") as file, rewriting(ledger.path) as new:
            _Copy(ledger, going, when, file, new, handles).write()
            new.flush()
            _check(ledger, new)
    except OSError as error:
        raise StoreError(f"cannot read {ledger.path}: {error.strerror}") from error
    return handles


def _check(ledger: SessionArchives, new: LogRewrite) -> None:
    """Raise StoreError unless the new file shows the same conversation and knows the same archives."""
    other = SessionArchives(ledger.folder, new.path.name)
    other.catch_up()
    one, two = ([(item.first, item.last, item.message) for item in each.view.items] for each in (ledger, other))
    if one != two or list(ledger.records) != list(other.records):
        raise StoreError(f"{ledger.path} would not be the same conversation without them: nothing was deleted")


class _Copy:
    """One walk through the old file, line by line, that writes the new one."""

    def __init__(
        self, ledger: SessionArchives, going: Doomed, when: str, file: BinaryIO, new: LogRewrite, handles: set[bytes]
    ) -> None:
        self._going = going
        self._when = when
        self._file = file
        self._new = new
        self._handles = handles
        self._told, self._briefed = _told(ledger), ledger.briefs()
        self._summaries = ledger.summaries
        self._kinds = {record.id: record.kind for record in ledger.records.values()}
        self._deleted = {record.id: record.deleted for record in ledger.records.values() if record.deleted}
        self._deleted |= {record.id: when for record in going.records}
        self._gone = set(going.lines)
        """Where the messages begin that say nothing any more, as far as the walk has come."""
        # Where each line began, and where it begins now. Ascending.
        self._before, self._after = array("Q"), array("Q")
        self._in_force = _last(file, TASKS)
        """Where the tasks stand that the agent goes by: the turn that made them may be deleted, they are not."""
        self._not_at_hand: set[str] = set()
        """What only turns that are deleted had brought into the workspace, by name."""
        self._silent: dict[str, bool] = {}
        """Whether what a turn said last is deleted, by the turn."""
        self._losing = _turns(file, going.lines)
        """Of which turns something goes now: what was said beside one stands in front of what it said, too."""
        self._makers: dict[bytes, Callable[[bytes, int], msgspec.Struct | None]] = {
            **dict.fromkeys(MESSAGES, self._message),
            b'{"type":"turn_end"': self._turn_end,
            b'{"type":"archive"': self._archive,
            b'{"type":"archive_summary"': self._upgrade,
            TASKS: self._tasks,
            b'{"type":"marks"': self._marks,
            b'{"type":"phase"': self._phase,
            b'{"type":"compaction"': self._compaction,
            b'{"type":"custom"': self._custom,
        }

    def write(self) -> None:
        """Write all of the new file."""
        for offset, line, sealed, _ in scan_lines(self._file):
            self._before.append(offset)
            self._after.append(self._new.end)
            if sealed is not None:
                object = self._made(offset, sealed.object)
                self._handles.update(HANDLE.findall(object))
                self._new.append(object, sealed)
            elif offset in self._going.lines:
                self._new.spoil(line, SPOILT)
            else:
                self._new.keep(line)

    def _made(self, offset: int, object: bytes) -> bytes:
        """Return what stands on the new line: the same bytes, unless something of it changes."""
        make = self._makers.get(object[: object.find(b",")])
        if make is None:
            return object
        try:
            entry = make(object, offset)
        except _DECODE_ERRORS:
            return object  # of a later version
        return object if entry is None else _encoder.encode(entry)

    def _message(self, object: bytes, offset: int) -> MessageEntry | None:
        goes, said = offset in self._going.lines, _said.decode(object)
        self._silent[said.turn] = goes or bool(said.deleted)
        if said.deleted:
            self._gone.add(offset)
        if not goes:
            return None
        entry = _message.decode(object)
        if not isinstance(entry, MessageEntry):  # what it was for was said in it, or beside it
            entry = MessageEntry(
                id=entry.id, parent_id=entry.parent_id, timestamp=entry.timestamp, message=entry.message
            )
        return msgspec.structs.replace(entry, message=redacted_message(entry.message, self._when), deleted=self._when)

    def _turn_end(self, object: bytes, _: int) -> TurnEndEntry | None:
        entry = _turn_end.decode(object)
        if entry.deleted or not self._silent.get(entry.turn):
            return None
        return msgspec.structs.replace(entry, reply=redacted_reply(entry.reply, self._when), deleted=self._when)

    def _archive(self, object: bytes, _: int) -> ArchiveEntry | None:
        entry = _archive.decode(object)
        when = self._deleted.get(entry.collapse.holder, "")
        collapse = self._moved(entry.collapse)
        collapse = self._forgotten(collapse, entry.collapse.spans, when)
        new = msgspec.structs.replace(entry, collapse=collapse, deleted=when)
        return new if new != entry else None

    def _tasks(self, object: bytes, offset: int) -> TasksEntry | None:
        entry = _tasks.decode(object)
        if entry.deleted or offset == self._in_force or not self._silent.get(entry.turn):
            return None
        return msgspec.structs.replace(entry, tasks=(), deleted=self._when)

    def _marks(self, object: bytes, _: int) -> MarksEntry | None:
        entry = _marks.decode(object)
        if entry.deleted or not self._silent.get(entry.turn):
            return None
        return msgspec.structs.replace(entry, marks=without_sources(entry.marks), deleted=self._when)

    def _phase(self, object: bytes, _: int) -> PhaseEntry | None:
        entry = _phase.decode(object)
        if entry.deleted or entry.turn not in self._losing:
            return None
        return msgspec.structs.replace(entry, note="", error="", deleted=self._when)

    def _custom(self, object: bytes, _: int) -> Custom | None:
        """Forget what a turn that is deleted had brought into the workspace, also where others tell of it."""
        entry = _custom.decode(object)
        if entry.custom_type == ACTED:
            return self._acted(entry)
        if entry.custom_type != WORKSPACE:
            return None
        # Imported when there is one: most sessions have none.
        from orch_worker.workspace.state import remove_artifacts

        try:
            said = msgspec.convert(entry.data, WorkspaceSteps)
        except (msgspec.ValidationError, RecursionError):
            return None  # another's, in a session that came from elsewhere
        if self._silent.get(said.query):
            self._not_at_hand.update(step.artifact.name for step in said.steps if isinstance(step, KeepArtifact))
            left = WorkspaceSteps(said.query, deleted=said.deleted or self._when)
        else:
            left = msgspec.structs.replace(said, steps=remove_artifacts(said.steps, self._not_at_hand))
        return msgspec.structs.replace(entry, data=msgspec.to_builtins(left)) if left != said else None

    def _acted(self, entry: Custom) -> Custom | None:
        """Forget why hooks failed in a turn that is deleted: that may say what was said."""
        acted = HookActions.of(entry.data)
        if acted is None or acted.deleted or acted.turn not in self._losing:
            return None
        acts = tuple(msgspec.structs.replace(each, error="deleted" if each.error else "") for each in acted.acts)
        left = msgspec.structs.replace(acted, acts=acts, deleted=self._when)
        return msgspec.structs.replace(entry, data=msgspec.to_builtins(left))

    def _compaction(self, object: bytes, offset: int) -> CompactionEntry | None:
        entry = _compaction.decode(object)
        when = self._deleted.get(self._summaries.get(offset, ""), "")
        if entry.deleted or not when:
            return None
        # The task stays: the agent has it as long as there is one.
        task = entry.details.get("task") if entry.writer and isinstance(entry.details, dict) else None
        left = {"task": task} if task else None
        return msgspec.structs.replace(entry, summary=deletion_marker(when), details=left, deleted=when)

    def _upgrade(self, object: bytes, _: int) -> UpgradeEntry | None:
        entry = _upgrade.decode(object)
        old = entry.upgrade
        when = self._deleted.get(old.holder, "")
        if not when or old.holder in self._told:
            return None
        stub = self._stub(old.holder)
        return msgspec.structs.replace(entry, upgrade=RecordUpgrade(old.holder, stub, old.at_once))

    def _moved(self, collapse: Collapse) -> Collapse:
        """Return `collapse` with its messages where they stand now, and what they hash to."""
        try:
            spans, own = self._places(collapse.spans), self._places(collapse.record.get("own", ()))
        except (KeyError, TypeError, ValueError):
            return collapse  # it was never carried out: these are no lines
        hash = collapse.sha256
        # What was not what had been archived does not become it now.
        if hash and sha256_of([self._old(span) for span in collapse.spans]) == hash:
            hash = sha256_of(self._new.read(spans))
        parts = {"spans": [list(span) for span in spans], "own": [list(span) for span in own], "sha256": hash}
        record = collapse.record | {key: value for key, value in parts.items() if value}
        return msgspec.structs.replace(collapse, spans=spans, sha256=hash, record=record)

    def _forgotten(self, collapse: Collapse, were: Sequence[Span], when: str) -> Collapse:
        """Return `collapse`, whose lines `were` there, without what it tells of deleted archives that the conversation
        does not show. `when` it was deleted itself, "" when it was not."""
        holder = collapse.holder
        untold = bool(when) and holder not in self._told
        # What a phase was asked is no part of it: it goes with the turn.
        silent = untold and (collapse.kind != "phase" or not were or were[0][0] in self._gone)
        messages = tuple(
            redacted_message(message, when)
            if untold and holder not in holders_in(message)
            else Message(message.role, self._blocks(message.content, silent=silent))
            for message in collapse.messages
        )
        if not when:
            return msgspec.structs.replace(collapse, messages=messages)
        task = collapse.task if holder in self._briefed else ""
        record: dict[str, Any] = {**collapse.record, "task": task}
        if untold:
            record = {key: value for key, value in record.items() if key not in TELLING} | {
                "record": deletion_marker(when)
            }
        return msgspec.structs.replace(collapse, task=task, messages=messages, record=record)

    def _blocks(self, blocks: Iterable[Block], *, silent: bool) -> tuple[Block, ...]:
        """Return `blocks` with nothing in stubs of what is deleted, and nothing beside stubs if it is `silent`."""
        found: list[Block] = []
        for block in blocks:
            holder = holder_of(block.text) if isinstance(block, Text) else None
            if holder in self._deleted and holder not in self._told:
                found.append(Text(self._stub(holder)))
            elif holder or not silent:
                found.append(block)
        return tuple(found)

    def _stub(self, holder: str) -> str:
        return stub_text(self._kinds[holder], holder, deletion_marker(self._deleted[holder]))

    def _old(self, span: Span) -> bytes:
        offset, length = span
        return os.pread(self._file.fileno(), length, offset)

    def _places(self, spans: Iterable[Sequence[int]]) -> tuple[Span, ...]:
        found = []
        for offset, length in spans:
            start, end = self._place(offset), self._place(offset + length)
            found.append((start, end - start))
        return tuple(found)

    def _place(self, offset: int) -> int:
        """Return where the line that began at `offset` begins now. Raises KeyError when none did."""
        at = bisect_left(self._before, offset)
        if at == len(self._before) or self._before[at] != offset:
            raise KeyError(offset)
        return self._after[at]


def _turns(file: BinaryIO, lines: Iterable[int]) -> set[str]:
    """Return whose messages those are that begin at `lines`, as far as they can be read."""
    found = set()
    for offset in lines:
        file.seek(offset)
        try:
            found.add(_said.decode(file.readline()).turn)
        except _DECODE_ERRORS:
            pass
    file.seek(0)
    return found


def _last(file: BinaryIO, beginning: bytes) -> int:
    """Return where the last line begins that begins like that, 0 when none does."""
    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return data.rfind(b"\n" + beginning) + 1


def _is_deleted(line: bytes) -> bool:
    try:
        return line.startswith(SPOILT[:-1]) or bool(_said.decode(line).deleted)
    except _DECODE_ERRORS:
        return False
