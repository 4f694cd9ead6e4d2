"""A session: the fold of its entries. No I/O, and nothing in it changes but by `apply`."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from orch_protocol.entries import Entry, MessageEntry, SessionHeader, TurnEnd, TurnStart
from orch_protocol.messages import Block, Message, Reply, Text, ToolResult, Usage, tool_uses, user

__all__ = ["Session", "UnknownEntry"]

LOST_RESULT = "The process ended before a result was recorded: the call may have taken effect, or not."
LOST_CALL = "[The result of a call that is not on record:]"
LOST_START = "[The beginning of this conversation is not on record.]"


class UnknownEntry(Struct, frozen=True, rename="camel"):
    """An entry of a type or shape this version does not know. It keeps its place in the tree and says nothing."""

    id: str
    parent_id: str | None = None
    type: str = ""


class Session:
    """Everything that one agent's entries amount to. Attributes are read, never assigned.

    Entries form a tree: each names the entry it follows, and the last one is the `leaf`. One that names an entry that
    is not there (its line was damaged) follows the entry before it in the file.
    """

    def __init__(self) -> None:
        self.header: SessionHeader | None = None
        self.entries: list[Entry | UnknownEntry] = []
        """All entries but the header, in file order."""
        self.replies: dict[str, Reply] = {}
        """The reply of each finished turn, by query id."""
        self.interrupted: str | None = None
        """The query whose turn has messages and no end: cut short, or still running. None when there is none."""
        self.usage = Usage()
        """What all turns used together, those that were cut short included, as far as it is on record."""
        self.turns = 0
        """How many turns are finished."""
        self.places: dict[str, int] = {}
        """Where each entry stands in `entries`, by its id."""
        self._turn = ""
        self._used_before = Usage()
        """What was used before the turn `_turn` began."""
        self._parents: list[int] = []
        self._messages: tuple[Message, ...] | None = ()

    @classmethod
    def fold(cls, entries: Iterable[Entry | UnknownEntry]) -> Session:
        """Return the session that `entries`, in file order, amount to."""
        session = cls()
        for entry in entries:
            session.apply(entry)
        return session

    @property
    def leaf(self) -> str | None:
        """Id of the last entry, which the next one follows; None in an empty session."""
        return self.entries[-1].id if self.entries else None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The model's context: the messages from the root to the leaf, always in a form that providers accept.

        Neighbours of one role are one message. Each tool call has exactly one result right after it: one that is
        missing says that the process ended, one whose call is missing becomes text.
        """
        if self._messages is None:
            history = _History()
            for entry in self._path():
                if isinstance(entry, MessageEntry):
                    history.add(entry.message)
            self._messages = history.messages()
        return self._messages

    def reply(self, query_id: str) -> Reply | None:
        """Return the reply of the finished turn `query_id`, or None."""
        return self.replies.get(query_id)

    def apply(self, entry: Entry | UnknownEntry) -> None:
        """Take the next entry in."""
        if isinstance(entry, SessionHeader):
            self.header = self.header or entry
            return
        last = len(self.entries) - 1
        parent = -1 if entry.parent_id is None else self.places.get(entry.parent_id, last)
        self._parents.append(parent)
        self.places[entry.id] = last + 1
        self.entries.append(entry)
        # Gathered when asked for: a worker at work asks once in its life, and records all the time.
        self._messages = None
        if isinstance(entry, MessageEntry):
            if entry.turn and entry.turn not in self.replies:
                self.interrupted = entry.turn
            if entry.turn != self._turn:
                self._turn, self._used_before = entry.turn, self.usage
            if entry.usage is not None:
                self.usage += entry.usage
        elif isinstance(entry, TurnEnd):
            self.replies[entry.turn] = entry.reply
            # The reply knows of failed requests too, which no message tells of.
            self.usage = entry.reply.usage + (self._used_before if entry.turn == self._turn else self.usage)
            self.turns += 1
            if self.interrupted == entry.turn:
                self.interrupted = None
        elif isinstance(entry, TurnStart) and self.interrupted == entry.interrupted:
            self.interrupted = None

    def _path(self) -> list[Entry | UnknownEntry]:
        path = []
        place = len(self.entries) - 1
        while place >= 0:  # a parent stands before its child, so this ends
            path.append(self.entries[place])
            place = self._parents[place]
        path.reverse()
        return path


class _History:
    """Makes a conversation that providers accept out of the messages a file holds, one after the other."""

    def __init__(self) -> None:
        self._done: list[Message] = []
        self._run: list[Message] = []
        """The last messages, all of one role: one message in the end."""
        self._calls: list[str] = []
        """Ids of the calls in the last assistant message."""
        self._open: list[str] = []
        """Those of them that have no result yet."""

    def add(self, message: Message) -> None:
        """Take the next message in. One without content says nothing and is left out."""
        if not message.content:
            return
        if message.role == "user":
            message = self._match(message)
        elif self._open:
            self._done += self._tail()
            self._run, self._open = [], []
        if self._run and self._run[0].role != message.role:
            self._done.append(self._joined(self._run))
            self._run = []
        if message.role == "assistant":
            self._calls = [call.id for call in tool_uses(message)]
            self._open = list(self._calls)
            if not self._run and all(earlier.role == "system" for earlier in self._done):
                self._done.append(user(LOST_START))
        self._run.append(message)

    def messages(self) -> tuple[Message, ...]:
        """Return the conversation so far, with a result for each call that has none."""
        return (*self._done, *self._tail())

    def _tail(self) -> list[Message]:
        if not self._open:
            return [self._joined(self._run)] if self._run else []
        lost = Message("user", tuple(ToolResult(id, (Text(LOST_RESULT),), is_error=True) for id in self._open))
        if self._run[0].role == "user":
            return [self._joined([*self._run, lost])]
        return [self._joined(self._run), lost]

    def _match(self, message: Message) -> Message:
        """Return `message` with each result that answers no open call turned into text."""
        if not any(type(block) is ToolResult for block in message.content):
            return message
        blocks: list[Block] = []
        for block in message.content:
            if not isinstance(block, ToolResult):
                blocks.append(block)
            elif block.tool_use_id in self._open:
                self._open.remove(block.tool_use_id)
                blocks.append(block)
            else:
                blocks += [Text(LOST_CALL), *block.content]
        return Message("user", tuple(blocks))

    def _joined(self, run: list[Message]) -> Message:
        """Return `run` as one message. In a user's, results come first, in call order: only so do they answer calls."""
        role = run[0].role
        blocks = [block for message in run for block in message.content]
        if role == "user":
            blocks.sort(key=self._rank)
        return Message(role, tuple(blocks))

    def _rank(self, block: Block) -> int:
        return self._calls.index(block.tool_use_id) if isinstance(block, ToolResult) else len(self._calls)
