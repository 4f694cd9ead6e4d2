"""A session: the fold of its entries. No I/O, and nothing in it changes but by `apply`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias, cast, get_args

import msgspec
from msgspec import Struct

from orch_protocol.agent.plan import Task
from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Message, Reply, Usage, tool_uses
from orch_protocol.core.taint import TaintLabel, join_labels
from orch_protocol.core.workspace import WORKSPACE
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
    TurnEndEntry,
    TurnStartEntry,
    UpgradeEntry,
)

from ..conversation.history import HistoryBuilder
from .entry_tree import EntryTree
from .visible_messages import NOTHING, VisibleMessage, VisibleMessages

__all__ = ["LeftEntry", "LostEntry", "MessageRow", "Quiet", "SessionState", "UnknownEntry"]

Quiet: TypeAlias = (
    TurnStartEntry
    | TurnEndEntry
    | PlanApproved
    | TasksEntry
    | MarksEntry
    | PhaseEntry
    | Custom
    | SessionInfo
    | Label
    | ModelChange
    | ThinkingLevelChange
)
"""Entries that change nothing of what the model is shown."""
SKIMMED: Final = frozenset({MessageEntry, *get_args(Quiet)})
TELLING: Final = (MessageEntry, CustomMessage, BranchSummary)


class UnknownEntry(Struct, frozen=True, rename="camel"):
    """An entry of a type or shape this version does not know. It keeps its place in the tree and says nothing."""

    id: str
    parent_id: str | None = None
    type: str = ""


class MessageRow(Struct, frozen=True, gc=False, tag="message", tag_field="type", rename="camel"):
    """Of a message's entry, what is needed of a conversation that nobody looks at yet."""

    id: str
    parent_id: str | None
    turn: str = ""
    usage: Usage | None = None
    said: str = ""


class LeftEntry(Struct, frozen=True, gc=False):
    """An entry that the conversation does not show: a holder has it now, or it is on another branch.

    Its line is in the file; nobody need hold it in memory.
    """

    id: str
    parent_id: str | None
    turn: str


class LostEntry(Struct, frozen=True):
    """An entry that is known by the one after it alone, which names it: its line is damaged."""

    id: str
    parent_id: str | None


Read: TypeAlias = Callable[[], "Sequence[Entry | UnknownEntry]"]


