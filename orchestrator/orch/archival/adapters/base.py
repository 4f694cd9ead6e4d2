"""The interface of message formats, and the lossless encoding of messages.

A message is encoded as an orch message and the difference from the message in its own format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Block, Message, Text
from orch_worker.backends.formats.normalize_messages import SYSTEM_NOTE
from orch_worker.conversation.tokens import PLAIN, CharsPerToken

__all__ = [
    "FORMAT",
    "UNCOPYABLE",
    "ApiMessages",
    "Format",
    "apply_difference",
    "convert_message",
    "decode_message",
    "difference",
    "encode_message",
    "request_with",
    "role_of",
    "to_json_data",
]


MAX_DEPTH: Final = 200
UNCOPYABLE: Final = object()
"""The snapshot of a message that cannot be copied. It equals no message, so such a message is always read again."""


class Format(Protocol):
    """A message format. `read` and `write` convert one message to one message."""

    name: str
    provider: str
    """The provider whose own types of blocks may appear in messages of this format."""
    ratios: CharsPerToken
    separate_blocks: tuple[type, ...]
    """Types of blocks that are separate messages in this format."""

    def read(self, raw: Any) -> Message:
        """Return `raw` as an orch message. Raises ConfigError for an invalid message."""

    def read_with_snapshot(self, raw: Any) -> tuple[Message, Any]:
        """Return `raw` as an orch message, and a value that equals `raw` until `raw` is changed.

        Raises ConfigError for an invalid message.
        """

    def write(self, message: Message) -> Any:
        """Return `message` in this format. The result is deterministic."""

    def with_text(self, message: Any, text: str) -> Any:
        """Return the user message `message` with a block `text` appended to its content."""

    def text(self, text: str) -> Any:
        """Return a user message with the text `text`."""

    def as_user(self, message: Any) -> Any:
        """Return the system message `message` as a user message if the API may reject it.

        An API may reject a system message that is not the first message.
        """

    def with_cache_markers(self, request: list[Any], record: int | None, *, listed: bool) -> list[Any]:
        """Return `request` with the markers that tell the API what to cache, if the API has such markers.

        `record` is the index of the last message with the record of an archive. `listed`: the first user message from
        there on ends with the list of archived turns.
        """

    def tool(self, name: str, description: str, schema: dict[str, Any]) -> Any:
        """Return the definition of a tool in this format."""


class MarkRequest(Protocol):
    """A function that sets cache markers. See `Format.with_cache_markers`."""

    def __call__(self, request: list[Any], record: int | None, /, *, listed: bool) -> list[Any]: ...


class ApiMessages(Struct, frozen=True):
    """The format of the messages of one API. See `Format`.

    `text_type` is the type of a text in a user message. `system_anywhere` is True if a system message need not be the
    first message. `mark` sets cache markers in a request; None if the API has none.
    """

    name: str
    provider: str
    ratios: CharsPerToken
    decode: Callable[[Any, str], Message]
    write: Callable[[Message], Any]
    tool: Callable[[str, str, dict[str, Any]], Any]
    separate_blocks: tuple[type, ...] = ()
    text_type: str = "text"
    system_anywhere: bool = False
    mark: MarkRequest | None = None

    def read(self, raw: Any) -> Message:
        return self.decode(to_json_data(raw), self.provider)

    def read_with_snapshot(self, raw: Any) -> tuple[Message, Any]:
        data = to_json_data(raw)
        return self.decode(data, self.provider), data if data == raw else _copy_of(raw)

    def with_text(self, message: Any, text: str) -> dict[str, Any]:
        raw: dict[str, Any] = to_json_data(message)
        content = raw.get("content")
        parts = [{"type": self.text_type, "text": content}] if isinstance(content, str) else content or []
        return raw | {"content": [*parts, {"type": self.text_type, "text": text}]}

    def text(self, text: str) -> Any:
        return self.write(Message("user", (Text(text),)))

    def with_cache_markers(self, request: list[Any], record: int | None, *, listed: bool) -> list[Any]:
        return request if self.mark is None else self.mark(request, record, listed=listed)

    def as_user(self, message: Any) -> Any:
        if self.system_anywhere or role_of(message) not in ("system", "developer"):
            return message
        content = to_json_data(message).get("content")
        if not isinstance(content, list):
            return {"role": "user", "content": f"{SYSTEM_NOTE}\n\n{content or ''}"}
        parts = [part | {"type": self.text_type} if "text" in part else part for part in content]
        return {"role": "user", "content": [{"type": self.text_type, "text": SYSTEM_NOTE}, *parts]}


def request_with(format: Format, messages: Sequence[Any], text: str, after: int) -> list[Any]:
    """Return `messages` as a request with `text` in the first user message from index `after` on.

    Without such a message, the request ends with `text`. If `text` is "", add nothing. Only the first message may be a
    system message, because strict chat templates reject a system message in another position.
    """
    request = [message if not index else format.as_user(message) for index, message in enumerate(messages)]
    if not text:
        return request
    place = next((index for index in range(after, len(request)) if role_of(request[index]) == "user"), len(request))
    changed = format.with_text(request[place], text) if place < len(request) else format.text(text)
    return [*request[:place], changed, *request[place + 1 :]]


def _copy_of(raw: Any) -> Any:
    """Return a copy of a message with objects of an SDK, or UNCOPYABLE."""
    try:
        return deepcopy(raw)
    except Exception:  # classes of users can raise any error
        return UNCOPYABLE


def role_of(raw: Any) -> Any:
    """Return the role of a message, None if it has no role."""
    return raw.get("role") if isinstance(raw, Mapping) else getattr(raw, "role", None)


def to_json_data(raw: Any, where: str = "message") -> Any:
    """Return `raw` as plain JSON data.

    An object with a method `model_dump` is converted by this method. Raises ConfigError with the position of a value
    that JSON cannot represent.
    """
    try:
        return _copy_of_plain_data(raw, 0)
    except _NotPlainError:
        return _to_json_data(raw, where, 0)


class _NotPlainError(Exception):
    """A value needs a conversion or a check, or its error needs a position."""


def _copy_of_plain_data(value: Any, depth: int) -> Any:
    """Return a copy of `value`, which consists of ordinary JSON values only. Raises _NotPlainError for other values.

    Almost all messages are such data, and this function takes a third of the time of `_to_json_data`.
    """
    kind = type(value)
    if kind is dict and depth < MAX_DEPTH:
        copy: dict[str, Any] = {}
        for key, item in value.items():
            if type(key) is not str:
                raise _NotPlainError
            copy[key] = item if type(item) is str else _copy_of_plain_data(item, depth + 1)
        return copy
    if kind is list and depth < MAX_DEPTH:
        return [item if type(item) is str else _copy_of_plain_data(item, depth + 1) for item in value]
    if kind is str or value is None or kind is bool or (kind is int and -(1 << 63) <= value < 1 << 64):
        return value
    if kind is float and math.isfinite(value):
        return value
    raise _NotPlainError


def _to_json_data(value: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where} is nested more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 64:
            return value
        raise ConfigError(f"{where} is an integer beyond 64 bits: give it as text")
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise ConfigError(f"{where} is {value}, which JSON cannot represent")
    if hasattr(value, "model_dump"):
        return _to_json_data(value.model_dump(exclude_none=True), where, depth + 1)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{where} has the key {key!r}; keys must be strings")
        return {key: _to_json_data(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json_data(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise ConfigError(f"{where} is a {type(value).__name__}; pass plain data (dict, list, str, number, bool, None)")


def encode_message(format: Format, raw: Any) -> tuple[Message, Any]:
    """Return `raw` as an orch message, and the data with which `decode_message` restores `raw` exactly.

    The data is None if the orch message is enough to restore `raw`.
    """
    message = format.read(raw)
    return message, difference(format.write(message), raw)


def decode_message(format: Format, message: Message, change: Any) -> Any:
    """Return the original message. `message` and `change` are the result of `encode_message`."""
    return apply_difference(format.write(message), change)


def convert_message(format: Format, message: Message) -> list[Any]:
    """Convert `message`, which was stored in another format, to messages of `format`."""
    parts: list[list[Block]] = []
    for block in message.content:
        is_separate = isinstance(block, format.separate_blocks)
        if is_separate or not parts or isinstance(parts[-1][-1], format.separate_blocks):
            parts.append([])
        parts[-1].append(block)
    return [format.write(Message(message.role, tuple(part))) for part in parts]


# A difference between two JSON values has one of five forms. None: the values are equal. {"=": value}: the new value.
# {"t": 1}: a string replaces a list of one text block. {"k": {...}, "d": [...]}: the changed keys with their
# differences, and the removed keys. {"l": {...}}: the changed items of a list by index.


def difference(written: Any, raw: Any) -> Any:
    """Return the difference that `apply_difference` needs to turn `written` into `raw`.

    Return None if both are equal.
    """
    if written is raw:
        return None
    if isinstance(raw, str) and written == [{"type": "text", "text": raw}]:
        return {"t": 1}
    if isinstance(written, dict) and isinstance(raw, dict):
        changed = {key: difference(written[key], item) if key in written else {"=": item} for key, item in raw.items()}
        changed = {key: change for key, change in changed.items() if change is not None}
        removed_keys = [key for key in written if key not in raw]
        keys = ({"k": changed} if changed else {}) | ({"d": removed_keys} if removed_keys else {})
        return keys or None
    if isinstance(written, list) and isinstance(raw, list) and len(written) == len(raw):
        items = {str(index): difference(*pair) for index, pair in enumerate(zip(written, raw, strict=True))}
        items = {index: change for index, change in items.items() if change is not None}
        return {"l": items} if items else None
    return None if type(written) is type(raw) and written == raw else {"=": raw}


def apply_difference(written: Any, change: Any) -> Any:
    """Return the result of applying the difference `change` to `written`."""
    if change is None:
        return written
    if "=" in change:
        return change["="]
    if "t" in change:
        return written[0]["text"]
    if "l" in change:
        return [apply_difference(item, change["l"].get(str(index))) for index, item in enumerate(written)]
    removed_keys, changes = change.get("d", ()), change.get("k", {})
    unchanged = {
        key: apply_difference(item, changes.get(key)) for key, item in written.items() if key not in removed_keys
    }
    return unchanged | {key: apply_difference(None, each) for key, each in changes.items() if key not in written}


# --- Orch messages ---


class _OrchFormat:
    name = "orch"
    provider = ""
    ratios: CharsPerToken = PLAIN
    separate_blocks: tuple[type, ...] = ()

    def read(self, raw: Any) -> Message:
        if not isinstance(raw, Message):
            raise ConfigError(f"a message of the format 'orch' must be an orch.Message; got a {type(raw).__name__}")
        return raw

    def read_with_snapshot(self, raw: Any) -> tuple[Message, Any]:
        return self.read(raw), raw

    def write(self, message: Message) -> Message:
        return message

    def with_text(self, message: Message, text: str) -> Message:
        return msgspec.structs.replace(message, content=(*message.content, Text(text)))

    def text(self, text: str) -> Message:
        return Message("user", (Text(text),))

    def with_cache_markers(self, request: list[Any], record: int | None, *, listed: bool) -> list[Any]:  # noqa: ARG002
        return request  # the backends of orch set markers

    def as_user(self, message: Message) -> Message:
        return message  # the backends of orch convert system messages

    def tool(self, name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "description": description, "input_schema": schema}


FORMAT: Final = _OrchFormat()
