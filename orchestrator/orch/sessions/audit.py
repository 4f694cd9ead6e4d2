"""What happened in a session, line by line as its file has it: an audit of what nobody can switch off.

The lines of a session file are a chain of checksums, so what is shown here was neither changed nor left out in between;
where that cannot be said, the row says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.errors import ForeignFileError
from orch_protocol.core.messages import Message, Reply, Text, Thinking, ToolResult, ToolUse, Usage, text_of
from orch_protocol.hooks.stages import ACTED, HookAction, HookActions
from orch_protocol.session import entries
from orch_worker.session.log.append_log import scan_lines
from orch_worker.session.log.record_format import UncheckedLine
from orch_worker.system.files import io_error

from .formats.native import is_ours

__all__ = ["AuditRow", "audit"]

UNFINISHED: Final = "belongs to a write that was never finished: it is left out of the conversation"
DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError)

_decoder: msgspec.json.Decoder[entries.Entry] = msgspec.json.Decoder(entries.Entry)


class AuditRow(Struct, frozen=True, omit_defaults=True):
    """One thing that happened, on line `line` of the file; a message of several parts is several rows.

    `what` is prompt, said, thought, call, result, reply, hook, or the type of another entry; "damage" for a line that
    cannot be read, which `remark` tells of. `text` is what was said; of a call its arguments as JSON, of a hook what it
    did. `turn` is the query's id, `tokens` (in and out) and `cost_usd` what the request took. `checksum` is the line's,
    eight hex digits.
    """

    line: int
    what: str
    id: str = ""
    at: str = ""
    turn: str = ""
    name: str = ""
    text: str = ""
    is_error: bool = False
    tokens: int = 0
    cost_usd: float | None = None
    checksum: str = ""
    remark: str = ""


def audit(path: Path) -> Iterator[AuditRow]:
    """Yield what the session file at `path` says happened, in the order in which it was written.

    Holds no more of the file than one append. Raises StoreError when it cannot be read, ForeignFileError when it is no
    session of ours.
    """
    waiting: list[AuditRow] = []
    try:
        with open(path, "rb") as file:
            if not is_ours(file.readline().rstrip(b"\r\n")):
                raise ForeignFileError(f"{path} is not an orch session file: it has no checksum chain")
            file.seek(0)
            for number, (_, _, sealed, remark) in enumerate(scan_lines(file), 1):
                if sealed is None:
                    waiting.append(AuditRow(number, "damage", remark=remark))
                    continue
                mark = sealed.stated.decode()
                waiting += (replace(row, line=number, checksum=mark, remark=remark) for row in _rows(sealed))
                if not sealed.more:
                    yield from waiting
                    waiting.clear()
    except OSError as error:
        raise io_error("read", path, error) from error
    yield from (row if row.what == "damage" else replace(row, remark=UNFINISHED) for row in waiting)


def _rows(sealed: UncheckedLine) -> list[AuditRow]:
    try:
        entry = _decoder.decode(sealed.object)
    except DECODE_ERRORS:
        return [AuditRow(0, "unknown", text=sealed.object.decode(errors="replace"))]
    if isinstance(entry, entries.SessionHeader):
        name = entry.parent_session or ""
        return [AuditRow(0, "session", entry.id, entry.timestamp, name=name, text=entry.cwd)]
    if isinstance(entry, entries.MessageEntry):
        parts = _message(entry.message)
        if parts and entry.usage is not None:
            parts[0] = _paid(parts[0], entry.usage)
        if entry.deleted:
            parts = [AuditRow(0, entry.message.role, text=f"deleted on {entry.deleted}")]
        return [replace(part, id=entry.id, at=entry.timestamp, turn=entry.turn) for part in parts]
    if isinstance(entry, entries.Custom) and entry.custom_type == ACTED:
        acted = HookActions.of(entry.data)
        if acted is not None:
            return [replace(row, id=entry.id, at=entry.timestamp) for row in _acts(acted)]
    row = _OTHERS[type(entry)](entry)
    return [replace(row, id=entry.id, at=entry.timestamp)]


def _message(message: Message) -> list[AuditRow]:
    rows: list[AuditRow] = []
    for block in message.content:
        if isinstance(block, ToolUse):
            given = msgspec.json.encode(block.input).decode()
            rows.append(AuditRow(0, "call", name=block.name, text=given))
        elif isinstance(block, ToolResult):
            text = text_of(Message("user", block.content))
            rows.append(AuditRow(0, "result", name=block.tool_use_id, text=text, is_error=block.is_error))
        elif isinstance(block, Text):
            rows.append(AuditRow(0, "said" if message.role == "assistant" else "prompt", text=block.text))
        elif isinstance(block, Thinking):
            rows.append(AuditRow(0, "thought", text=block.thinking))
        else:
            rows.append(AuditRow(0, type(block).__name__.lower()))
    return rows or [AuditRow(0, "said" if message.role == "assistant" else "prompt")]


def _paid(row: AuditRow, usage: Usage) -> AuditRow:
    return replace(row, tokens=usage.input_tokens + usage.output_tokens, cost_usd=usage.cost_usd)


def _reply(entry: entries.TurnEndEntry) -> AuditRow:
    reply: Reply = entry.reply
    text = f"deleted on {entry.deleted}" if entry.deleted else reply.text
    return _paid(AuditRow(0, "reply", turn=entry.turn, name=reply.stop_reason, text=text), reply.usage)


def _archive(entry: entries.ArchiveEntry) -> AuditRow:
    text = f"deleted on {entry.deleted}" if entry.deleted else entry.collapse.task
    return AuditRow(0, "archive", name=entry.collapse.holder, text=text)


def _acts(acted: HookActions) -> list[AuditRow]:
    rows = [
        AuditRow(0, "hook", turn=acted.turn, name=each.hook, text=_done(each), is_error=bool(each.error))
        for each in acted.acts
    ]
    more = AuditRow(0, "hook", turn=acted.turn, text=f"and {acted.more:,} more")
    return [*rows, more] if acted.more else rows


def _done(act: HookAction) -> str:
    """Return in a line what a hook did."""
    did = ", ".join(act.actions) or "nothing"
    return f"{act.stage}: {did}, in {1000 * act.seconds:.2f} ms" + (f"; {act.error}" if act.error else "")


def _phase(entry: entries.PhaseEntry) -> AuditRow:
    text = f"deleted on {entry.deleted}" if entry.deleted else entry.error or entry.note
    row = AuditRow(0, entry.phase, turn=entry.turn, name=entry.model or entry.by, text=text, is_error=bool(entry.error))
    return _paid(row, entry.usage) if entry.usage is not None else row


_OTHERS: Final[dict[type, Callable[[Any], AuditRow]]] = {
    entries.TurnEndEntry: _reply,
    entries.TurnStartEntry: lambda entry: AuditRow(0, "interrupted", turn=entry.turn, text=entry.interrupted),
    entries.CompactionEntry: lambda entry: AuditRow(0, "compaction", text=entry.summary),
    entries.ArchiveEntry: _archive,
    entries.UpgradeEntry: lambda entry: AuditRow(0, "archive_summary", name=entry.upgrade.holder),
    entries.Checkout: lambda entry: AuditRow(0, "checkout", text=f"from {entry.from_id or 'the beginning'}"),
    entries.BranchSummary: lambda entry: AuditRow(0, "branch_summary", text=entry.summary),
    entries.Label: lambda entry: AuditRow(0, "label", name=entry.target_id, text=entry.label or ""),
    entries.PlanApproved: lambda entry: AuditRow(0, "plan_approved", name=entry.agent),
    entries.TasksEntry: lambda entry: AuditRow(
        0, "tasks", turn=entry.turn, text="; ".join(f"{task.text}: {task.status}" for task in entry.tasks)
    ),
    entries.MarksEntry: lambda entry: AuditRow(
        0, "marks", turn=entry.turn, text="; ".join(f"{mark.bit}: {mark.by}" for mark in entry.marks)
    ),
    entries.PhaseEntry: _phase,
    entries.Custom: lambda entry: AuditRow(0, "custom", name=entry.custom_type),
    entries.CustomMessage: lambda entry: AuditRow(0, "custom_message", name=entry.custom_type, text=_shown(entry)),
    entries.SessionInfo: lambda entry: AuditRow(0, "session_info", name=entry.name or ""),
    entries.ModelChange: lambda entry: AuditRow(0, "model_change", name=f"{entry.provider}/{entry.model_id}"),
    entries.ThinkingLevelChange: lambda entry: AuditRow(0, "thinking_level_change", name=entry.thinking_level),
}


def _shown(entry: entries.CustomMessage) -> str:
    return text_of(entry.message)
