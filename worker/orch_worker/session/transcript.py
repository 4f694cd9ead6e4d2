"""An agent's transcript: the session file of a folder, its one writer, and how others read it.

An entry is encoded, read back, written, and only then applied: what the session holds is what the file says.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec

from orch_protocol.agent.plan import Task
from orch_protocol.agent.spec import BackendSpec, Durability
from orch_protocol.core.archives import Collapse, RecordUpgrade
from orch_protocol.core.errors import ForeignFileError, StoreError
from orch_protocol.core.ids import new_entry_id, new_id
from orch_protocol.core.messages import Message, Reply, Text, Usage, tool_uses
from orch_protocol.core.taint import TaintLabel
from orch_protocol.core.text import scrub
from orch_protocol.core.workspace import WORKSPACE, Step, WorkspaceSteps
from orch_protocol.session.entries import (
    ArchiveEntry,
    BranchSummary,
    Checkout,
    CompactionEntry,
    Custom,
    CustomMessage,
    Entry,
    Label,
    MarksEntry,
    MessageEntry,
    ModelChange,
    PhaseEntry,
    PlanApproved,
    SessionHeader,
    SessionInfo,
    TasksEntry,
    ThinkingLevelChange,
    TranscriptPosition,
    TurnEndEntry,
    TurnStartEntry,
    UpgradeEntry,
)
from orch_protocol.session.tree import (
    AddMessage,
    ArrangeArtifacts,
    ClearTasks,
    MoveLeaf,
    SessionEdit,
    SetLabel,
    SetMetadata,
    SetModel,
    SetThinking,
    SetTitle,
)

from .log.append_log import AppendLog, FolderLock, find_position, load, newest_first, read_objects
from .log.verified_prefix import LineSpan
from .session import LostEntry, MessageRow, Quiet, SessionState, UnknownEntry

__all__ = [
    "NAME",
    "Transcript",
    "missing_lines",
    "read_last_turn",
    "read_lines",
    "read_session",
    "read_usage",
    "timestamp",
]

NAME: Final = "session.jsonl"

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)
_skimmer: msgspec.json.Decoder[MessageRow | Quiet] = msgspec.json.Decoder(MessageRow | Quiet)
_unknown = msgspec.json.Decoder(UnknownEntry)
_HEADER: Final = _encoder.encode(SessionHeader(id="", timestamp="", cwd=""))

_DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError)
_ENCODE_ERRORS: Final = (*_DECODE_ERRORS, TypeError, ValueError, NotImplementedError)


class Transcript:
    """The open transcript of one agent. Made by `Transcript.open`; its folder is locked until `close`."""

    def __init__(self, lock: FolderLock, log: AppendLog, session: SessionState, repaired: str, power: bool) -> None:
        self.log = log
        self.path = log.path
        self.session = session
        self.repaired = repaired
        """One line about what was damaged or cut off when the file was opened, "" when it was sound."""
        self._lock = lock
        self._power = power

    @classmethod
    def open(cls, folder: Path, *, agent: str, cwd: str, durability: Durability = "process") -> Transcript:
        """Lock `folder`, create or load its session file, cut off what a death left unfinished, and fold it.

        With durability "power" a reply and a tool call are on the disk before anything follows from them; the rest
        reaches it whenever the log is synced.

        Raises LockedError when another process has it open, ForeignFileError when the file is not a transcript of
        `agent` (it is left alone), StoreError when folder or file cannot be used.
        """
        lock = FolderLock.acquire(folder)
        log = None
        try:
            header = _encode(SessionHeader(id=new_id(), timestamp=timestamp(), cwd=cwd, agent=agent))
            fold = _SessionFold(folder / NAME)
            log, loaded = AppendLog.open(
                fold.path, header=header, take=fold.take, take_lines=fold.skim_lines, anew=fold.anew
            )
            session = fold.folded(loaded.header if loaded.end else header)
            owner = session.header.agent if session.header else agent
            if owner != agent:
                raise ForeignFileError(f"{log.path} is the transcript of agent {owner!r}, not of {agent!r}")
        except BaseException:
            if log is not None:
                log.close()
            lock.release()
            raise
        repaired = f"{log.path}: {loaded.report}" if loaded.report else ""
        return cls(lock, log, session, repaired, durability == "power")

    @property
    def broken(self) -> bool:
        """Whether what the file holds is uncertain, or could not be read again: the next process reads it anew."""
        return self.log.broken or self.session.hollow

    def missing_lines(self, acknowledged: TranscriptPosition) -> str:
        """Return what is wrong if the line `acknowledged` is not in the file, "" if it is. Raises StoreError."""
        return "" if self.log.position == acknowledged else missing_lines(self.path, acknowledged)

    def append(self, *entries: Entry, sync: bool = False) -> list[Entry]:
        """Record `entries`, which follow each other, in one write: all or none. Return them as they are on disk.

        What no file can carry is replaced: lone surrogates by U+FFFD, not-a-number by null. Raises StoreError when an
        entry cannot be encoded or the file not written; then nothing was recorded.
        """
        lines: list[bytes] = []
        stored: list[Entry] = []
        for entry in entries:
            lines.append(line := _encode(entry))
            stored.append(entry if _is_plain(entry) else _decode_exactly(line))
        self.log.append(*lines, sync=sync or (self._power and any(map(_is_acted_on, stored))))
        for entry in stored:
            self.session.apply(entry)
        if self.session.hollow:
            self.session = self.session.refolded(_FileEntries(self.path))
        return stored

    def message(self, message: Message, turn: str = "", usage: Usage | None = None, *, said: str = "") -> MessageEntry:
        """Record `message` as the next one of the query `turn`, and return its entry as it is on disk.

        `usage` is what the request took whose response it is, or what models used for the results of tools in it.
        `said` names what somebody said while the agent worked.
        """
        entry = MessageEntry(**self._next(), message=message, turn=turn, usage=usage, said=said)
        return cast("MessageEntry", self.append(entry)[0])

    def turn_start(self, turn: str, interrupted: str) -> None:
        """Record that the query `turn` was accepted after the turn `interrupted` had been cut short."""
        self.append(TurnStartEntry(**self._next(), turn=turn, interrupted=interrupted))

    def turn_end(self, turn: str, reply: Reply) -> None:
        """Record that the query `turn` came to `reply`."""
        self.append(TurnEndEntry(**self._next(), turn=turn, reply=reply))

    def change(self, edit: SessionEdit) -> None:
        """Record a change that somebody makes between turns; one that is on record already is not made again.

        Raises StoreError as `checkout` and `label` do.
        """
        if edit.entry in self.session.places:
            return
        match edit.change:
            case MoveLeaf(to, summary):
                self.checkout(to, summary, id=edit.entry)
            case SetLabel(target, label):
                self.label(target, label, id=edit.entry)
            case SetTitle(name):
                self.append(SessionInfo(**self._next(edit.entry), name=name))
            case ArrangeArtifacts(steps):
                self.workspace(steps, id=edit.entry)
            case AddMessage(custom_type, text, display):
                told = CustomMessage(
                    **self._next(edit.entry), custom_type=custom_type, content=(Text(text),), display=display
                )
                self.append(told)
            case SetMetadata(custom_type, data):
                self.append(Custom(**self._next(edit.entry), custom_type=custom_type, data=data))
            case SetModel(model):
                provider, _, name = model.partition(":")
                self.append(
                    ModelChange(**self._next(edit.entry), provider=provider, model_id=name, own=True), sync=True
                )
            case SetThinking(level):
                self.append(ThinkingLevelChange(**self._next(edit.entry), thinking_level=level), sync=True)
            case ClearTasks():
                self.append(TasksEntry(**self._next(edit.entry), turn="", tasks=()))

    def custom(self, custom_type: str, data: Any) -> None:
        """Record something that the model is not told, as JSON data."""
        self.append(Custom(**self._next(), custom_type=custom_type, data=data))

    def checkout(self, to: str | None, summary: str | None = None, *, id: str | None = None) -> None:
        """Let the conversation go on behind the entry `to`, None: anew. What was said since stays on its own branch.

        With `summary` the model is told what came of that. Raises StoreError when there is no such entry; or when the
        file cannot be read again: then the move is on record, and who reads it next goes on there.
        """
        session = self.session
        place = session.places.get(to, -1) if to is not None else -1
        if to is not None and (place < 0 or isinstance(session.entries[place], LostEntry)):
            raise StoreError(f"{self.path} has no entry {to!r} to go back to")
        left = session.leaf
        common = self._next(id) | {"parent_id": to}
        if summary is None:
            self.append(Checkout(**common, from_id=left))
        else:
            self.append(BranchSummary(**common, from_id=left, summary=summary))

    def label(self, target: str, label: str | None, *, id: str | None = None) -> None:
        """Record a name for the entry `target`, None: that it has none any more. Raises StoreError: no such entry."""
        if target not in self.session.places:
            raise StoreError(f"{self.path} has no entry {target!r} to label")
        self.append(Label(**self._next(id), target_id=target, label=label))

    def _next(self, id: str | None = None) -> dict[str, Any]:
        """Return what every entry says of itself, for the one that follows the leaf."""
        session = self.session
        return {"id": id or new_entry_id(session.places), "parent_id": session.leaf, "timestamp": timestamp()}

    def archive(self, collapses: Iterable[Collapse]) -> None:
        """Record that parts of the conversation are their holders' now: on the disk when this returns, all or none.

        Raises StoreError when that cannot be written, or they are no parts of it any more; then nothing has changed.
        """
        session, entries = self.session, list[Entry]()
        view, parent, now = session.view.copy(), session.leaf, timestamp()
        made: set[str] = set()
        for collapse in collapses:
            view.collapse(collapse, 0)
            while (id := new_entry_id(session.places)) in made:
                pass
            made.add(id)
            entries.append(ArchiveEntry(id=id, parent_id=parent, timestamp=now, collapse=collapse))
            parent = id
        if entries:
            self.append(*entries, sync=True)

    def compaction(self, **told: Any) -> CompactionEntry:
        """Record what stands in place of the beginning of the conversation (`told` as in CompactionEntry), and return
        its entry, which is on the disk then."""
        return cast("CompactionEntry", self.append(CompactionEntry(**self._next(), **told), sync=True)[0])

    def upgrade(self, upgrade: RecordUpgrade) -> None:
        """Record a better text for what stands in a holder's place."""
        self.append(UpgradeEntry(**self._next(), upgrade=upgrade))

    def plan_approved(self, plan: str) -> None:
        """Record that the agent's plan was approved, in the plan mode `plan`: on the disk when this returns."""
        agent = self.session.header.agent if self.session.header else ""
        self.append(PlanApproved(**self._next(), agent=agent, plan=plan), sync=True)

    def tasks(self, tasks: tuple[Task, ...], turn: str) -> None:
        """Record what the agent means to do, said in the query `turn`."""
        self.append(TasksEntry(**self._next(), turn=turn, tasks=tasks))

    def marks(self, marks: tuple[TaintLabel, ...], turn: str) -> None:
        """Record what came into the conversation in the query `turn`."""
        self.append(MarksEntry(**self._next(), turn=turn, marks=marks))

    def phase(self, **told: Any) -> None:
        """Record what was done beside the query `turn` (`told` as in PhaseEntry)."""
        self.append(PhaseEntry(**self._next(), **told))

    def workspace(self, steps: tuple[Step, ...], turn: str = "", *, id: str | None = None) -> None:
        """Record what happened to what the agent has at hand, in the query `turn`."""
        data = msgspec.to_builtins(WorkspaceSteps(turn, steps))
        self.append(Custom(**self._next(id), custom_type=WORKSPACE, data=data))

    def model_change(self, backend: BackendSpec) -> None:
        """Record that the model behind `backend` answers from here on."""
        self.append(ModelChange(**self._next(), provider=backend.provider, model_id=backend.model))

    def seed(self, history: Iterable[Message]) -> None:
        """Record `history` as what went before, in one write. Raises StoreError unless the transcript is empty."""
        if self.session.entries:
            raise StoreError(f"{self.path} holds {len(self.session.entries)} entries: only a new one can be seeded")
        entries: dict[str, MessageEntry] = {}
        parent, now = None, timestamp()
        for message in history:
            id = new_entry_id(entries)
            entries[id] = MessageEntry(id=id, parent_id=parent, timestamp=now, message=message)
            parent = id
        self.append(*entries.values(), sync=self._power)

    def close(self) -> None:
        """Make everything durable and give the folder up; closing twice does nothing."""
        try:
            self.log.close()
        finally:
            self._lock.release()


