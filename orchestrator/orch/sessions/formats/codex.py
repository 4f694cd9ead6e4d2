"""Read rollout files of Codex. Each row contains a time, a type, and a payload.

The payload of a row of the type `response_item` is an item of OpenAI's responses API. Other rows contain events for the
display, the folder, the model and the usage.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.core.messages import Message, ToolResult, Usage
from orch_protocol.session.entries import MessageEntry, Origin
from orch_worker.backends.formats.openai import compact_json
from orch_worker.backends.model_families import GPT

from ...archival.adapters import format_named
from .conversation import SHAPE_ERRORS, ImportedSession, Reading, check_blocks
from .json_lines import Row
from .pi import entry_time

__all__ = ["is_rollout_row", "read_rollout"]

ITEM: Final = "response_item"
ROW_TYPES: Final = frozenset({"session_meta", ITEM})
IGNORED_ITEMS: Final = frozenset({"ghost_snapshot", "other"})
"""Items that are no part of the conversation."""


def is_rollout_row(row: dict[str, Any]) -> bool:
    """Return whether `row` belongs to a rollout file."""
    return row.get("type") in ROW_TYPES and isinstance(row.get("payload"), dict)


def read_rollout(rows: list[Row], reading: Reading) -> ImportedSession:
    """Return the conversation in `rows`. Raises DamagedError.

    The items of one response are one message.
    """
    format = format_named("responses")
    found: list[MessageEntry] = []
    taken: set[str] = set()
    time = "1970-01-01T00:00:00.000Z"
    cwd = model = ""
    skipped: dict[str, int] = {}
    for line, row in rows:
        time = entry_time(row.get("timestamp")) or time
        kind, payload = row.get("type"), row.get("payload")
        if not isinstance(payload, dict):
            reading.handle_fault(line, "has no payload", "it is left out")
            continue
        if kind in ("session_meta", "turn_context"):
            cwd = cwd or _text(payload, "cwd")
            model = _text(payload, "model") or model
        elif kind == "event_msg" and payload.get("type") == "token_count":
            _add_usage(found, payload.get("info"))
        elif kind == ITEM and payload.get("type") not in IGNORED_ITEMS:
            try:
                message = check_blocks(format.read(_item(payload)))
            except (ConfigError, *SHAPE_ERRORS) as error:
                reading.handle_fault(line, f"is not an item: {error}", "it is left out")
                continue
            if found and message.role == found[-1].message.role == "assistant":
                content = found[-1].message.content + message.content
                found[-1] = msgspec.structs.replace(found[-1], message=Message("assistant", content))
                continue
            origin = Origin(model=model) if message.role == "assistant" else None
            id, parent = new_entry_id(taken), found[-1].id if found else None
            taken.add(id)
            found.append(MessageEntry(id=id, parent_id=parent, timestamp=time, message=message, origin=origin))
        elif kind != "event_msg":
            name = kind if isinstance(kind, str) else "untyped"
            skipped[name] = skipped.get(name, 0) + 1
    listed = ", ".join(f"{count} {name[:40]}" for name, count in sorted(skipped.items()))
    return ImportedSession(
        name=reading.path.name,
        shape="rollout",
        entries=tuple(found),
        cwd=cwd,
        ratios=GPT,
        repairs=reading.repairs,
        notes=(f"rows that are not messages are left out: {listed}",) if listed else (),
    )


def _item(payload: dict[str, Any]) -> dict[str, Any]:
    """Return `payload` as an item that the responses API accepts. Its other calls become function calls."""
    match payload:
        case {"type": "custom_tool_call", "input": str(text)}:
            return payload | {"type": "function_call", "arguments": compact_json({"input": text})}
        case {"type": "local_shell_call", "action": dict(action)}:
            id = payload.get("call_id") or payload.get("id")
            return {"type": "function_call", "call_id": id, "name": "shell", "arguments": compact_json(action)}
        case {"type": "custom_tool_call_output"} | {"type": "function_call_output"}:
            output = payload.get("output")
            if isinstance(output, dict):  # an earlier version
                output = output.get("content")
            return payload | {"type": "function_call_output", "output": output}
    return payload


def _add_usage(found: list[MessageEntry], info: Any) -> None:
    """Add the usage in `info` to the last response. It arrives after the response, and after its results."""
    reported = info.get("last_token_usage") if isinstance(info, dict) else None
    if not isinstance(reported, dict):
        return
    given, cached, output = (
        value if isinstance(value := reported.get(key), int) and value >= 0 else 0
        for key in ("input_tokens", "cached_input_tokens", "output_tokens")
    )
    for index in range(len(found) - 1, -1, -1):
        entry = found[index]
        if entry.message.role == "assistant":
            if entry.origin is not None and entry.origin.usage is None:
                usage = Usage(max(given - cached, 0), output, cached, cost_known=False)
                found[index] = msgspec.structs.replace(entry, origin=msgspec.structs.replace(entry.origin, usage=usage))
            return
        if not any(isinstance(block, ToolResult) for block in entry.message.content):
            return


def _text(payload: dict[str, Any], key: str) -> str:
    value = payload.get(key)
    return value if isinstance(value, str) else ""
