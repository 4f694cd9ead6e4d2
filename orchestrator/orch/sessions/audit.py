"""The audit trail of a session, read line by line from the session file. No setting turns the audit trail off.

The lines of a session file form a chain of checksums. The chain shows whether a line was changed or removed. If a line
breaks the chain, the remark in its row reports this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.errors import ForeignFileError
from orch_protocol.core.messages import Image, Message, Reply, Text, Thinking, ToolResult, ToolUse, Usage, text_of
from orch_protocol.hooks.stages import ACTED, HookAction, HookActions
from orch_protocol.session import entries
from orch_worker.session.entry_codec import DECODE_ERRORS, read_entry
from orch_worker.session.log.log_reader import LogLine, group_appends, scan_lines
from orch_worker.system.files import io_error

from .formats.native import is_orch_session

__all__ = ["AuditRow", "audit"]

UNFINISHED: Final = "belongs to a write that did not finish, and is left out of the conversation"


class AuditRow(Struct, frozen=True, omit_defaults=True):
    """One event, from the line `line` of the file. A message with several blocks results in several rows.

    `what` is prompt, said, thought, call, result, reply, hook, the type of another entry, or "damage". If a line cannot
    be read, `what` is "damage" and `remark` explains the damage. `text` is the content, for example the arguments of a
    call as JSON, or the actions of a hook. `turn` is the query id. `tokens` (input and output) and `cost_usd` are those
    of the request. `checksum` is the checksum of the line, as eight hex digits.
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
    """Yield the events of the session file at `path` in the order in which they were written.

    At any time, the lines of at most one write are in memory. Raises StoreError if the file cannot be read, and
    ForeignFileError if the file is not a session file of orch.
    """
    try:
        with open(path, "rb") as file:
            if not is_orch_session(file.readline().rstrip(b"\r\n")):
                raise ForeignFileError(f"{path} is not an orch session file: it has no checksum chain")
            file.seek(0)
            for lines, complete in group_appends(scan_lines(file)):
                for line in lines:
                    remark = line.remark if complete or line.sealed is None else UNFINISHED
                    yield from (replace(row, line=line.number, remark=remark) for row in _rows(line))
    except OSError as error:
        raise io_error("read", path, error) from error


def _rows(line: LogLine) -> list[AuditRow]:
    if line.sealed is None:
        return [AuditRow(0, "damage")]
    checksum = line.sealed.stated.decode()
    return [replace(row, checksum=checksum) for row in _rows_of_object(line.sealed.object)]


def _rows_of_object(object: bytes) -> list[AuditRow]:
    try:
        entry = read_entry(object)
    except DECODE_ERRORS:
        return [AuditRow(0, "unknown", text=object.decode(errors="replace"))]
    if isinstance(entry, entries.SessionHeader):
        name = entry.parent_session or ""
        return [AuditRow(0, "session", entry.id, entry.timestamp, name=name, text=entry.cwd)]
    if isinstance(entry, entries.MessageEntry):
        parts = _message(entry.message)
        if parts and entry.usage is not None:
            parts[0] = _with_usage(parts[0], entry.usage)
        if entry.deleted:
            parts = [AuditRow(0, entry.message.role, text=f"deleted on {entry.deleted}")]
        return [replace(part, id=entry.id, at=entry.timestamp, turn=entry.turn) for part in parts]
    if isinstance(entry, entries.Custom) and entry.custom_type == ACTED:
        acted = HookActions.of(entry.data)
        if acted is not None:
            return [replace(row, id=entry.id, at=entry.timestamp) for row in _hook_rows(acted)]
    row = _ROW_BUILDERS[type(entry)](entry)
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
        elif isinstance(block, Image):
            rows.append(AuditRow(0, "image", text=block.text))
        else:
            rows.append(AuditRow(0, type(block).__name__.lower()))
    return rows or [AuditRow(0, "said" if message.role == "assistant" else "prompt")]


def _with_usage(row: AuditRow, usage: Usage) -> AuditRow:
    return replace(row, tokens=usage.input_tokens + usage.output_tokens, cost_usd=usage.cost_usd)


def _reply(entry: entries.TurnEndEntry) -> AuditRow:
    reply: Reply = entry.reply
    text = f"deleted on {entry.deleted}" if entry.deleted else reply.text
    return _with_usage(AuditRow(0, "reply", turn=entry.turn, name=reply.stop_reason, text=text), reply.usage)


def _archive(entry: entries.ArchiveEntry) -> AuditRow:
    text = f"deleted on {entry.deleted}" if entry.deleted else entry.collapse.task
    return AuditRow(0, "archive", name=entry.collapse.holder, text=text)


def _hook_rows(acted: HookActions) -> list[AuditRow]:
    rows = [
        AuditRow(0, "hook", turn=acted.turn, name=each.hook, text=_describe_action(each), is_error=bool(each.error))
        for each in acted.acts
    ]
    more = AuditRow(0, "hook", turn=acted.turn, text=f"and {acted.more:,} more")
    return [*rows, more] if acted.more else rows


def _describe_action(act: HookAction) -> str:
    """Return the stage, actions, duration and error of a hook on one line."""
    actions = ", ".join(act.actions) or "nothing"
    return f"{act.stage}: {actions}, in {1000 * act.seconds:.2f} ms" + (f"; {act.error}" if act.error else "")


def _phase(entry: entries.PhaseEntry) -> AuditRow:
    text = f"deleted on {entry.deleted}" if entry.deleted else entry.error or entry.note
    row = AuditRow(0, entry.phase, turn=entry.turn, name=entry.model or entry.by, text=text, is_error=bool(entry.error))
    return _with_usage(row, entry.usage) if entry.usage is not None else row


_ROW_BUILDERS: Final[dict[type, Callable[[Any], AuditRow]]] = {
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
    entries.TaintEntry: lambda entry: AuditRow(
        0, "marks", turn=entry.turn, text="; ".join(f"{mark.bit}: {mark.by}" for mark in entry.marks)
    ),
    entries.PhaseEntry: _phase,
    entries.Custom: lambda entry: AuditRow(0, "custom", name=entry.custom_type),
    entries.CustomMessage: lambda entry: AuditRow(
        0, "custom_message", name=entry.custom_type, text=_custom_message_text(entry)
    ),
    entries.SessionInfo: lambda entry: AuditRow(0, "session_info", name=entry.name or ""),
    entries.ModelChange: lambda entry: AuditRow(0, "model_change", name=f"{entry.provider}/{entry.model_id}"),
    entries.ThinkingLevelChange: lambda entry: AuditRow(0, "thinking_level_change", name=entry.thinking_level),
}


def _custom_message_text(entry: entries.CustomMessage) -> str:
    return text_of(entry.message)
