"""Read session files of orch. Each line is checked. The result includes archived messages."""

from __future__ import annotations

import msgspec

from orch_protocol.core.archives import Span
from orch_protocol.session.entries import SESSION_VERSION, MessageEntry, SessionHeader, SessionInfo
from orch_worker.session.entry_codec import DECODE_ERRORS, ENTRY_PREFIXES, HEADER_PREFIX, read_entry
from orch_worker.session.log.log_reader import other_version, scan_lines
from orch_worker.session.log.record_format import unseal_line

from .conversation import ForeignEntry, ImportedEntry, ImportedSession, Reading, check_blocks
from .json_lines import lines_of
from .pi import UNREADABLE
from .tree_builder import EntryLink, build_tree

__all__ = ["is_orch_line", "is_orch_session", "read_orch_session"]


def is_orch_session(line: bytes) -> bool:
    """Return whether `line` is the first line of a session file of orch."""
    return line.startswith(HEADER_PREFIX) and unseal_line(line) is not None


def is_orch_line(line: bytes) -> bool:
    """Return whether `line` is the first line or an entry of a session file of orch."""
    return is_orch_session(line) or (line.startswith(ENTRY_PREFIXES) and unseal_line(line) is not None)


def read_orch_session(data: bytes, reading: Reading) -> ImportedSession:
    """Return the conversation in a session file of orch. Raises DamagedError, ForeignFileError."""
    lines = lines_of(data)
    header: SessionHeader | None = None
    found: list[tuple[int, ImportedEntry, Span]] = []
    complete_count = 0
    checked = scan_lines(text + b"\n" for _, text in lines)
    for (number, _), line in zip(lines, checked, strict=True):
        sealed = line.sealed
        if sealed is None:
            if 1 < line.number == len(lines) and not data.endswith(b"\n"):
                reading.add_repair(f"line {number} is the beginning of a line that was never finished: left out")
            else:
                reading.handle_fault(number, line.remark, "it is left out")
            continue
        if line.remark:
            reading.handle_fault(number, line.remark, "the file is read up to there")
        entry = _entry(sealed.object, number, reading)
        if isinstance(entry, SessionHeader):
            header = header or entry
        elif entry is not None:
            found.append((number, entry, (line.offset, len(line.data))))
        if not sealed.more:
            complete_count = len(found)
    if complete_count < len(found):
        reading.add_repair(f"line {found[complete_count][0]} begins a write that did not finish; it is left out")
    del found[complete_count:]
    if header is None and not found:
        raise reading.foreign_error("no line belongs to an orch session")
    if header is None:
        reading.handle_fault(
            lines[0][0], "should be the header, but is not a header", "the file is read without a header"
        )
    elif header.version != SESSION_VERSION:
        raise reading.foreign_error(f"it {other_version(header.version, SESSION_VERSION)}")
    places, _ = build_tree([EntryLink(number, entry.id, entry.parent_id) for number, entry, _ in found], reading)
    entries: list[ImportedEntry] = [
        msgspec.structs.replace(entry, id=id, parent_id=parent)
        for (_, entry, _), (id, parent) in zip(found, places, strict=True)
    ]
    names = [entry.name for entry in entries if isinstance(entry, SessionInfo) and entry.name]
    return ImportedSession(
        name=reading.path.name,
        shape="orch session",
        entries=tuple(entries),
        title=names[-1] if names else "",
        cwd=header.cwd if header else "",
        repairs=reading.repairs,
        spans={entry.id: span for entry, (_, _, span) in zip(entries, found, strict=True)},
    )


def _entry(line: bytes, number: int, reading: Reading) -> ImportedEntry | SessionHeader | None:
    reason: Exception
    try:
        entry = read_entry(line)
        if isinstance(entry, MessageEntry):
            check_blocks(entry.message)
        return entry
    except (*DECODE_ERRORS, ValueError) as error:
        reason = error
    try:
        fields = msgspec.json.decode(line, type=dict)
        kind = fields.pop("type")
        if line.startswith(ENTRY_PREFIXES):
            reading.handle_fault(number, f"is not a valid {kind} entry: {reason}", "its content is left out")
            kind = UNREADABLE
        kept = ForeignEntry(fields.pop("id"), fields.pop("parentId", None), fields.pop("timestamp", ""), kind, fields)
        return msgspec.convert(msgspec.to_builtins(kept), ForeignEntry)
    except (*DECODE_ERRORS, KeyError):
        reading.handle_fault(number, f"is not a valid entry: {reason}", "it is left out")
        return None
