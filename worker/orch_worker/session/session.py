"""The state of a session: the fold of its entries. Only `apply` changes the state. This module does no I/O."""

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
    MessageEntry,
    ModelChange,
    PhaseEntry,
    PlanApproved,
    SessionHeader,
    SessionInfo,
    TaintEntry,
    TasksEntry,
    ThinkingLevelChange,
    TurnEndEntry,
    TurnStartEntry,
    UpgradeEntry,
)

from ..conversation.history import HistoryBuilder
from .entry_codec import UnknownEntry
from .entry_tree import EntryTree
from .visible_messages import NOTHING, VisibleMessage, VisibleMessages

__all__ = ["HiddenEntry", "LostEntry", "MessageRow", "Quiet", "SessionState"]

Quiet: TypeAlias = (
    TurnStartEntry
    | TurnEndEntry
    | PlanApproved
    | TasksEntry
    | TaintEntry
    | PhaseEntry
    | Custom
    | SessionInfo
    | Label
    | ModelChange
    | ThinkingLevelChange
)
"""Entries that do not change the messages that the model sees."""
SKIMMABLE: Final = frozenset({MessageEntry, *get_args(Quiet)})
ENTRIES_WITH_MESSAGE: Final = (MessageEntry, CustomMessage, BranchSummary)


class MessageRow(Struct, frozen=True, gc=False, tag="message", tag_field="type", rename="camel"):
    """The fields of a message entry that are needed before its content is decoded."""

    id: str
    parent_id: str | None
    turn: str = ""
    usage: Usage | None = None
    steer_id: str = ""


class HiddenEntry(Struct, frozen=True, gc=False):
    """An entry that the conversation does not show, because the entry is archived or lies on another branch.

    The entry is in the file and need not be kept in memory.
    """

    id: str
    parent_id: str | None
    turn: str


class LostEntry(Struct, frozen=True):
    """An entry with a damaged line. The entry is known only because another entry names it as parent."""

    id: str
    parent_id: str | None


Read: TypeAlias = Callable[[], "Sequence[Entry | UnknownEntry]"]