def read_session(folder: Path) -> SessionState:
    """Return the session in `folder` as its file stands, without lock and without repair; empty if there is none.

    Raises ForeignFileError when the file is not a transcript, StoreError when it cannot be read.
    """
    fold = _SessionFold(folder / NAME)
    loaded = load(fold.path, header=_HEADER, take=fold.take, take_lines=fold.take_lines, anew=fold.anew)
    return fold.folded(loaded.header)


def read_lines(folder: Path) -> Iterator[bytes]:
    """Yield the entries of the transcript in `folder` as they are encoded, the header first; see `read_session`."""
    return read_objects(folder / NAME, header=_HEADER)


def missing_lines(path: Path, acknowledged: TranscriptPosition) -> str:
    """Return what is wrong if the line `acknowledged` is not in the session file at `path`, "" if it is.

    Detects a file that was truncated, emptied or replaced. Raises StoreError when it cannot be read.
    """
    found = find_position(path, acknowledged.seq)
    if found == acknowledged:
        return ""
    if found is not None and found.seq == acknowledged.seq:
        return (
            f"line {found.seq} has the checksum {found.checksum:08x}, and the one that was acknowledged had "
            f"{acknowledged.checksum:08x}: the file was truncated and continued, or another was put in its place"
        )
    lines = f"ends at line {found.seq}" if found is not None else "is empty or missing"
    return f"acknowledged entries are missing: the file {lines}, line {acknowledged.seq} was acknowledged"


