"""Write an imported conversation as the session of a new agent."""

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
from orch_protocol.core.errors import ForeignFileError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import text_of
from orch_protocol.session.entries import ArchiveEntry, MessageEntry, SessionHeader, TurnEndEntry, UpgradeEntry
from orch_worker.conversation.framing import is_project, split_first_prompt
from orch_worker.conversation.records.prose import first_request
from orch_worker.session.archived_entries import read_spans, sha256_of
from orch_worker.session.entry_codec import encode_json
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.session_reader import NAME

from ..config.paths import private_dir
from ..tree.agents.state import head_of, iso_time
from .formats.conversation import ForeignEntry, ImportedEntry, ImportedSession

__all__ = ["has_messages", "task_of", "write_entries", "write_session"]

_ID: Final = re.compile(r"(?<![0-9a-f])[a-f][0-9a-f]{11}(?![0-9a-f])")


def has_messages(found: ImportedSession) -> bool:
    """Return whether the conversation contains a non-empty message."""
    return any(isinstance(entry, MessageEntry) and entry.message.content for entry in found.entries)


def task_of(found: ImportedSession) -> str:
    """Return a task for the agent of the imported conversation. The task is the title, or the first prompt.

    Raises ForeignFileError if the conversation is empty.
    """
    if not has_messages(found):
        raise ForeignFileError(f"cannot import {found.name}: it contains no messages")
    messages = (each.message for each in found.entries if isinstance(each, MessageEntry) and not each.deleted)
    texts = (text_of(message) for message in messages if message.role == "user" and not is_project(message))
    begun = first_request(texts) or found.name
    # The whole prompt, because an agent that starts with an empty conversation gets its task again.
    return head_of(found.title) or split_first_prompt(begun)[0].strip() or head_of(begun)


def write_session(folder: Path, agent: str, cwd: str, found: ImportedSession, source: Path) -> None:
    """Write the conversation from the file `source` as the session of `agent`. The folder `folder` is new.

    When this function returns, the session is on disk. Raises StoreError if the session cannot be written; in this case
    the folder is removed.
    """
    private_dir(folder)
    try:
        now = iso_time(time.time())
        header = SessionHeader(id=new_id(), timestamp=now, cwd=cwd, agent=agent, parent_session=str(source))
        log, _ = AppendLog.open(folder / NAME, header=encode_json(header))
        try:
            # Ids of holders are unique in the whole run, so this session needs new ids.
            archived = (entry.collapse.holder for entry in found.entries if isinstance(entry, ArchiveEntry))
            write_entries(log, found, {holder: new_id() for holder in archived})
        finally:
            log.close()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_entries(log: AppendLog, found: ImportedSession, holders: Mapping[str, str]) -> None:
    """Append the entries of `found` to a log that contains only a header. Raises StoreError.

    `holders` maps the old ids of holders to the new ids. The archives in the new file contain the new offsets of their
    messages.
    """
    span_map = _SpanMap(found.spans)
    for entry in found.entries:
        start = log.end
        if holders and isinstance(entry, ArchiveEntry | UpgradeEntry | TurnEndEntry):
            entry = _renamed(entry, holders)
        if isinstance(entry, ArchiveEntry):
            entry = _archived(entry, span_map, log)
        log.append(_encoded(entry))
        span_map.add(entry.id, (start, log.end - start))


class _SpanMap:
    """Converts positions of lines in the source file to positions of the same lines in the new file."""

    def __init__(self, spans: Mapping[str, Span]) -> None:
        self._spans = spans
        self._old: list[int] = []
        self._new: list[Span] = []

    def add(self, id: str, span: Span) -> None:
        """Record the new span of the line that was written last."""
        if id in self._spans:
            self._old.append(self._spans[id][0])
            self._new.append(span)

    def span(self, span: Span) -> list[Span]:
        """Return the new spans of the lines in `span`."""
        first, stop = bisect_left(self._old, span[0]), bisect_left(self._old, span[0] + span[1])
        lines = self._new[first:stop]
        if not lines:
            return []
        cuts = [place for place, (one, other) in enumerate(pairwise(lines), 1) if sum(one) != other[0]]
        runs = [lines[start:end] for start, end in pairwise([0, *cuts, len(lines)])]
        return [(run[0][0], sum(run[-1]) - run[0][0]) for run in runs]


def _archived(entry: ArchiveEntry, span_map: _SpanMap, log: AppendLog) -> ArchiveEntry:
    """Return `entry` with the spans that its lines have in the new file."""
    collapse, record = entry.collapse, dict(entry.collapse.record)
    spans = tuple(each for span in collapse.spans for each in span_map.span(span))
    for name in ("spans", "own"):
        if name in record:
            record[name] = [each for span in record[name] for each in span_map.span((span[0], span[1]))]
    sha256 = sha256_of(read_spans(log.path, spans)) if collapse.sha256 else ""
    if record.get("sha256"):
        record["sha256"] = sha256
    return msgspec.structs.replace(
        entry, collapse=msgspec.structs.replace(collapse, spans=spans, sha256=sha256, record=record)
    )


def _renamed(entry: ArchiveEntry | UpgradeEntry | TurnEndEntry, holders: Mapping[str, str]) -> Any:
    """Return `entry` with the new ids of holders."""
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


def _encoded(entry: ImportedEntry) -> bytes:
    data: Any = entry
    if isinstance(entry, ForeignEntry):
        own = {"type": entry.type, "id": entry.id, "parentId": entry.parent_id, "timestamp": entry.timestamp}
        data = own | {key: value for key, value in entry.fields.items() if key not in own}
    return encode_json(data)
