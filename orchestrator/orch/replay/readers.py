"""Read recordings from session files.

A recording contains the messages up to the leaf, and the usage that was reported for each call.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.core.archives import Collapse, RecordUpgrade
from orch_protocol.core.errors import DamagedError, ForeignFileError, StoreError
from orch_protocol.core.messages import Block, Message, Text, ToolResult, ToolUse, Usage
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

from ..sessions.formats.conversation import ImportedSession, Reading, path_to_leaf
from ..sessions.formats.detect import read_with

__all__ = [
    "ASSUMED_BESIDE",
    "Archived",
    "Change",
    "Compaction",
    "Edited",
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
    seconds, if the time was recorded. `id` is the id of the entry in the session file. The content of a `deleted`
    message was deleted permanently. `model` is the name of the model as `PROVIDER:NAME` or `NAME`, or "".
    """

    message: Message
    input_tokens: int | None = None
    output_tokens: int | None = None
    at: float | None = None
    id: str = ""
    deleted: bool = False
    model: str = ""


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


class Edited(Struct, frozen=True):
    """A change in the recorded session before the message `before`: later requests contain `message` at `place`."""

    before: int
    place: int
    message: Message


Change: TypeAlias = Compaction | Archived | Edited
"""A change that the recorded session made to its own history."""


class Recording(Struct, frozen=True):
    """One recorded conversation.

    `shape` is the format of the file. `ratios` contains the characters per token of the conversation's models.
    `skipped` lists what was left out of the file, or repaired, one line each. Messages without content are not sent.
    """

    name: str
    shape: str
    messages: tuple[Recorded, ...]
    changes: tuple[Change, ...] = ()
    ratios: CharsPerToken = PLAIN
    skipped: tuple[str, ...] = ()

    @property
    def calls(self) -> list[int]:
        """The indexes of messages that a model call returned.

        Each is the first message of a run of assistant messages.
        """
        return [
            place
            for place, each in enumerate(self.messages)
            if each.message.role == "assistant"
            and not each.deleted
            and (not place or self.messages[place - 1].message.role != "assistant")
        ]

    @property
    def model(self) -> str:
        """The model of the most calls, as `PROVIDER:NAME` or `NAME`. "" if no call names its model."""
        names = Counter(name for place in self.calls if (name := self.messages[place].model))
        return max(names, key=names.__getitem__, default="")

    @property
    def has_usage(self) -> bool:
        """Whether the usage of a call was recorded."""
        return any(self.messages[place].input_tokens for place in self.calls)

    def contexts(self) -> Iterator[tuple[int, list[Message]]]:
        """Yield the index of each model call, and the messages in the request of that call.

        The requests reflect the compactions and archives that the session recorded.
        """
        for place, view, _ in self._views():
            yield place, [message for message in view if message.content]

    def context_sizes(self, size: Callable[[Message], float]) -> Iterator[tuple[int, float]]:
        """Yield the index of each model call, and the sum of `size` of the messages in its request."""
        total, counted = 0.0, 0
        for place, view, changed in self._views():
            total, counted = (0.0, 0) if changed else (total, counted)
            total += sum(size(item.message) for item in view.items[counted:] if item.message.content)
            counted = len(view.items)
            yield place, total

    def _views(self) -> Iterator[tuple[int, VisibleMessages[int], bool]]:
        """Yield the index of each model call, the messages before it, and whether some of them were replaced."""
        calls = set(self.calls)
        changes: dict[int, list[Change]] = defaultdict(list)
        for change in self.changes:
            changes[change.before].append(change)
        view: VisibleMessages[int] = VisibleMessages()
        changed = False
        for place, each in enumerate(self.messages):
            for change in changes.get(place, ()):
                _apply(view, change)
                changed = True
            if place in calls:
                yield place, view, changed
                changed = False
            view.add(each.id or f"#{place}", each.message, place)


def _apply(view: VisibleMessages[int], change: Change) -> None:
    if isinstance(change, Compaction):
        stop = next((at for at, item in enumerate(view.items) if item.note >= change.kept), len(view.items))
        view.compact(change.summary, stop, f"#{change.before}", lambda _: -1)
    elif isinstance(change, Edited):
        for at, item in enumerate(view.items):
            if item.note == change.place:
                view.items[at] = msgspec.structs.replace(item, message=change.message)
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
        self._summed: tuple[Sequence[Message], int, int] = ((), 0, 0)
        """The last messages of `sizes`, how many they were, and their sum."""

    def size(self, message: Message) -> int:
        """Return the estimated number of tokens of `message`."""
        known = self._sizes.get(id(message))
        if known is None or known[0] is not message:
            known = self._sizes[id(message)] = (message, self.estimator.message(message))
        return known[1]

    def sizes(self, messages: Iterable[Message]) -> int:
        """Return the estimated number of tokens of all `messages` together.

        This is quick for a list to which messages were only appended since the last call.
        """
        if not isinstance(messages, list):
            return sum(map(self.size, messages))
        before, count, total = self._summed
        count, total = (count, total) if messages is before else (0, 0)
        total += sum(map(self.size, islice(messages, count, None)))
        self._summed = (messages, len(messages), total)
        return total


