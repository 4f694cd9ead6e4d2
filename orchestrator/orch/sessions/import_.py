"""A conversation that was read becomes the session of an agent of its own."""

from __future__ import annotations

import re
import shutil
import time
from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.archives import Span
from orch_protocol.core.errors import ForeignFileError, StoreError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import text_of
from orch_protocol.core.text import scrub
from orch_protocol.session.entries import ArchiveEntry, MessageEntry, SessionHeader, TurnEndEntry, UpgradeEntry
from orch_worker.conversation.framing import is_project, split_first_prompt
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log_reader import read_spans, sha256_of
from orch_worker.session.transcript import NAME

from ..config.paths import private_dir
from ..tree.agents.state import head_of, iso_time
from .formats.conversation import SHAPE_ERRORS, ImportedSession, Kept, Told

__all__ = ["has_messages", "plant", "task_of", "write_entries"]

_ID: Final = re.compile(r"(?<![0-9a-f])[a-f][0-9a-f]{11}(?![0-9a-f])")


def has_messages(found: ImportedSession) -> bool:
    """Whether anything was said in the conversation."""
    return any(isinstance(entry, MessageEntry) and entry.message.content for entry in found.entries)


def task_of(found: ImportedSession) -> str:
    """Return what the conversation is about: its name, the task that it was begun with, else how it begins.

    Raises ForeignFileError for an empty one.
    """
    if not has_messages(found):
        raise ForeignFileError(f"cannot import {found.name}: it contains no messages")
    messages = (each.message for each in found.entries if isinstance(each, MessageEntry) and not each.deleted)
    said = (text_of(message) for message in messages if message.role == "user" and not is_project(message))
    begun = next((text for text in said if text.strip()), found.name)
    # Whole: an agent that begins anew is told it again.
    return head_of(found.title) or split_first_prompt(begun)[0].strip() or head_of(begun)


def plant(folder: Path, agent: str, cwd: str, found: ImportedSession, source: Path) -> None:
    """Write the session of `agent`, in the new folder `folder`, so that it holds the conversation from the file
    `source`. It is on the disk when this returns.

    Raises StoreError when it cannot be written; then there is no folder.
    """
    private_dir(folder)
    try:
        now = iso_time(time.time())
        header = SessionHeader(id=new_id(), timestamp=now, cwd=cwd, agent=agent, parent_session=str(source))
        log, _ = AppendLog.open(folder / NAME, header=_encoded(header))
        try:
            # Holders are known by their ids to the whole run: those of this session need their own.
            archived = (entry.collapse.holder for entry in found.entries if isinstance(entry, ArchiveEntry))
            write_entries(log, found, {holder: new_id() for holder in archived})
        finally:
            log.close()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_entries(log: AppendLog, found: ImportedSession, holders: Mapping[str, str]) -> None:
    """Append the entries of `found` to a log that has a header alone; `holders` go by other ids from now on.

    Archives are found where their lines stand now. Raises StoreError.
    """
    moved = _Moved(found.spans)
    for entry in found.entries:
        start = log.end
        if holders and isinstance(entry, ArchiveEntry | UpgradeEntry | TurnEndEntry):
            entry = _renamed(entry, holders)
        if isinstance(entry, ArchiveEntry):
            entry = _archived(entry, moved, log)
        log.append(_encoded(entry))
        moved.add(entry.id, (start, log.end - start))


class _Moved:
    """Where lines stand now that stood elsewhere in the file they are from."""

    def __init__(self, spans: Mapping[str, Span]) -> None:
        self._spans = spans
        self._old: list[int] = []
        self._new: list[Span] = []

    def add(self, id: str, span: Span) -> None:
        """Know of the next line."""
        if id in self._spans:
            self._old.append(self._spans[id][0])
            self._new.append(span)

    def span(self, span: Span) -> list[Span]:
        """Return where the lines on `span` stand now."""
        first, stop = bisect_left(self._old, span[0]), bisect_left(self._old, span[0] + span[1])
        lines = self._new[first:stop]
        if not lines:
            return []
        cuts = [place for place, (one, other) in enumerate(pairwise(lines), 1) if sum(one) != other[0]]
        runs = [lines[start:end] for start, end in pairwise([0, *cuts, len(lines)])]
        return [(run[0][0], sum(run[-1]) - run[0][0]) for run in runs]


def _archived(entry: ArchiveEntry, moved: _Moved, log: AppendLog) -> ArchiveEntry:
    """Return `entry` with the places where its lines stand now."""
    collapse, record = entry.collapse, dict(entry.collapse.record)
    spans = tuple(each for span in collapse.spans for each in moved.span(span))
    for name in ("spans", "own"):
        if name in record:
            record[name] = [each for span in record[name] for each in moved.span((span[0], span[1]))]
    sha256 = sha256_of(read_spans(log.path, spans)) if collapse.sha256 else ""
    if record.get("sha256"):
        record["sha256"] = sha256
    return msgspec.structs.replace(
        entry, collapse=msgspec.structs.replace(collapse, spans=spans, sha256=sha256, record=record)
    )


def _renamed(entry: ArchiveEntry | UpgradeEntry | TurnEndEntry, holders: Mapping[str, str]) -> Any:
    """Return `entry` with the ids of holders exchanged, wherever it names one."""
    if isinstance(entry, TurnEndEntry):
        known = holders.get(entry.reply.archived_to or "")
        return msgspec.structs.replace(entry, reply=msgspec.structs.replace(entry.reply, archived_to=known))
    return msgspec.convert(_exchanged(msgspec.to_builtins(entry), holders), type(entry))


def _exchanged(value: Any, holders: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _ID.sub(lambda found: holders.get(found[0], found[0]), value)
    if isinstance(value, dict):
        return {key: _exchanged(item, holders) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exchanged(item, holders) for item in value]
    return value


def _encoded(entry: Told | SessionHeader) -> bytes:
    data: Any = entry
    if isinstance(entry, Kept):
        own = {"type": entry.type, "id": entry.id, "parentId": entry.parent_id, "timestamp": entry.timestamp}
        data = own | {key: value for key, value in entry.fields.items() if key not in own}
    try:
        try:
            return msgspec.json.encode(data)
        except UnicodeEncodeError:
            return msgspec.json.encode(scrub(msgspec.to_builtins(data)))
    except SHAPE_ERRORS as error:
        raise StoreError(f"cannot record a {type(entry).__name__}: {error}") from error