class LastTurn(NamedTuple):
    """The last turn that a transcript tells of, and its reply if it is finished.

    `prompted` says whether its prompt is in the transcript: what comes before the prompt may be there alone.
    """

    query_id: str
    reply: Reply | None
    prompted: bool = True


def read_last_turn(folder: Path) -> LastTurn | None:
    """Return the last turn of which anything is on record in the folder's transcript, None if there is none.

    Reads the end of the file alone, without lock. Raises StoreError when it cannot be read.
    """
    last = ""
    for line in newest_first(folder / NAME):
        entry = _decode(line)
        if not isinstance(entry, (TurnEndEntry, MessageEntry, TurnStartEntry)):
            continue
        if last and entry.turn != last:
            break
        if isinstance(entry, TurnEndEntry):
            return LastTurn(entry.turn, entry.reply)
        if not entry.turn:
            return None
        if isinstance(entry, MessageEntry) and _follows_prompt(entry.message):
            return LastTurn(entry.turn, None)
        last = entry.turn
    return LastTurn(last, None, prompted=False) if last else None


def _follows_prompt(message: Message) -> bool:
    """Whether `message` is its turn's prompt, or comes after it: before it only tool results of an earlier turn may."""
    return message.role == "assistant" or any(isinstance(block, Text) for block in message.content)


