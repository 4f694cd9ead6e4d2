"""What a format does, and how what our messages cannot say is kept beside them, so that nothing is lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Block, Message, Text
from orch_worker.conversation.tokens import PLAIN, CharsPerToken

__all__ = [
    "FORMAT",
    "Format",
    "apply_difference",
    "convert_message",
    "decode_message",
    "difference",
    "encode_message",
    "role_of",
    "to_json_data",
    "with_note",
]


DEPTH: Final = 200


class Format(Protocol):
    """One shape of messages. One of its messages is one of ours, in both directions."""

    name: str
    provider: str
    """Whose own blocks these messages may have."""
    ratios: CharsPerToken
    alone: tuple[type, ...]
    """Blocks that are a message of their own here."""

    def read(self, raw: Any) -> Message:
        """Return `raw` as a message of ours. Raises ConfigError saying what about it does not fit."""

    def write(self, message: Message) -> Any:
        """Return `message` in this shape, in the one way that this format writes it."""

    def with_text(self, given: Any, text: str) -> Any:
        """Return the user message `given` with `text` as a further block behind its content."""

    def text(self, text: str) -> Any:
        """Return a user message that holds `text`."""

    def as_user(self, given: Any) -> Any:
        """Return `given` as a user message if it is a system message and the API may refuse it after the first one."""

    def tool(self, name: str, description: str, schema: dict[str, Any]) -> Any:
        """Return the definition of a tool in this shape."""


def with_note(format: Format, messages: Sequence[Any], text: str) -> list[Any]:
    """Return `messages` as a request that ends with `text`, "" for none.

    The rule of the product's own backends: `text` is the user's, and no system message follows the first message,
    because strict chat templates refuse one.
    """
    request = [message if not place else format.as_user(message) for place, message in enumerate(messages)]
    if not text:
        return request
    if request and role_of(request[-1]) == "user":
        return [*request[:-1], format.with_text(request[-1], text)]
    return [*request, format.text(text)]


def role_of(raw: Any) -> Any:
    """Return the role of a message, None where it has none."""
    return raw.get("role") if isinstance(raw, Mapping) else getattr(raw, "role", None)


def to_json_data(raw: Any, where: str = "message") -> Any:
    """Return `raw` as JSON-like data: objects that can say what they hold (`model_dump`) say it.

    Raises ConfigError for what JSON does not carry, naming its place.
    """
    return _to_json_data(raw, where, 0)


def _to_json_data(value: Any, where: str, depth: int) -> Any:
    if depth > DEPTH:
        raise ConfigError(f"{where} is nested more than {DEPTH} levels deep")
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 64:
            return value
        raise ConfigError(f"{where} is an integer beyond 64 bits: give it as text")
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise ConfigError(f"{where} is {value}, which JSON does not carry")
    if hasattr(value, "model_dump"):
        return _to_json_data(value.model_dump(exclude_none=True), where, depth + 1)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{where} has the key {key!r}: keys are strings")
        return {key: _to_json_data(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json_data(item, f"{where}[{place}]", depth + 1) for place, item in enumerate(value)]
    raise ConfigError(f"{where} is a {type(value).__name__}: give plain data (dict, list, str, number, bool, None)")


def encode_message(format: Format, raw: Any) -> tuple[Message, Any]:
    """Return `raw` as a message of ours, and what else it takes to restore it exactly; None when nothing else."""
    message = format.read(raw)
    return message, difference(format.write(message), raw)


def decode_message(format: Format, message: Message, rest: Any) -> Any:
    """Return the raw message that `encode_message` took apart."""
    return apply_difference(format.write(message), rest)


def convert_message(format: Format, message: Message) -> list[Any]:
    """Return `message`, which came in another format, as messages of this one."""
    parts: list[list[Block]] = []
    for block in message.content:
        apart = isinstance(block, format.alone)
        if apart or not parts or isinstance(parts[-1][-1], format.alone):
            parts.append([])
        parts[-1].append(block)
    return [format.write(Message(message.role, tuple(part))) for part in parts]


# A difference between JSON values: None (none), {"=": value} (another one), {"t": 1} (a text block written as a bare
# string), {"k": {...}, "d": [...]} (keys that differ, keys that are gone), {"l": {...}} (items of a list that differ).


def difference(written: Any, raw: Any) -> Any:
    """Return what turns `written` into `raw` (see `apply_difference`), None when they are the same."""
    if written is raw:
        return None
    if isinstance(raw, str) and written == [{"type": "text", "text": raw}]:
        return {"t": 1}
    if isinstance(written, dict) and isinstance(raw, dict):
        changed = {key: difference(written[key], item) if key in written else {"=": item} for key, item in raw.items()}
        changed = {key: change for key, change in changed.items() if change is not None}
        gone = [key for key in written if key not in raw]
        found = ({"k": changed} if changed else {}) | ({"d": gone} if gone else {})
        return found or None
    if isinstance(written, list) and isinstance(raw, list) and len(written) == len(raw):
        items = {str(place): difference(*pair) for place, pair in enumerate(zip(written, raw, strict=True))}
        items = {place: change for place, change in items.items() if change is not None}
        return {"l": items} if items else None
    return None if type(written) is type(raw) and written == raw else {"=": raw}


def apply_difference(written: Any, change: Any) -> Any:
    """Return `written` with `change` (see `difference`) applied."""
    if change is None:
        return written
    if "=" in change:
        return change["="]
    if "t" in change:
        return written[0]["text"]
    if "l" in change:
        return [apply_difference(item, change["l"].get(str(place))) for place, item in enumerate(written)]
    gone, changed = change.get("d", ()), change.get("k", {})
    kept = {key: apply_difference(item, changed.get(key)) for key, item in written.items() if key not in gone}
    return kept | {key: apply_difference(None, each) for key, each in changed.items() if key not in written}


# --- Our own messages, as they are ---


class _Own:
    name = "orch"
    provider = ""
    ratios: CharsPerToken = PLAIN
    alone: tuple[type, ...] = ()

    def read(self, raw: Any) -> Message:
        if not isinstance(raw, Message):
            raise ConfigError(f"a message of format 'orch' is an orch.Message, not a {type(raw).__name__}")
        return raw

    def write(self, message: Message) -> Message:
        return message

    def with_text(self, given: Message, text: str) -> Message:
        return msgspec.structs.replace(given, content=(*given.content, Text(text)))

    def text(self, text: str) -> Message:
        return Message("user", (Text(text),))

    def as_user(self, given: Message) -> Message:
        return given  # a backend of ours arranges them

    def tool(self, name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "description": description, "input_schema": schema}


FORMAT: Final = _Own()
