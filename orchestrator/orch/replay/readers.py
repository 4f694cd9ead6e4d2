"""Read recordings from session files.

A recording contains the messages up to the leaf, and the usage that was reported for each call.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.core.archives import Collapse, RecordUpgrade
from orch_protocol.core.errors import DamagedError, ForeignFileError, StoreError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, Usage
from orch_protocol.session.entries import (
    AnyMessageEntry,
    ArchiveEntry,
    BranchSummary,
    CompactionEntry,
    CustomMessage,
    MessageEntry,
    UpgradeEntry,
)
from orch_worker.conversation.tokens import PLAIN, CharsPerToken, TokenEstimator
from orch_worker.session.visible_messages import VisibleMessages

from ..sessions.formats.conversation import ImportedSession, path_to_leaf
from ..sessions.formats.detect import read_file

__all__ = [
    "ASSUMED_BESIDE",
    "Archived",
    "Change",
    "Compaction",
    "Recorded",
    "Recording",
    "Scale",
    "read_recordings",
    "scale_of",
]


# A recorded session as data.

ASSUMED_BESIDE: Final = 12_000


class Recorded(Struct, frozen=True):
    """A recorded message.

    For a message of the assistant, `input_tokens` and `output_tokens` are the reported usage. `at` is the time in
    seconds, if the time was recorded. `id` is the id of the entry in the session file.
    """

    message: Message
    input_tokens: int | None = None
    output_tokens: int | None = None
    at: float | None = None
    id: str = ""


class Compaction(Struct, frozen=True):
    """A compaction in the recorded session.

    The compaction happened before the message `before`. `summary` replaced the messages before `kept`.
    """

    before: int
    kept: int
    summary: str


class Archived(Struct, frozen=True):
    """A change in the recorded session before the message `before`. A part was archived, or a record was upgraded."""

    before: int
    change: Collapse | RecordUpgrade


Change: TypeAlias = Compaction | Archived
"""A change that the recorded session made to its own history."""


class Recording(Struct, frozen=True):
    """One recorded conversation.

    `shape` is the format of the file. `ratios` contains the characters per token of the conversation's models.
    """

    name: str
    shape: str
    messages: tuple[Recorded, ...]
    changes: tuple[Change, ...] = ()
    ratios: CharsPerToken = PLAIN

    @property
    def calls(self) -> list[int]:
        """The indexes of messages that a model call returned.

        Each is the first message of a run of assistant messages.
        """
        return [
            place
            for place, each in enumerate(self.messages)
            if each.message.role == "assistant" and (not place or self.messages[place - 1].message.role != "assistant")
        ]

    def contexts(self) -> list[tuple[int, list[Message]]]:
        """Return the index of each model call, and the messages in the request of that call.

        The requests reflect the compactions and archives that the session recorded.
        """
        found: list[tuple[int, list[Message]]] = []
        calls = set(self.calls)
        changes: dict[int, list[Change]] = defaultdict(list)
        for change in self.changes:
            changes[change.before].append(change)
        view: VisibleMessages[int] = VisibleMessages()
        for place, each in enumerate(self.messages):
            for change in changes.get(place, ()):
                _apply(view, change)
            if place in calls:
                found.append((place, [message for message in view if message.content]))
            view.add(each.id or f"#{place}", each.message, place)
        return found


def _apply(view: VisibleMessages[int], change: Change) -> None:
    if isinstance(change, Compaction):
        stop = next((at for at, item in enumerate(view.items) if item.note >= change.kept), len(view.items))
        view.compact(change.summary, stop, f"#{change.before}", lambda _: -1)
    elif isinstance(change.change, Collapse):
        with contextlib.suppress(StoreError):  # as in the session, a part that is no longer visible cannot be archived
            start, _ = view.part(change.change.first, change.change.last)
            view.collapse(change.change, view.items[start].note)
    else:
        view.upgrade(change.change)


class Scale:
    """Estimates the number of tokens of the messages in a recording.

    `beside` is the number of tokens that each request contains in addition to its messages. The estimator and `beside`
    are derived from the usage that the recording reports. `measured` is True if the recording reports the usage of
    several calls.
    """

    def __init__(self, estimator: TokenEstimator, beside: int, measured: bool) -> None:
        self.estimator = estimator
        self.beside = beside
        self.measured = measured
        self._sizes: dict[int, tuple[Message, int]] = {}

    def size(self, message: Message) -> int:
        """Return the estimated number of tokens of `message`."""
        known = self._sizes.get(id(message))
        if known is None or known[0] is not message:
            known = self._sizes[id(message)] = (message, self.estimator.message(message))
        return known[1]

    def sizes(self, messages: Iterable[Message]) -> int:
        """Return the estimated number of tokens of all `messages` together."""
        return sum(map(self.size, messages))


def scale_of(recording: Recording, beside: int | None = None) -> Scale:
    """Return the scale that matches the usage reported in `recording`. Without reports, return the default scale.

    `beside` overrides the number of tokens of the system prompt and the tools. This number includes the tokens of a
    system message.
    """
    estimator = TokenEstimator(recording.ratios)
    sizes = {id(each.message): estimator.raw(each.message) for each in recording.messages}
    reported: list[tuple[float, int]] = []
    for place, context in recording.contexts():
        tokens = recording.messages[place].input_tokens
        if tokens:
            raw = sum(sizes.get(id(message)) or estimator.raw(message) for message in context)
            estimator.observe(raw, tokens)
            reported.append((raw, tokens))
    if beside is None and reported:
        raw, tokens = reported[0]
        beside = max(0, round(tokens - raw * estimator.factor))
    elif beside is None:
        system = [each.message for each in recording.messages if each.message.role == "system"]
        beside = max(0, ASSUMED_BESIDE - estimator.messages(system))
    return Scale(estimator, beside, len(reported) > 1)


NOT_WHOLE: Final = "An incomplete recording cannot be measured"
LOST: Final = "No result: it was interrupted."


def read_recordings(path: Path) -> list[Recording]:
    """Return the conversations recorded in the file at `path`. The format of the file is detected.

    Raises ForeignFileError for an unknown format, DamagedError for an unreadable line or deleted messages, and
    StoreError if the file cannot be read.
    """
    conversations = read_file(path)
    for each in conversations:
        if each.repairs:
            raise DamagedError(f"{path}: {each.repairs[0]}. {NOT_WHOLE}")
        if gone := sum(isinstance(entry, MessageEntry) and bool(entry.deleted) for entry in path_to_leaf(each)):
            raise DamagedError(f"{path}: {gone} messages were deleted permanently. {NOT_WHOLE}")
    recordings = map(_recording, conversations)
    found = [_whole_calls(recording) for recording in recordings if recording.calls]
    if not found:
        raise ForeignFileError(f"{path} contains no conversation with an assistant message")
    return found


def _recording(found: ImportedSession) -> Recording:
    messages: list[Recorded] = []
    changes: list[Change] = []
    places: dict[str, int] = {}
    for entry in path_to_leaf(found):
        places[entry.id] = len(messages)
        if isinstance(entry, (MessageEntry, CustomMessage, BranchSummary)):
            messages.append(_recorded(entry))
        elif isinstance(entry, CompactionEntry):
            kept = places[entry.first_kept_entry_id]
            changes.append(Compaction(len(messages), kept, entry.summary))
        elif isinstance(entry, (ArchiveEntry, UpgradeEntry)):
            change = entry.collapse if isinstance(entry, ArchiveEntry) else entry.upgrade
            changes.append(Archived(len(messages), change))
    return Recording(found.name, found.shape, tuple(messages), tuple(changes), found.ratios)


def _recorded(entry: AnyMessageEntry) -> Recorded:
    if not isinstance(entry, MessageEntry):
        return Recorded(entry.message, at=_seconds(entry.timestamp), id=entry.id)
    reported = entry.usage or (entry.origin.usage if entry.origin else None)
    usage = reported if reported is not None and entry.message.role == "assistant" else Usage()
    given = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return Recorded(entry.message, given or None, usage.output_tokens or None, _seconds(entry.timestamp), entry.id)


def _seconds(timestamp: str) -> float | None:
    at = datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
    return at if at > 0 else None


def _whole_calls(recording: Recording) -> Recording:
    """Return `recording` with a result for each interrupted call, because providers reject calls without a result."""
    found: list[Recorded] = []
    moved: list[int] = []
    open_calls: list[str] = []
    for each in (*recording.messages, None):
        results = [block.tool_use_id for block in each.message.content if isinstance(block, ToolResult)] if each else []
        if open_calls and not results and not (each and each.message.role == "assistant"):
            if each is not None:
                lost = tuple(ToolResult(id, (Text(LOST),), is_error=True) for id in open_calls)
                found.append(Recorded(Message("user", lost)))
            open_calls = []
        open_calls = [id for id in open_calls if id not in results]
        if each is not None:
            open_calls += [block.id for block in each.message.content if isinstance(block, ToolUse)]
            moved.append(len(found))
            found.append(each)
    moved.append(len(found))
    changes = tuple(_moved(change, moved) for change in recording.changes)
    return msgspec.structs.replace(recording, messages=tuple(found), changes=changes)


def _moved(change: Change, moved: Sequence[int]) -> Change:
    before = moved[change.before]
    if isinstance(change, Compaction):
        return Compaction(before, moved[change.kept], change.summary)
    return Archived(before, change.change)
