"""A conversation as some file holds it, and what there is to say about the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.core.archives import Span
from orch_protocol.core.errors import DamagedError, ForeignFileError
from orch_protocol.core.messages import Message, Thinking, ToolResult, ToolUse
from orch_protocol.session.entries import (
    ArchiveEntry,
    Checkout,
    CompactionEntry,
    Custom,
    Label,
    MarksEntry,
    ModelChange,
    PhaseEntry,
    PlanApproved,
    SessionInfo,
    TasksEntry,
    Telling,
    ThinkingLevelChange,
    TurnEndEntry,
    TurnStartEntry,
    UpgradeEntry,
)
from orch_worker.conversation.tokens import PLAIN, CharsPerToken

__all__ = ["DECODE_ERRORS", "SHAPE_ERRORS", "ImportedSession", "Kept", "Reading", "Told", "fitting", "path_of"]

DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError)
SHAPE_ERRORS: Final = (*DECODE_ERRORS, KeyError, TypeError, ValueError, AttributeError)
MOST_SAID: Final = 20
EXPECTED: Final = (
    "expected a session of ours or pi's, rows with a message each, or plain messages, as JSON or JSON lines"
)


def fitting(message: Message) -> Message:
    """Return `message`. Raises ValueError when something is in it that its role does not say."""
    for block in message.content:
        if isinstance(block, ToolResult) and message.role != "user":
            raise ValueError(f"the result of a call is in the user's message behind it, not in the {message.role}'s")
        if isinstance(block, ToolUse | Thinking) and message.role != "assistant":
            raise ValueError(f"calls and thinking are in an assistant's message, not in the {message.role}'s")
    return message


class Kept(Struct, frozen=True):
    """An entry of a type of its own: kept as it is, with its place in the tree."""

    id: str
    parent_id: str | None
    timestamp: str
    type: str
    fields: dict[str, Any]


Told: TypeAlias = (
    Telling
    | CompactionEntry
    | TurnStartEntry
    | TurnEndEntry
    | ArchiveEntry
    | UpgradeEntry
    | PlanApproved
    | TasksEntry
    | MarksEntry
    | PhaseEntry
    | Checkout
    | Label
    | Custom
    | SessionInfo
    | ModelChange
    | ThinkingLevelChange
    | Kept
)


class ImportedSession(Struct, frozen=True):
    """A conversation. Entries follow their parents; the last one is where it goes on.

    `ratios` are those of the models it was made with; `repairs` say what was damaged and how that was set
    right, `notes` what else is not as it was. `below` are conversations of agents that this one had started. Of a file
    of ours, `spans` are where the entries' lines stand in it.
    """

    name: str
    shape: str
    entries: tuple[Told, ...]
    title: str = ""
    cwd: str = ""
    ratios: CharsPerToken = PLAIN
    repairs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    below: tuple[ImportedSession, ...] = ()
    spans: dict[str, Span] = {}


class Reading:
    """What is found out about the file at `path` while it is read. With `repair`, damage is set right where it can be;
    without, it is an error."""

    def __init__(self, path: Path, *, repair: bool = False) -> None:
        self.path = path
        self.repair = repair
        self._repairs: list[str] = []
        self._more = 0

    @property
    def repairs(self) -> tuple[str, ...]:
        """What was set right, in order."""
        more = (f"and {self._more} more such places",) if self._more else ()
        return (*self._repairs, *more)

    def mended(self, what: str) -> None:
        """Report what was set right, and how."""
        if len(self._repairs) < MOST_SAID:
            self._repairs.append(what)
        else:
            self._more += 1

    def fault(self, line: int, what: str, mended: str) -> None:
        """Report that `what` is wrong in a line, `mended` being what is done about it. Raises DamagedError if nothing
        is to be done."""
        if not self.repair:
            raise DamagedError(
                f"{self.path} line {line} {what}. Mend the line; or import the file with --repair (repair=True), "
                f"and {mended}"
            )
        self.mended(f"line {line} {what}: {mended}")

    def foreign(self, why: str = EXPECTED) -> ForeignFileError:
        """Return the error that the file is none that can be read."""
        return ForeignFileError(f"{self.path} is no recording that can be read: {why}")


def path_of(found: ImportedSession) -> list[Told]:
    """Return the entries from the root to the last one."""
    by_id = {entry.id: entry for entry in found.entries}
    path: list[Told] = []
    at = found.entries[-1].id if found.entries else None
    while at is not None:
        path.append(by_id[at])
        at = path[-1].parent_id
    return path[::-1]