class SessionState:
    """The state that results from one agent's entries. Do not assign attributes.

    Entries form a tree: each entry names its parent. The last entry is the `leaf`, and the conversation is the path
    from the root to the leaf. If a parent's line is damaged, a placeholder for the parent is inserted before the entry,
    because archives may start or end with the damaged parent.

    `path` may contain a flag for each of the first entries. The flag is 1 if the entry is on the path. Of an entry that
    is not on the path, only the parent is kept in memory.
    """

    def __init__(self, path: bytes | bytearray = b"") -> None:
        self.header: SessionHeader | None = None
        self._entries: list[Entry | UnknownEntry | HiddenEntry | LostEntry] = []
        self.lineage = EntryTree()
        """The tree of entries."""
        self.replies: dict[str, Reply] = {}
        """The reply of each finished turn on the path. Keys are query ids."""
        self.interrupted: str | None = None
        """The query id of a turn that has messages but no end, because it was interrupted or is still running.

        Otherwise None.
        """
        self.delivered_steer_ids: set[str] = set()
        """Ids of delivered steering messages on all branches."""
        self.usage = Usage()
        """The recorded usage of all turns on all branches, including interrupted turns."""
        self._approved: dict[str, set[str]] = {}
        """Plan modes that an approval ended, on all branches. Keys are agent ids."""
        self.tasks: tuple[Task, ...] = ()
        """The agent's tasks on the path."""
        self.taint_labels: tuple[TaintLabel, ...] = ()
        """The taint labels of the conversation on the path.

        Labels stay when messages are archived, because the archived content influenced later messages.
        """
        self.model = ""
        """The agent's own model on the path as `provider:model`, or "" if no model is recorded."""
        self.answerer = ""
        """The model that answered last on the path: the agent's own model, or another model used for one turn."""
        self.thinking = ""
        """The thinking level on the path, or "" if no level is recorded."""
        self.workspace_data: list[Any] = []
        """Data of the workspace entries on the path. See `Workspace.of`."""
        self.last_reply: Reply | None = None
        """The reply of the last finished turn on the path that has at least one message.

        A turn that ended before its first message does not count.
        """
        self.turns = 0
        """Number of finished turns on the path."""
        self._turn = ""
        self._used_before = Usage()
        """The usage before the turn `_turn`."""
        self.compactions = 0
        """Number of compactions on the path."""
        self.compacted: CompactionEntry | None = None
        """The last compaction on the path, even if it was archived later."""
        self.was_queried = False
        """Whether the agent itself was queried on this path. History given at the start does not count."""
        self._responses = 0
        self._view: VisibleMessages[int] = VisibleMessages()
        self._unread: list[Read] = []
        """Functions that read the last entries. These entries are in the tree, but their content has not been read."""
        self.must_refold = False
        """Whether the path has changed to another branch, so that all entries must be read again."""
        self._path = path
        self._archived_items: list[VisibleMessage[int]] = []
        """The messages that the last archive removed from the view."""
        self._messages: tuple[Message, ...] | None = ()

    @classmethod
    def fold(cls, entries: Iterable[Entry | UnknownEntry]) -> SessionState:
        """Return the state that results from `entries`, which are in file order.

        If the entries branch, `entries` are read twice.
        """
        session = cls()
        for entry in entries:
            session.apply(entry)
        return session.refolded(entries) if session.must_refold else session

    def refolded(self, entries: Iterable[Entry | UnknownEntry]) -> SessionState:
        """Return the state, computed again from all entries. In this second pass, the path is known.

        `entries` must contain at least all entries of this state.
        """
        session = type(self)(self.lineage.path(len(self.entries) - 1))
        for entry in entries:
            session.apply(entry)
        return session.refolded(entries) if session.must_refold else session

    @property
    def entries(self) -> list[Entry | UnknownEntry | HiddenEntry | LostEntry]:
        """All entries except the header, in file order."""
        if self._unread:
            self._read()
        return self._entries

    @property
    def view(self) -> VisibleMessages[int]:
        """The messages that the model sees, before they are converted to a form that providers accept."""
        if self._unread:
            self._read()
        return self._view

    @property
    def responses(self) -> int:
        """Number of the agent's responses on all branches, including archived responses."""
        if self._unread:
            self._read()
        return self._responses

    @property
    def places(self) -> dict[str, int]:
        """The position of each entry in `entries`. Keys are entry ids."""
        return self.lineage.places

    @property
    def leaf(self) -> str | None:
        """Id of the last entry, which is the parent of the next entry. An empty session has the leaf None."""
        return self.lineage.leaf

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation for the model: the messages from the root to the leaf, in a form that providers accept.

        Adjacent messages with the same role are merged. Each tool call is directly followed by exactly one result. A
        note replaces a missing result, and a result without a call becomes text.
        """
        if self._messages is None:
            history = HistoryBuilder()
            for message in self.view:
                history.add(message)
            self._messages = history.messages()
        return self._messages

    def messages_before(self, turn: str) -> tuple[Message, ...]:
        """Return `messages` without the messages of the query `turn`."""
        history = HistoryBuilder()
        for item in self.view.items:
            entry = self.entries[self.places[item.last]]
            if not (isinstance(entry, MessageEntry) and entry.turn == turn):
                history.add(item.message)
        return history.messages()

    @property
    def plans_approved(self) -> frozenset[str]:
        """The plan modes of this agent that have ended.

        If the agent continues the conversation of another agent, the plan modes of that agent are not included.
        """
        return frozenset(self._approved.get(self.header.agent, ()) if self.header is not None else ())

    @property
    def fresh(self) -> bool:
        """Whether the next prompt must contain the agent's task.

        The value is False for an agent that continues an inherited conversation.
        """
        taken_over = self.header is not None and self.header.parent_session is not None
        return not self.was_queried and not (taken_over and self.view.items)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Names of the tools whose last calls have no recorded result."""
        last = self.view.items[-1].message if self.view.items else NOTHING
        return tuple(call.name for call in tool_uses(last))

    def reply(self, query_id: str) -> Reply | None:
        """Return the reply of the finished turn `query_id` on the path, or None."""
        return self.replies.get(query_id)

    def apply(self, entry: Entry | UnknownEntry) -> None:
        """Apply the next entry to the state."""
        if isinstance(entry, SessionHeader):
            self.header = self.header or entry
            return
        if self._unread:
            self._read()
        lineage = self.lineage
        if entry.parent_id is not None and entry.parent_id != lineage.leaf and lineage.missing(entry.parent_id):
            self._add(LostEntry(entry.parent_id, lineage.leaf))
        shown = self._add(entry)
        if isinstance(entry, MessageEntry):
            self._count(entry)
            if entry.turn and entry.message.role == "assistant":
                self._responses += 1
        elif isinstance(entry, (TurnEndEntry, CompactionEntry, PhaseEntry, PlanApproved)):
            self._count(entry)
        if shown:
            self._update_turn_state(entry)
        elif not isinstance(entry, HiddenEntry):
            self._hide_last_entry(entry)

    def extend(self, entries: Iterable[Entry | UnknownEntry]) -> None:
        """Apply the next entries to the state.

        For long runs of messages, this method is faster than calling `apply` repeatedly.
        """
        for quiet, each in groupby(entries, lambda entry: type(entry) in SKIMMABLE):
            run = list(each)
            if not (quiet and self.skim(cast("list[MessageEntry | Quiet]", run), lambda run=run: run)):  # type: ignore[misc]
                for entry in run:
                    self.apply(entry)

    def skim(self, rows: Sequence[MessageRow | MessageEntry | Quiet], read: Read) -> bool:
        """Apply the next entries without reading their content. `rows` are their other fields.

        `read` returns the entries.

        Return whether the entries were applied. Nothing changes if an entry does not follow the previous entry.
        """
        ids = [row.id for row in rows]
        if self.must_refold or self._path or [row.parent_id for row in rows] != [self.leaf, *ids[:-1]]:
            return False
        self.lineage.extend(ids)
        self._unread.append(read)
        self._messages = None
        current: str | None = None  # The turn that was already counted as queried.
        for row in rows:
            message = type(row) is MessageRow or type(row) is MessageEntry
            if not message or row.turn != current or row.usage is not None or row.steer_id:  # type: ignore[union-attr]
                self._count(row)
                self._update_turn_state(row)
                current = row.turn if message else None  # type: ignore[union-attr]
        return True

    def _read(self) -> None:
        """Read the entries that were only skimmed."""
        reads, self._unread = self._unread, []
        for read in reads:
            place = len(self._entries)
            entries = read()
            self._entries += entries
            messages = [(at, entry) for at, entry in enumerate(entries, place) if type(entry) is MessageEntry]
            self._view.items += [VisibleMessage(entry.message, entry.id, entry.id, at) for at, entry in messages]
            self._responses += sum(bool(entry.turn) and entry.message.role == "assistant" for _, entry in messages)

    def _add(self, entry: Entry | UnknownEntry | LostEntry) -> bool:
        """Append `entry` to the tree. Return whether `entry` is on the path. Skimmed entries must be read first."""
        assert not isinstance(entry, SessionHeader)
        place = len(self._entries)
        parent = self.lineage.add(entry.id, entry.parent_id)
        self._entries.append(entry)
        # The messages are computed on demand, because a running worker records often and reads rarely.
        self._messages = None
        if place < len(self._path):
            shown = bool(self._path[place])
        else:
            self.must_refold = self.must_refold or parent != place - 1
            shown = not self.must_refold
        if shown:
            self._show(entry, place)
        return shown

    def _hide_last_entry(self, entry: Entry | UnknownEntry) -> None:
        """Replace the last entry, which is not on the path, by an entry that keeps only its parent."""
        assert not isinstance(entry, SessionHeader)
        above, turn = self.lineage.parents[-1], getattr(entry, "turn", "")
        parent = self.entries[above] if above >= 0 else None
        entry_turn = parent.turn if isinstance(parent, HiddenEntry) and parent.turn == turn else turn
        self.entries[-1] = HiddenEntry(entry.id, parent.id if parent is not None else None, entry_turn)

    def _show(self, entry: Entry | UnknownEntry | LostEntry, place: int) -> None:
        """Add `entry`, which has the position `place`, to the view."""
        view = self._view
        if isinstance(entry, ENTRIES_WITH_MESSAGE):
            view.add(entry.id, entry.message, place)
        elif isinstance(entry, LostEntry):
            view.add_placeholder(entry.id, place)
        elif isinstance(entry, ArchiveEntry):
            try:
                self._archived_items = view.collapse(entry.collapse, place, deleted=bool(entry.deleted))
            except StoreError:
                # In a damaged file, the archived messages may not be contiguous. In this case, they stay visible.
                self._archived_items = []
        elif isinstance(entry, UpgradeEntry):
            view.upgrade(entry.upgrade)
        elif isinstance(entry, CompactionEntry):
            stop = view.items_before(entry.first_kept_entry_id)
            for item in view.compact(entry.summary, stop, entry.id, lambda _: place):
                self._hide_entry(item.note)

    def _count(self, entry: Entry | MessageRow) -> None:
        """Count the data of an entry that concern all branches, such as usage."""
        if isinstance(entry, (MessageEntry, MessageRow)):
            if entry.steer_id:
                self.delivered_steer_ids.add(entry.steer_id)
        elif isinstance(entry, PlanApproved):
            self._approved.setdefault(entry.agent, set()).add(entry.plan)
            return
        elif isinstance(entry, TurnEndEntry):
            # The usage of the reply includes failed requests, which have no message.
            self.usage = entry.reply.usage + (self._used_before if entry.turn == self._turn else self.usage)
            return
        elif not isinstance(entry, (CompactionEntry, PhaseEntry)):
            return
        if entry.turn != self._turn:
            self._turn, self._used_before = entry.turn, self.usage
        if entry.usage is not None:
            self.usage += entry.usage

    def _update_turn_state(self, entry: Entry | UnknownEntry | MessageRow) -> None:
        """Update the state of turns with the data of an entry on the path."""
        if isinstance(entry, (MessageEntry, MessageRow)):
            if entry.turn:
                self.was_queried = True
                if entry.turn not in self.replies:
                    self.interrupted = entry.turn
        elif isinstance(entry, ArchiveEntry):
            self._apply_archive(entry)
        elif isinstance(entry, TurnEndEntry):
            self.replies[entry.turn] = entry.reply
            self.turns += 1
            if self.interrupted == entry.turn:
                self.interrupted = None
                self.last_reply = entry.reply
        elif isinstance(entry, TasksEntry):
            self.tasks = entry.tasks
        elif isinstance(entry, TaintEntry):
            self.taint_labels = join_labels(self.taint_labels, entry.marks)
        elif isinstance(entry, CompactionEntry):
            self.compactions += 1
            self.compacted = entry
        elif isinstance(entry, TurnStartEntry) and self.interrupted == entry.interrupted:
            self.interrupted = None
        elif isinstance(entry, (Checkout, BranchSummary)):
            self.interrupted = None  # Going back was a deliberate change, so no note is needed.
        elif isinstance(entry, ModelChange):
            self.answerer = f"{entry.provider}:{entry.model_id}" if entry.model_id else entry.provider
            if entry.own:
                self.model = self.answerer
        elif isinstance(entry, ThinkingLevelChange):
            self.thinking = entry.thinking_level
        elif isinstance(entry, Custom) and entry.custom_type == WORKSPACE:
            self.workspace_data.append(entry.data)

    def _apply_archive(self, entry: ArchiveEntry) -> None:
        """Remove the archived messages from the view. Record the archive in the reply of the archived turn."""
        collapse = entry.collapse
        if not self._archived_items:
            return  # The archive was not applied.
        path = (self.entries[place] for place in self.lineage.path_to_root(self.places[collapse.last]))
        turn = next((each.turn for each in path if isinstance(each, (MessageEntry, HiddenEntry))), "")
        if collapse.kind == "turn" and turn in self.replies:
            self.replies[turn] = msgspec.structs.replace(self.replies[turn], archived_to=collapse.holder)
        for place in (item.note for item in self._archived_items):
            self._hide_entry(place, turn)
        self.entries[self.places[entry.id]] = msgspec.structs.replace(
            entry, collapse=msgspec.structs.replace(collapse, record={})
        )

    def _hide_entry(self, place: int, turn: str = "") -> None:
        """Replace the entry at `place`, which is no longer shown, by its parent and turn.

        `turn` is used if the entry does not name a turn.
        """
        left = self.entries[place]
        if isinstance(left, (*ENTRIES_WITH_MESSAGE, ArchiveEntry, CompactionEntry)):
            # Long sessions consist mostly of such entries, so their strings are shared.
            entry_turn = left.turn if isinstance(left, (MessageEntry, CompactionEntry)) else turn
            before = self.lineage.parents[place]
            above = self.entries[before].id if before >= 0 else None
            self.entries[place] = HiddenEntry(left.id, above, turn if entry_turn == turn else entry_turn)