class _EntryUsage(msgspec.Struct, gc=False):
    """Of an entry, what is needed to add up a turn: messages are passed over unread."""

    turn: str = ""
    usage: Usage | None = None


_used_decoder = msgspec.json.Decoder(_EntryUsage)


def read_usage(folder: Path, turn: str) -> Usage:
    """Return what the turn used so far by the folder's transcript, in which it is the last one.

    Reads the turn alone, without lock. Raises StoreError when it cannot be read.
    """
    usage = Usage()
    for line in newest_first(folder / NAME):
        try:
            entry = _used_decoder.decode(line)
        except _DECODE_ERRORS:
            continue
        if entry.turn not in ("", turn):
            break
        if entry.turn:  # what was used between turns is none of theirs
            usage += entry.usage or Usage()
    return usage


class _FileEntries:
    """The entries of a file, read anew each time they are gone through: what is not shown is not kept."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Entry | UnknownEntry]:
        return filter(None, map(_decode, read_objects(self._path, header=_HEADER)))


class _SessionFold:
    """The session that the file at `path` amounts to, as it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._session = SessionState()

    def anew(self) -> None:
        """Forget what was taken in."""
        self._session = SessionState()

    def take(self, line: bytes) -> None:
        """Take an entry in."""
        if (entry := _decode(line)) is not None:
            self._session.apply(entry)

    def take_lines(self, lines: bytes, _: LineSpan) -> None:
        """Take sound lines in, as they stand in the file: what seals them is no field of an entry, and passed over."""
        self._session.extend(_read_lines(lines))

    def skim_lines(self, lines: bytes, where: LineSpan) -> None:
        """The same, but what messages say is not read before somebody wants to know it; it stands `where` it does."""
        try:
            if self._session.skim(_skimmer.decode_lines(lines), lambda: _read_lines(where.read(self.path))):
                return
        except _DECODE_ERRORS:
            pass  # nothing was taken in: one of them changes what is shown, or is of a kind that nobody knows
        self.take_lines(lines, where)

    def folded(self, header: bytes) -> SessionState:
        """Return the session, after the file was gone through once."""
        session = self._session
        if session.hollow:
            session = session.refolded(_FileEntries(self.path))
        if header:
            session.apply(_decode_exactly(header))
        return session


