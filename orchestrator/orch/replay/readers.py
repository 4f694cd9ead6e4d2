"""Recorded sessions as recordings: what was said on the way to the last entry, and what each call took."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.entries import (
    ArchiveEntry,
    BranchSummary,
    CompactionEntry,
    CustomMessage,
    MessageEntry,
    Telling,
    UpgradeEntry,
)
from orch_protocol.errors import DamagedError, ForeignFileError
from orch_protocol.messages import Message, Text, ToolResult, ToolUse, Usage

from ..exchange.found import Found, path_of
from ..exchange.reading import read_file
from .recording import Archived, Change, Compaction, Recorded, Recording

__all__ = ["read_recordings"]

NOT_WHOLE: Final = "A recording that is not whole measures nothing"
LOST: Final = "No result: it was interrupted."


def read_recordings(path: Path) -> list[Recording]:
    """Return the conversations recorded in the file at `path`; its shape is found out.

    Raises ForeignFileError when it is none of the shapes known, DamagedError naming the line that cannot be read, or
    when messages were deleted, StoreError when the file cannot.
    """
    conversations = read_file(path)
    for each in conversations:
        if each.repairs:
            raise DamagedError(f"{path}: {each.repairs[0]}. {NOT_WHOLE}")
        if gone := sum(isinstance(entry, MessageEntry) and bool(entry.deleted) for entry in path_of(each)):
            raise DamagedError(f"{path}: {gone} of its messages were deleted for good. {NOT_WHOLE}")
    recordings = map(_recording, conversations)
    found = [_whole_calls(recording) for recording in recordings if recording.calls]
    if not found:
        raise ForeignFileError(f"{path} holds no conversation with an assistant's message in it")
    return found


def _recording(found: Found) -> Recording:
    messages: list[Recorded] = []
    changes: list[Change] = []
    places: dict[str, int] = {}
    for entry in path_of(found):
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


def _recorded(entry: Telling) -> Recorded:
    if not isinstance(entry, MessageEntry):
        return Recorded(entry.message, at=_seconds(entry.timestamp), id=entry.id)
    told = entry.usage or (entry.origin.usage if entry.origin else None)
    usage = told if told is not None and entry.message.role == "assistant" else Usage()
    given = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return Recorded(entry.message, given or None, usage.output_tokens or None, _seconds(entry.timestamp), entry.id)


def _seconds(timestamp: str) -> float | None:
    at = datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
    return at if at > 0 else None


def _whole_calls(recording: Recording) -> Recording:
    """Return `recording` with a result for each call that was cut off: no provider takes a request without."""
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
