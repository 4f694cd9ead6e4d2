"""An imported conversation, and a record of the repairs that were made when it was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.core.archives import Span
from orch_protocol.core.errors import DamagedError, ForeignFileError
from orch_protocol.core.messages import Message, Thinking, ToolResult, ToolUse
from orch_protocol.session.entries import ConversationEntry, CustomMessage, MessageEntry
from orch_worker.conversation.tokens import PLAIN, CharsPerToken
from orch_worker.session.entry_codec import DECODE_ERRORS

__all__ = [
    "EXPECTED",
    "SHAPE_ERRORS",
    "ForeignEntry",
    "ImportedEntry",
    "ImportedSession",
    "Reading",
    "check_blocks",
    "path_to_leaf",
    "with_edits",
]

SHAPE_ERRORS: Final = (*DECODE_ERRORS, KeyError, TypeError, ValueError, AttributeError)
MAX_LISTED_REPAIRS: Final = 20
EXPECTED: Final = (
    "expected a session of orch or pi, rows with one message each, or plain messages, as JSON or JSON Lines"
)


def check_blocks(message: Message) -> Message:
    """Return `message` unchanged. Raises ValueError if `message` contains a block that its role does not allow."""
    for block in message.content:
        if isinstance(block, ToolResult) and message.role != "user":
            raise ValueError(
                f"a tool result must be in the user message after the call; got a message with the role {message.role}"
            )
        if isinstance(block, ToolUse | Thinking) and message.role != "assistant":
            raise ValueError(
                f"calls and thinking must be in an assistant message, not in a message with the role {message.role}"
            )
    return message


class ForeignEntry(Struct, frozen=True):
    """An entry of an unknown type. The entry is kept unchanged at its position in the tree."""

    id: str
    parent_id: str | None
    timestamp: str
    type: str
    fields: dict[str, Any]


ImportedEntry: TypeAlias = ConversationEntry | ForeignEntry


class ImportedSession(Struct, frozen=True):
    """An imported conversation. Each entry comes after its parent; the last entry is the leaf.

    `ratios` contains the characters per token of the conversation's models. `repairs` lists repaired damage, and
    `notes` lists other differences from the file. `subagents` contains the conversations of subagents. For a session
    file of orch, `spans` contains the byte ranges of the entries' lines. `edits` contains the changes that later
    entries made to the context: by the id of the later entry, the new version of an earlier entry. `entries` contains
    the original version.
    """

    name: str
    shape: str
    entries: tuple[ImportedEntry, ...]
    title: str = ""
    cwd: str = ""
    ratios: CharsPerToken = PLAIN
    repairs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    subagents: tuple[ImportedSession, ...] = ()
    spans: dict[str, Span] = {}
    edits: dict[str, MessageEntry | CustomMessage] = {}


class Reading:
    """The state while the file at `path` is read.

    If `repair` is True, damage is repaired if possible. If `repair` is False, damage is an error. `repairs` lists at
    most `limit` places; None means all. If `subagent_files` is False, the files of subagents beside the file are not
    read.
    """

    def __init__(
        self,
        path: Path,
        *,
        repair: bool = False,
        limit: int | None = MAX_LISTED_REPAIRS,
        subagent_files: bool = True,
    ) -> None:
        self.path = path
        self.repair = repair
        self.subagent_files = subagent_files
        self._limit = limit
        self._repairs: list[str] = []
        self._more = 0

    @property
    def repairs(self) -> tuple[str, ...]:
        """The repairs so far, in order."""
        more = (f"and {self._more} more such places",) if self._more else ()
        return (*self._repairs, *more)

    @property
    def repair_count(self) -> int:
        """The number of repairs so far, with those that are not listed."""
        return len(self._repairs) + self._more

    def add_repair(self, what: str) -> None:
        """Record a repair."""
        if self._limit is None or len(self._repairs) < self._limit:
            self._repairs.append(what)
        else:
            self._more += 1

    def handle_fault(self, line: int, what: str, repair: str) -> None:
        """Record the problem `what` in a line, and how the reader repaired it.

        If `repair` is False, raise DamagedError.
        """
        if not self.repair:
            raise DamagedError(
                f"{self.path} line {line} {what}. Correct the line, or import the file with --repair (repair=True); "
                f"then {repair}"
            )
        self.add_repair(f"line {line} {what}: {repair}")

    def foreign_error(self, why: str = EXPECTED) -> ForeignFileError:
        """Return the error for a file whose format is unknown."""
        return ForeignFileError(f"{self.path} is not a readable recording: {why}")


def with_edits(found: ImportedSession) -> ImportedSession:
    """Return the conversation with the edits on the path to the leaf. The last edit of an entry counts.

    The original content of edited entries is left out.
    """
    edits = (found.edits[entry.id] for entry in path_to_leaf(found) if entry.id in found.edits)
    edited = {entry.id: entry for entry in edits}
    if not edited:
        return found
    entries = tuple(edited.get(entry.id, entry) for entry in found.entries)
    note = f"messages that later edits changed or removed: {len(edited)}"
    return msgspec.structs.replace(found, entries=entries, edits={}, notes=(*found.notes, note))


def path_to_leaf(found: ImportedSession) -> list[ImportedEntry]:
    """Return the entries from the root to the leaf."""
    by_id = {entry.id: entry for entry in found.entries}
    path: list[ImportedEntry] = []
    at = found.entries[-1].id if found.entries else None
    while at is not None:
        path.append(by_id[at])
        at = path[-1].parent_id
    return path[::-1]
