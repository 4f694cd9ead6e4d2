"""Read plain messages in the format of providers' APIs.

A file contains a list of messages, one message on each line, or several dialogues.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.core.messages import Message, ToolUse
from orch_protocol.session.entries import MessageEntry, Origin

from ...archival.adapters import detect
from ...tree.agents.state import iso_time
from .conversation import SHAPE_ERRORS, ImportedSession, Reading, check_blocks
from .json_lines import DIALOGUE_KEYS, Row
from .pi import entry_time, usage_of

__all__ = ["messages_in", "read_dialogues", "read_document", "read_rows"]


def messages_in(value: Any) -> list[Any] | None:
    """Return the messages of the dialogue `value`. Return None if `value` is not a dialogue."""
    if isinstance(value, dict) and "role" not in value:
        for key in DIALOGUE_KEYS:
            messages = value.get(key)
            if isinstance(messages, list) and any(isinstance(each, dict) and "role" in each for each in messages):
                return messages
    return value if isinstance(value, list) and value and messages_in({"messages": value}) is not None else None


def read_document(value: Any, reading: Reading) -> list[ImportedSession]:
    """Return the conversations in a JSON document.

    The document is one list of messages, or a list of dialogues.
    """
    name = reading.path.name
    if isinstance(value, dict):
        return [_read_messages(messages_in(value) or [], name, reading)]
    dialogues = [(number, messages_in(item)) for number, item in enumerate(value)]
    are_messages = [isinstance(item, dict) and ("role" in item or "type" in item) for item in value]
    is_damaged_list = reading.repair and any(are_messages) and all(messages is None for _, messages in dialogues)
    if value and (all(are_messages) or is_damaged_list):
        return [_read_messages(value, name, reading)]
    found = [
        _read_messages(messages, f"{name}[{number}]", reading) for number, messages in dialogues if messages is not None
    ]
    if not found:
        raise reading.foreign_error()
    return found


def read_dialogues(rows: Sequence[Row], reading: Reading) -> list[ImportedSession]:
    """Return the conversations of a file with one conversation per line."""
    found = []
    for line, row in rows:
        if (messages := messages_in(row)) is not None:
            found.append(_read_messages(messages, f"{reading.path.name}:{line}", reading))
        else:
            reading.handle_fault(line, "contains no messages", "it is left out")
    return found


def read_rows(rows: Sequence[Row], reading: Reading) -> list[ImportedSession]:
    """Return the conversation of a file with one message per line."""
    return [_read_messages([row for _, row in rows], reading.path.name, reading, [line for line, _ in rows])]


def _read_messages(messages: Sequence[Any], name: str, reading: Reading, lines: Sequence[int] = ()) -> ImportedSession:
    format = detect(messages)
    found: list[MessageEntry] = []
    parent: str | None = None
    taken: set[str] = set()
    now = iso_time(time.time())
    for index, raw in enumerate(messages):
        fields = raw if isinstance(raw, dict) else {}
        try:
            message = check_blocks(format.read(raw))
        except (ConfigError, *SHAPE_ERRORS) as error:
            if not reading.repair:
                where = f"line {lines[index]}" if lines else f"message {index} of {name}"
                raise reading.foreign_error(f"{where}: {error}") from error
            reading.add_repair(f"message {index} of {name} is left out: {error}")
            continue
        if found and ToolUse in format.separate_blocks and message.role == found[-1].message.role == "assistant":
            # One response consists of several items, and each call is a separate item.
            joined = Message("assistant", found[-1].message.content + message.content)
            found[-1] = msgspec.structs.replace(found[-1], message=joined)
            continue
        id = new_entry_id(taken)
        taken.add(id)
        usage, model = usage_of(fields.get("usage")), fields.get("model")
        origin = Origin(model=model if isinstance(model, str) else "", usage=usage) if usage else None
        at = entry_time(fields.get("timestamp")) or now
        found.append(MessageEntry(id=id, parent_id=parent, timestamp=at, message=message, origin=origin))
        parent = id
    return ImportedSession(
        name=name,
        shape=f"{format.name} messages",
        entries=tuple(found),
        ratios=format.ratios,
        repairs=reading.repairs,
    )
