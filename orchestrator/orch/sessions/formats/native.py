"""Session files of ours: each line is checked, and what was archived is there whole."""

from __future__ import annotations

import msgspec

from orch_protocol.core.archives import Span
from orch_protocol.session.entries import SESSION_VERSION, Entry, MessageEntry, SessionHeader, SessionInfo
from orch_worker.session.log.record_format import ChecksumChain, unseal_line
from orch_worker.session.log_reader import KNOWN

from .conversation import DECODE_ERRORS, ImportedSession, Kept, Reading, Told, fitting
from .json_lines import lines_of
from .pi import UNREADABLE
from .tree_builder import Named, graft

__all__ = ["is_ours", "read_own"]

_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


def is_ours(line: bytes) -> bool:
    """Whether the first line of a file is that of a session file of ours."""
    return line.startswith(b'{"type":"session"') and unseal_line(line) is not None


def read_own(data: bytes, reading: Reading) -> ImportedSession:
    """Return the conversation in a session file of ours. Raises DamagedError, ForeignFileError."""
    lines = lines_of(data)
    chain = ChecksumChain()
    header: SessionHeader | None = None
    found: list[tuple[int, Told, Span]] = []
    whole = offset = 0
    for place, (number, line) in enumerate(lines):
        sealed = unseal_line(line)
        good, remark = chain.take(line, sealed)
        span = (offset, len(line) + 1)
        offset += len(line) + 1
        if sealed is None or not good:
            if place == len(lines) - 1 and place and not data.endswith(b"\n"):
                reading.mended(f"line {number} is the beginning of a line that was never finished: left out")
            else:
                reading.fault(number, remark, "it is left out")
            continue
        if remark:
            reading.fault(number, remark, "what is there is read")
        entry = _entry(sealed.object, number, reading)
        if isinstance(entry, SessionHeader):
            header = header or entry
        elif entry is not None:
            found.append((number, entry, span))
        if not sealed.more:
            whole = len(found)
    if whole < len(found):
        reading.mended(f"line {found[whole][0]} begins a write that was never finished: it is left out")
    del found[whole:]
    if header is None and not found:
        raise reading.foreign("no line belongs to an orch session")
    if header is None:
        reading.fault(lines[0][0], "should be the header, and is none", "the file is read without one")
    elif header.version > SESSION_VERSION:
        raise reading.foreign(f"it is of version {header.version}, and {SESSION_VERSION} is the last that is known")
    places, _ = graft([Named(number, entry.id, entry.parent_id) for number, entry, _ in found], reading)
    entries: list[Told] = [
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


def _entry(line: bytes, number: int, reading: Reading) -> Told | SessionHeader | None:
    why: Exception
    try:
        entry = _decoder.decode(line)
        if isinstance(entry, MessageEntry):
            fitting(entry.message)
        return entry
    except (*DECODE_ERRORS, ValueError) as error:
        why = error
    try:
        fields = msgspec.json.decode(line, type=dict)
        kind = fields.pop("type")
        if line.startswith(KNOWN):
            reading.fault(number, f"is no {kind} entry: {why}", "what it says is left out")
            kind = UNREADABLE
        kept = Kept(fields.pop("id"), fields.pop("parentId", None), fields.pop("timestamp", ""), kind, fields)
        return msgspec.convert(msgspec.to_builtins(kept), Kept)
    except (*DECODE_ERRORS, KeyError):
        reading.fault(number, f"is no entry: {why}", "it is left out")
        return None