def scale_of(recording: Recording, beside: int | None = None) -> Scale:
    """Return the scale that matches the usage reported in `recording`. Without reports, return the default scale.

    `beside` overrides the number of tokens of the system prompt and the tools. This number includes the tokens of a
    system message.
    """
    estimator = TokenEstimator(recording.ratios)
    reported: list[tuple[float, int]] = []
    for place, raw in recording.context_sizes(estimator.raw):
        tokens = recording.messages[place].input_tokens
        if tokens:
            estimator.observe(raw, tokens)
            reported.append((raw, tokens))
    if beside is None and reported:
        raw, tokens = reported[0]
        beside = max(0, round(tokens - raw * estimator.factor))
    elif beside is None:
        system = [each.message for each in recording.messages if each.message.role == "system"]
        beside = max(0, ASSUMED_BESIDE - estimator.messages(system))
    return Scale(estimator, beside, len(reported) > 1)


LOST: Final = "No result: it was interrupted."


def read_recordings(path: Path) -> list[Recording]:
    """Return the conversations recorded in the file at `path`. The format of the file is detected.

    Damaged parts are left out; `Recording.skipped` lists them. Raises ForeignFileError for an unknown format,
    DamagedError if no reply of the assistant is readable, and StoreError if the file cannot be read.
    """
    reading = Reading(path, repair=True, limit=None)
    found: list[Recording] = []
    listed = 0
    conversations = read_with(reading)
    for each in conversations:
        recording = _whole_calls(_recording(each))
        if not recording.calls:
            continue
        # The list of repairs belongs to the file. It grows with each conversation.
        skipped = (*each.repairs[listed:], *recording.skipped)
        listed = len(each.repairs)
        found.append(msgspec.structs.replace(recording, skipped=skipped))
    if not found:
        why = f" ({reading.repairs[0]})" if reading.repairs else ""
        is_damaged = why and any(each.entries for each in conversations)
        raise (DamagedError if is_damaged else ForeignFileError)(
            f"{path} contains no conversation with an assistant message{why}"
        )
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
        elif (edited := found.edits.get(entry.id)) is not None:
            changes.append(Edited(len(messages), places[edited.id], edited.message))
    gone = sum(each.deleted for each in messages)
    skipped = (f"{gone} messages were deleted permanently",) if gone else ()
    return Recording(found.name, found.shape, tuple(messages), tuple(changes), found.ratios, skipped)


def _recorded(entry: AnyMessageEntry) -> Recorded:
    if not isinstance(entry, MessageEntry):
        return Recorded(entry.message, at=_seconds(entry.timestamp), id=entry.id)
    reported = entry.usage or (entry.origin.usage if entry.origin else None)
    usage = reported if reported is not None and entry.message.role == "assistant" else Usage()
    given = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    at, deleted = _seconds(entry.timestamp), bool(entry.deleted)
    model = entry.model
    if not model and entry.origin is not None:
        model = ":".join(filter(None, (entry.origin.provider, entry.origin.model)))
    return Recorded(entry.message, given or None, usage.output_tokens or None, at, entry.id, deleted, model)


def _seconds(timestamp: str) -> float | None:
    at = datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
    return at if at > 0 else None


def _whole_calls(recording: Recording) -> Recording:
    """Return `recording` with one result for each call and one call for each result, as providers demand.

    A call without a result gets one, unless it is at the end. A result without a call is left out, and a copy of a call
    that has no result yet.
    """
    found: list[Recorded] = []
    moved: list[int] = []
    open_calls: list[str] = []
    lost_results = copies = 0
    last_result = {
        block.tool_use_id: place
        for place, each in enumerate(recording.messages)
        for block in each.message.content
        if isinstance(block, ToolResult)
    }
    for place, each in enumerate((*recording.messages, None)):
        kept: list[Block] = []
        results: list[str] = []
        calls: list[str] = []
        for block in each.message.content if each else ():
            if isinstance(block, ToolResult):
                if block.tool_use_id not in open_calls or block.tool_use_id in results:
                    lost_results += 1
                    continue
                results.append(block.tool_use_id)
            elif isinstance(block, ToolUse) and block.id in (*open_calls, *calls):
                copies += 1
                continue
            elif isinstance(block, ToolUse):
                calls.append(block.id)
            kept.append(block)
        # The results of one reply can be several messages, and a reply can be several messages before its results.
        is_reply = each is not None and each.message.role == "assistant"
        lost = [id for id in open_calls if kept and not results and (not is_reply or last_result.get(id, -1) < place)]
        if lost:
            found.append(Recorded(Message("user", tuple(ToolResult(id, (Text(LOST),), is_error=True) for id in lost))))
        results += lost
        open_calls = [id for id in open_calls if id not in results]
        if each is not None:
            open_calls += calls
            moved.append(len(found))
            whole = len(kept) == len(each.message.content)
            found.append(
                each if whole else msgspec.structs.replace(each, message=Message(each.message.role, tuple(kept)))
            )
    moved.append(len(found))
    changes = tuple(_moved(change, moved) for change in recording.changes)
    skipped = (
        *recording.skipped,
        *((f"{lost_results} results without a call are left out",) if lost_results else ()),
        *((f"{copies} repeated calls are left out",) if copies else ()),
    )
    return msgspec.structs.replace(recording, messages=tuple(found), changes=changes, skipped=skipped)


def _moved(change: Change, moved: Sequence[int]) -> Change:
    before = moved[change.before]
    if isinstance(change, Compaction):
        return Compaction(before, moved[change.kept], change.summary)
    if isinstance(change, Edited):
        return Edited(before, moved[change.place], change.message)
    return Archived(before, change.change)