def _read_lines(lines: bytes) -> Sequence[Entry | UnknownEntry]:
    try:
        return _decoder.decode_lines(lines)
    except _DECODE_ERRORS:  # one of them is of a kind that this version does not know
        return [entry for line in lines.split(b"\n") if (entry := _decode(line)) is not None]


def _encode(entry: Entry) -> bytes:
    try:
        try:
            return _encoder.encode(entry)
        except UnicodeEncodeError:
            return _encoder.encode(scrub(msgspec.to_builtins(entry)))
    except _ENCODE_ERRORS as error:
        raise StoreError(f"cannot record a {type(entry).__name__}: {error}") from error


def _is_plain(entry: Entry) -> bool:
    """Whether `entry` is read from its line just as it was written, because nothing but ASCII text is in it."""
    if not isinstance(entry, MessageEntry) or len(entry.message.content) != 1:
        return False
    block = entry.message.content[0]
    return type(block) is Text and block.text.isascii()


def _is_acted_on(entry: Entry) -> bool:
    """Whether something follows from `entry` that a loss of power must not undo: an answer, the run of a tool."""
    return isinstance(entry, TurnEndEntry) or (isinstance(entry, MessageEntry) and bool(tool_uses(entry.message)))


def _decode_exactly(line: bytes) -> Entry:
    try:
        return _decoder.decode(line)
    except _DECODE_ERRORS as error:
        raise StoreError(f"cannot record what could not be read again: {error}: {line[:80]!r}") from error


def _decode(line: bytes) -> Entry | UnknownEntry | None:
    """Return the entry on `line`, however little of it this version knows; None if it has no place in the tree."""
    try:
        return _decoder.decode(line)
    except _DECODE_ERRORS:
        pass
    try:
        return _unknown.decode(line)
    except _DECODE_ERRORS:
        return None


def timestamp() -> str:
    """Return the time as ISO 8601 in UTC with milliseconds."""
    milliseconds = time.time_ns() // 1_000_000
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=1)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
