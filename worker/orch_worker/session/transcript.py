"""An agent's transcript: the session file in a folder, its single writer, and functions for other readers.

An entry is first encoded and written, and then applied to the state. Therefore, the state always matches the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from orch_protocol.agent.plan import Task
from orch_protocol.agent.spec import BackendSpec, Durability
from orch_protocol.core.archives import Collapse, RecordUpgrade
from orch_protocol.core.errors import StoreError
from orch_protocol.core.ids import new_entry_id, new_id
from orch_protocol.core.messages import Message, Reply, Text, Usage, tool_uses
from orch_protocol.core.taint import TaintLabel
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
    MessageEntry,
    ModelChange,
    PhaseEntry,
    PlanApproved,
    SessionHeader,
    SessionInfo,
    TaintEntry,
    TasksEntry,
    ThinkingLevelChange,
    TranscriptPosition,
    TurnEndEntry,
    TurnStartEntry,
    UpgradeEntry,
)
from orch_protocol.session.tree import (
    AddMessage,
    ChangeArtifacts,
    ClearTasks,
    MoveLeaf,
    SessionEdit,
    SetLabel,
    SetMetadata,
    SetModel,
    SetThinking,
    SetTitle,
)

from .entry_codec import encode_entry, timestamp
from .log.append_log import AppendLog
from .log.lock import FolderLock
from .session import LostEntry, SessionState
from .session_reader import NAME, FileEntries, SessionFold, foreign_transcript, missing_lines

__all__ = ["Transcript"]


class Transcript:
    """The open transcript of one agent. Create a transcript with `Transcript.open`.

    The folder stays locked until `close`.
    """

    def __init__(self, lock: FolderLock, log: AppendLog, session: SessionState, repaired: str, power: bool) -> None:
        self.log = log
        self.path = log.path
        self.session = session
        self.repaired = repaired
        """One line about damage that was found when the file was opened, or "" if the file was undamaged."""
        self.turn = ""
        """Id of the query of the last turn that began in this process."""
        self._lock = lock
        self._power = power

    @classmethod
    def open(cls, folder: Path, *, agent: str, cwd: str, durability: Durability = "process") -> Transcript:
        """Lock `folder`, create or load its session file, cut off an incomplete write, and compute the state.

        With durability "power", a reply or a tool call is on the disk before it has any effect. Other entries reach the
        disk with the next sync. Raise LockedError if another process has the session open. Raise ForeignFileError,
        without changing the file, if the file is not a transcript of `agent`. Raise StoreError if the folder or file
        cannot be used.
        """
        lock = FolderLock.acquire(folder)
        log = None
        try:
            header, _ = encode_entry(SessionHeader(id=new_id(), timestamp=timestamp(), cwd=cwd, agent=agent))
            fold = SessionFold(folder / NAME)
            log, loaded = AppendLog.open(
                fold.path, header=header, on_object=fold.apply_line, on_block=fold.skim_lines, on_restart=fold.restart
            )
            session = fold.folded(loaded.header if loaded.end else header)
            owner = (session.header.agent if session.header else "") or agent
            if owner != agent:
                raise foreign_transcript(log.path, owner, agent)
        except BaseException:
            if log is not None:
                log.close()
            lock.release()
            raise
        repaired = f"{log.path}: {loaded.report}" if loaded.report else ""
        return cls(lock, log, session, repaired, durability == "power")

    @property
    def broken(self) -> bool:
        """Whether the state of the file is uncertain, or the file could not be read again.

        The next process must read the file.
        """
        return self.log.broken or self.session.must_refold

    def missing_lines(self, acknowledged: TranscriptPosition) -> str:
        """Return the reason why the file lacks the line `acknowledged`, or "" if the file contains the line.

        Raise StoreError if the file cannot be read.
        """
        return "" if self.log.position == acknowledged else missing_lines(self.path, acknowledged)

    def append(self, *entries: Entry, sync: bool = False) -> list[Entry]:
        """Record `entries`, which form a chain, in one write: all entries or none.

        Return the entries that a reader gets from the file. Values that JSON cannot represent are replaced: lone
        surrogates by U+FFFD, NaN by null. Raise StoreError if an entry cannot be encoded or written; in this case,
        nothing is recorded.
        """
        lines: list[bytes] = []
        stored: list[Entry] = []
        for entry in entries:
            line, entry = encode_entry(entry)
            lines.append(line)
            stored.append(entry)
        self.log.append(*lines, sync=sync or (self._power and any(map(_is_acted_on, stored))))
        session = self.session
        for entry in stored:
            session.apply(entry)
        if session.must_refold:
            self.session = session.refolded(FileEntries(self.path))
        return stored

    def message(
        self, message: Message, turn: str = "", usage: Usage | None = None, *, model: str = "", steer_id: str = ""
    ) -> MessageEntry:
        """Record `message` as the next message of the query `turn`, and return its recorded entry.

        For a response, `usage` is the usage of its request, and `model` the model as `PROVIDER:NAME`. For tool results,
        `usage` is the usage of models called by the tools. `steer_id` is the id of a steering message.
        """
        tree = self.session.lineage
        entry = MessageEntry(
            id=new_entry_id(tree.places),
            parent_id=tree.leaf,
            timestamp=timestamp(),
            message=message,
            turn=turn,
            usage=usage,
            model=model,
            steer_id=steer_id,
        )
        (stored,) = self.append(entry)
        return stored  # type: ignore[return-value]

    def turn_start(self, turn: str, interrupted: str) -> None:
        """Record that the query `turn` started after the turn `interrupted` had been interrupted."""
        self.append(TurnStartEntry(**self._next(), turn=turn, interrupted=interrupted))

    def turn_end(self, turn: str, reply: Reply) -> None:
        """Record that the query `turn` ended with `reply`."""
        self.append(TurnEndEntry(**self._next(), turn=turn, reply=reply))

    def change(self, edit: SessionEdit) -> None:
        """Record a change made between turns, unless the change is already recorded.

        Raise StoreError in the same cases as `checkout` and `label`.
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
            case ChangeArtifacts(steps):
                self.workspace(steps, id=edit.entry)
            case AddMessage(custom_type, text, display):
                entry = CustomMessage(
                    **self._next(edit.entry), custom_type=custom_type, content=(Text(text),), display=display
                )
                self.append(entry)
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
        """Record JSON data that the model does not see."""
        self.append(Custom(**self._next(), custom_type=custom_type, data=data))

    def checkout(self, to: str | None, summary: str | None = None, *, id: str | None = None) -> None:
        """Continue the conversation after the entry `to`. If `to` is None, start from the beginning of the session.

        Later messages stay on their own branch. The model sees `summary`, if given. Raise StoreError if the entry does
        not exist, or if the file cannot be read again. In the second case, the change is recorded, and the next reader
        continues after `to`.
        """
        session = self.session
        place = session.places.get(to, -1) if to is not None else -1
        if to is not None and (place < 0 or isinstance(session.entries[place], LostEntry)):
            raise StoreError(f"cannot go back: {self.path} has no entry {to!r}")
        left = session.leaf
        common = self._next(id) | {"parent_id": to}
        if summary is None:
            self.append(Checkout(**common, from_id=left))
        else:
            self.append(BranchSummary(**common, from_id=left, summary=summary))

    def label(self, target: str, label: str | None, *, id: str | None = None) -> None:
        """Record a label for the entry `target`. None removes the label. Raise StoreError for an unknown entry."""
        if target not in self.session.places:
            raise StoreError(f"cannot set the label: {self.path} has no entry {target!r}")
        self.append(Label(**self._next(id), target_id=target, label=label))

    def _next(self, id: str | None = None) -> dict[str, Any]:
        """Return the common fields of an entry that follows the leaf."""
        tree = self.session.lineage
        return {"id": id or new_entry_id(tree.places), "parent_id": tree.leaf, "timestamp": timestamp()}

    def archive(self, collapses: Iterable[Collapse]) -> None:
        """Record that parts of the conversation are archived: all of `collapses` or none.

        When this method returns, the entries are on the disk. Raise StoreError if writing fails, or if the parts are no
        longer in the conversation. In both cases, nothing has changed.
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

    def compaction(self, **fields: Any) -> CompactionEntry:
        """Record a compaction and return its entry, which is then on the disk.

        `fields` contains the fields of CompactionEntry.
        """
        return cast("CompactionEntry", self.append(CompactionEntry(**self._next(), **fields), sync=True)[0])

    def upgrade(self, upgrade: RecordUpgrade, usage: Usage | None = None, model: str = "") -> None:
        """Record a better text for the record of an archive. `model` wrote it with `usage`."""
        self.append(UpgradeEntry(**self._next(), upgrade=upgrade, usage=usage, model=model))

    def plan_approved(self, plan: str) -> None:
        """Record that the plan of the plan mode `plan` was approved. When this returns, the entry is on the disk."""
        agent = self.session.header.agent if self.session.header else ""
        self.append(PlanApproved(**self._next(), agent=agent, plan=plan), sync=True)

    def tasks(self, tasks: tuple[Task, ...]) -> None:
        """Record the agent's tasks in the current query."""
        self.append(TasksEntry(**self._next(), turn=self.turn, tasks=tasks))

    def record_taint_labels(self, labels: tuple[TaintLabel, ...]) -> None:
        """Record new taint labels in the current query."""
        self.append(TaintEntry(**self._next(), turn=self.turn, marks=labels))

    def phase(self, **fields: Any) -> None:
        """Record the result of a phase. `fields` contains the fields of PhaseEntry."""
        self.append(PhaseEntry(**self._next(), **fields))

    def workspace(self, steps: tuple[Step, ...], turn: str = "", *, id: str | None = None) -> None:
        """Record changes of the workspace in the query `turn`."""
        data = msgspec.to_builtins(WorkspaceSteps(turn, steps))
        self.append(Custom(**self._next(id), custom_type=WORKSPACE, data=data))

    def model_change(self, backend: BackendSpec) -> None:
        """Record that the model of `backend` answers from now on."""
        self.append(ModelChange(**self._next(), provider=backend.provider, model_id=backend.model))

    def seed(self, history: Iterable[Message]) -> None:
        """Record `history` as earlier messages, in one write. Raise StoreError unless the transcript is empty."""
        if self.session.entries:
            raise StoreError(
                f"{self.path} has {len(self.session.entries)} entries: only an empty session can be seeded"
            )
        entries: dict[str, MessageEntry] = {}
        parent, now = None, timestamp()
        for message in history:
            id = new_entry_id(entries)
            entries[id] = MessageEntry(id=id, parent_id=parent, timestamp=now, message=message)
            parent = id
        self.append(*entries.values(), sync=self._power)

    def close(self) -> None:
        """Make all entries durable, and release the folder. Calling this method twice is allowed."""
        try:
            self.log.close()
        finally:
            self._lock.release()


def _is_acted_on(entry: Entry) -> bool:
    """Return whether `entry` has effects that a power loss must not undo: a reply or a tool call."""
    return isinstance(entry, TurnEndEntry) or (isinstance(entry, MessageEntry) and bool(tool_uses(entry.message)))