class SessionState:
    """Everything that one agent's entries amount to. Attributes are read, never assigned.

    Entries form a tree: each names the entry it follows. The last one is the `leaf`, and what the session says of the
    conversation is of the path that leads there. One that names an entry that is not there (its line was damaged)
    follows that all the same: it was between this one and the one before it in the file, and an archive may begin or
    end with it.

    With `path` it is known already which of the first entries are on the path, by their places: of the others nothing
    is kept but what they follow.
    """

    def __init__(self, path: bytes | bytearray = b"") -> None:
        self.header: SessionHeader | None = None
        self._entries: list[Entry | UnknownEntry | LeftEntry | LostEntry] = []
        self.lineage = EntryTree()
        """Which entry follows which."""
        self.replies: dict[str, Reply] = {}
        """The reply of each finished turn on the path, by query id."""
        self.interrupted: str | None = None
        """The query whose turn has messages and no end: cut short, or still running. None when there is none."""
        self.said: set[str] = set()
        """Ids of what was said to the agent while it worked, on all branches."""
        self.usage = Usage()
        """What all turns used together, on all branches, those cut short included, as far as it is on record."""
        self._approved: dict[str, set[str]] = {}
        """By agent, which plan modes the approval of a plan has ended, on whatever branch."""
        self.tasks: tuple[Task, ...] = ()
        """What the agent means to do, as the path has it."""
        self.marks: tuple[TaintLabel, ...] = ()
        """What came into the conversation that matters for what may be done, as the path has it. It does not leave with
        what is archived: what was made of that stays."""
        self.model = ""
        """The model, `provider:name`, that the path has on record as the agent's own; "" where it has none."""
        self.answerer = ""
        """The model that answers by what the path has on record last: the agent's own, or another one for a turn."""
        self.thinking = ""
        """How much its model is to think, as the path has it; "" where it does not say."""
        self.at_hand: list[Any] = []
        """What entries on the path say of the workspace; see `artifacts.fold`."""
        self.last_said: Reply | None = None
        """The reply of the last finished turn on the path of which there is any message: of one that was ended before
        it began there is none."""
        self.turns = 0
        """How many turns on the path are finished."""
        self._turn = ""
        self._used_before = Usage()
        """What was used before the turn `_turn` began."""
        self.compactions = 0
        """How many summaries on the path took the place of what was said."""
        self.compacted: CompactionEntry | None = None
        """The last of them, whatever it was archived with since."""
        self.asked = False
        """Whether the agent itself was asked on this path: what it was seeded with is somebody else's."""
        self._responses = 0
        self._view: VisibleMessages[int] = VisibleMessages()
        self._unread: list[Read] = []
        """What gives the last entries, which have their places already: they are read when somebody looks at them."""
        self.hollow = False
        """Whether the path has left the one it was: only who reads all entries again knows what is shown now."""
        self._path = path
        self._gone: list[VisibleMessage[int]] = []
        """What the last archive took out of the view."""
        self._messages: tuple[Message, ...] | None = ()

    @classmethod
    def fold(cls, entries: Iterable[Entry | UnknownEntry]) -> SessionState:
        """Return the session that `entries`, in file order, amount to. They are gone through twice if they branch."""
        session = cls()
        for entry in entries:
            session.apply(entry)
        return session.refolded(entries) if session.hollow else session

    def refolded(self, entries: Iterable[Entry | UnknownEntry]) -> SessionState:
        """Return this session as it is when its path is known beforehand. `entries` are all it was made of, or more."""
        session = type(self)(self.lineage.path(len(self.entries) - 1))
        for entry in entries:
            session.apply(entry)
        return session.refolded(entries) if session.hollow else session

    @property
    def entries(self) -> list[Entry | UnknownEntry | LeftEntry | LostEntry]:
        """All entries but the header, in file order."""
        if self._unread:
            self._read()
        return self._entries

    @property
    def view(self) -> VisibleMessages[int]:
        """What the model is shown, before it is brought into a form that providers accept."""
        if self._unread:
            self._read()
        return self._view

    @property
    def responses(self) -> int:
        """How many responses it gave, on all branches, those that a holder keeps included."""
        if self._unread:
            self._read()
        return self._responses

    @property
    def places(self) -> dict[str, int]:
        """Where each entry stands in `entries`, by its id."""
        return self.lineage.places

    @property
    def leaf(self) -> str | None:
        """Id of the last entry, which the next one follows; None in an empty session."""
        return self.lineage.leaf

    @property
    def messages(self) -> tuple[Message, ...]:
        """The model's context: the messages from the root to the leaf, always in a form that providers accept.

        Neighbours of one role are one message. Each tool call has exactly one result right after it: one that is
        missing says that the process ended, one whose call is missing becomes text.
        """
        if self._messages is None:
            history = HistoryBuilder()
            for message in self.view:
                history.add(message)
            self._messages = history.messages()
        return self._messages

    def messages_before(self, turn: str) -> tuple[Message, ...]:
        """Return `messages` without those of the turn of that query."""
        history = HistoryBuilder()
        for item in self.view.items:
            entry = self.entries[self.places[item.last]]
            if not (isinstance(entry, MessageEntry) and entry.turn == turn):
                history.add(item.message)
        return history.messages()

    @property
    def plans_approved(self) -> frozenset[str]:
        """Which plan modes of the agent's have ended: of this one, not of one whose conversation it goes on with."""
        return frozenset(self._approved.get(self.header.agent, ()) if self.header is not None else ())

    @property
    def fresh(self) -> bool:
        """Whether the agent is yet to be told its task. One that goes on with a conversation from elsewhere is not,
        unless it begins anew."""
        taken_over = self.header is not None and self.header.parent_session is not None
        return not self.asked and not (taken_over and self.view.items)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Names of the tools that were called last, and of whose calls no result is on record."""
        last = self.view.items[-1].message if self.view.items else NOTHING
        return tuple(call.name for call in tool_uses(last))

    def reply(self, query_id: str) -> Reply | None:
        """Return the reply of the finished turn `query_id` on the path, or None."""
        return self.replies.get(query_id)

    def apply(self, entry: Entry | UnknownEntry) -> None:
        """Take the next entry in."""
        if isinstance(entry, SessionHeader):
            self.header = self.header or entry
            return
        if entry.parent_id is not None and self.lineage.missing(entry.parent_id):
            self._add(LostEntry(entry.parent_id, self.leaf))
        shown = self._add(entry)
        if isinstance(entry, (MessageEntry, TurnEndEntry, CompactionEntry, PhaseEntry, PlanApproved)):
            self._count(entry)
        if isinstance(entry, MessageEntry):
            self._responses += bool(entry.turn) and entry.message.role == "assistant"
        if shown:
            self._tell(entry)
        elif not isinstance(entry, LeftEntry):
            self._forget(entry)

    def extend(self, entries: Iterable[Entry | UnknownEntry]) -> None:
        """Take the next entries in, as `apply` would one by one; a long conversation is mostly messages in a row."""
        for quiet, each in groupby(entries, lambda entry: type(entry) in SKIMMED):
            run = list(each)
            if not (quiet and self.skim(cast("list[MessageEntry | Quiet]", run), lambda run=run: run)):  # type: ignore[misc]
                for entry in run:
                    self.apply(entry)

    def skim(self, rows: Sequence[MessageRow | MessageEntry | Quiet], read: Read) -> bool:
        """Take the next entries in without what they say: `rows` are what else there is to them, `read` reads them.

        Each is to follow the one before; return False, and do nothing, where one does not.
        """
        ids = [row.id for row in rows]
        if self.hollow or self._path or [row.parent_id for row in rows] != [self.leaf, *ids[:-1]]:
            return False
        self.lineage.extend(ids)
        self._unread.append(read)
        self._messages = None
        current: str | None = None  # the turn of which it is known already that the agent was asked
        for row in rows:
            message = type(row) is MessageRow or type(row) is MessageEntry
            if not message or row.turn != current or row.usage is not None or row.said:  # type: ignore[union-attr]
                self._count(row)
                self._tell(row)
                current = row.turn if message else None  # type: ignore[union-attr]
        return True

    def _read(self) -> None:
        """Read what was only skimmed."""
        reads, self._unread = self._unread, []
        for read in reads:
            place = len(self._entries)
            entries = read()
            self._entries += entries
            messages = [(at, entry) for at, entry in enumerate(entries, place) if type(entry) is MessageEntry]
            self._view.items += [VisibleMessage(entry.message, entry.id, entry.id, at) for at, entry in messages]
            self._responses += sum(bool(entry.turn) and entry.message.role == "assistant" for _, entry in messages)

    def _add(self, entry: Entry | UnknownEntry | LostEntry) -> bool:
        """Give `entry` its place; return whether it is on the path."""
        assert not isinstance(entry, SessionHeader)
        place = len(self.entries)
        parent = self.lineage.add(entry.id, entry.parent_id)
        self.entries.append(entry)
        # Gathered when asked for: a worker at work asks seldom, and records all the time.
        self._messages = None
        if place < len(self._path):
            shown = bool(self._path[place])
        else:
            self.hollow = self.hollow or parent != place - 1
            shown = not self.hollow
        if shown:
            self._show(entry, place)
        return shown

    def _forget(self, entry: Entry | UnknownEntry) -> None:
        """Keep of the last entry, which is not on the path, what it follows. Each text is there once."""
        assert not isinstance(entry, SessionHeader)
        above, turn = self.lineage.parents[-1], getattr(entry, "turn", "")
        parent = self.entries[above] if above >= 0 else None
        said = parent.turn if isinstance(parent, LeftEntry) and parent.turn == turn else turn
        self.entries[-1] = LeftEntry(entry.id, parent.id if parent is not None else None, said)

    def _show(self, entry: Entry | UnknownEntry | LostEntry, place: int) -> None:
        """Let the view take `entry` in, which stands at `place` and follows what it shows."""
        if isinstance(entry, TELLING):
            self.view.add(entry.id, entry.message, place)
        elif isinstance(entry, LostEntry):
            self.view.lose(entry.id, place)
        elif isinstance(entry, ArchiveEntry):
            try:
                self._gone = self.view.collapse(entry.collapse, place, deleted=bool(entry.deleted))
            except StoreError:
                self._gone = []  # what a damaged file does not show any more in one piece stays as it is
        elif isinstance(entry, UpgradeEntry):
            self.view.upgrade(entry.upgrade)
        elif isinstance(entry, CompactionEntry):
            stop = self.view.kept(entry.first_kept_entry_id)
            for item in self.view.compact(entry.summary, stop, entry.id, lambda _: place):
                self._drop(item.note)

    def _count(self, entry: Entry | MessageRow) -> None:
        """Take in what an entry tells on whichever branch it is: what was used was used."""
        if isinstance(entry, PlanApproved):
            self._approved.setdefault(entry.agent, set()).add(entry.plan)
        if isinstance(entry, TurnEndEntry):
            # The reply knows of failed requests too, which no message tells of.
            self.usage = entry.reply.usage + (self._used_before if entry.turn == self._turn else self.usage)
            return
        if not isinstance(entry, (MessageEntry, MessageRow, CompactionEntry, PhaseEntry)):
            return
        if isinstance(entry, (MessageEntry, MessageRow)) and entry.said:
            self.said.add(entry.said)
        if entry.turn != self._turn:
            self._turn, self._used_before = entry.turn, self.usage
        if entry.usage is not None:
            self.usage += entry.usage

    def _tell(self, entry: Entry | UnknownEntry | MessageRow) -> None:
        """Take in what an entry on the path tells of its turns."""
        if isinstance(entry, (MessageEntry, MessageRow)):
            if entry.turn:
                self.asked = True
                if entry.turn not in self.replies:
                    self.interrupted = entry.turn
        elif isinstance(entry, ArchiveEntry):
            self._leave(entry)
        elif isinstance(entry, TurnEndEntry):
            self.replies[entry.turn] = entry.reply
            self.turns += 1
            if self.interrupted == entry.turn:
                self.interrupted = None
                self.last_said = entry.reply
        elif isinstance(entry, TasksEntry):
            self.tasks = entry.tasks
        elif isinstance(entry, MarksEntry):
            self.marks = join_labels(self.marks, entry.marks)
        elif isinstance(entry, CompactionEntry):
            self.compactions += 1
            self.compacted = entry
        elif isinstance(entry, TurnStartEntry) and self.interrupted == entry.interrupted:
            self.interrupted = None
        elif isinstance(entry, (Checkout, BranchSummary)):
            self.interrupted = None  # who went back there knows where that is
        elif isinstance(entry, ModelChange):
            self.answerer = f"{entry.provider}:{entry.model_id}" if entry.model_id else entry.provider
            if entry.own:
                self.model = self.answerer
        elif isinstance(entry, ThinkingLevelChange):
            self.thinking = entry.thinking_level
        elif isinstance(entry, Custom) and entry.custom_type == WORKSPACE:
            self.at_hand.append(entry.data)

    def _leave(self, entry: ArchiveEntry) -> None:
        """Forget the messages that are the holder's now, and let the reply to their turn say so."""
        collapse = entry.collapse
        if not self._gone:
            return  # it could not be carried out
        path = (self.entries[place] for place in self.lineage.back(self.places[collapse.last]))
        turn = next((each.turn for each in path if isinstance(each, (MessageEntry, LeftEntry))), "")
        if collapse.kind == "turn" and turn in self.replies:
            self.replies[turn] = msgspec.structs.replace(self.replies[turn], archived_to=collapse.holder)
        for place in (item.note for item in self._gone):
            self._drop(place, turn)
        self.entries[self.places[entry.id]] = msgspec.structs.replace(
            entry, collapse=msgspec.structs.replace(collapse, record={})
        )

    def _drop(self, place: int, turn: str = "") -> None:
        """Keep of the entry at `place`, which is not shown any more, what it follows and its turn, mostly `turn`."""
        left = self.entries[place]
        if isinstance(left, (*TELLING, ArchiveEntry, CompactionEntry)):
            # Of a long life most is this: each text in it is there once.
            said = left.turn if isinstance(left, (MessageEntry, CompactionEntry)) else turn
            before = self.lineage.parents[place]
            above = self.entries[before].id if before >= 0 else None
            self.entries[place] = LeftEntry(left.id, above, turn if said == turn else said)
