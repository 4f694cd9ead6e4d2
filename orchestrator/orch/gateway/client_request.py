"""A request of a client, split into its parts, and its messages split into instructions and dialog.

Clients send instructions as messages: the environment, the tools, the rules of a project. They stay in force when the
turn in which they were sent is archived, so archiving moves them and changes nothing in them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from orch_worker.backends.formats.lenient_json import decode_lenient, decode_plain, split_fields, split_items
from orch_worker.conversation.records.prose import CLIENT_INSTRUCTIONS

from ..archival.adapters import role_of
from .api import Api, encode_value

__all__ = ["ClientRequest", "Split", "asks", "conversation_key", "digest_of", "read_request", "split"]

ROLES: Final = ("system", "developer")
TEMPORARY: Final = "clear_at"
"""A field of system messages that the server shows for one turn only."""
INJECTED: Final = re.compile(rf"\s*(?:<(?:{CLIENT_INSTRUCTIONS})\b|# AGENTS\.md instructions\b)")
"""The beginning of a text that a client puts before the first prompt of the user."""

_encoder: Final = msgspec.json.Encoder(order="sorted")


class ClientRequest(Struct, frozen=True):
    """The body of a request: the encoded `items` of the conversation, and the other fields, encoded and decoded.

    `order` contains the names of all fields. `key` is the name of the conversation, `session` that of the client.
    """

    api: Api
    items: list[bytes]
    raw_fields: dict[str, bytes]
    fields: dict[str, Any]
    order: list[str]
    session: str
    key: str
    is_text: bool = False
    """Whether the conversation is a text. Then `items` contains a message with this text."""


def read_request(api: Api, headers: Mapping[str, str], body: bytes) -> ClientRequest:
    """Return the parts of a request. Raises LookupError, TypeError, ValueError or msgspec.MsgspecError."""
    raw_fields = split_fields(body)
    order = list(raw_fields)
    conversation = raw_fields.pop(api.conversation)
    is_text = conversation.startswith(b'"')
    items = [encode_value({"role": "user", "content": Raw(conversation)})] if is_text else split_items(conversation)
    fields = {name: decode_lenient(raw) for name, raw in raw_fields.items()}
    session = api.session({name.lower(): value for name, value in headers.items()}, fields)
    try:
        key = conversation_key(api, session, items)
    except (LookupError, TypeError, ValueError, AttributeError):
        key = _key(api, session, items[0].decode(errors="replace"))  # It passes unchanged, and is in the receipt.
    return ClientRequest(api, items, raw_fields, fields, order, session, key, is_text)


def conversation_key(api: Api, session: str, items: Sequence[bytes]) -> str:
    """Return the name of the folder for conversations that begin with the same item in the same session.

    Instructions before this item do not count, because a client may send others when it continues a session.
    """
    rests = (split(api.without_markers(decode_plain(item)), is_first=True).rest for item in items)
    first = next((api.identity(rest) for rest in rests if rest is not None), None)
    return _key(api, session, first)


def _key(api: Api, session: str, first: Any) -> str:
    return digest_of([api.format, session, first]).hex()[:32]


def digest_of(value: Any) -> bytes:
    """Return a hash of a JSON value that does not depend on the order of fields."""
    return hashlib.sha256(_encoder.encode(value)).digest()


class Split(Struct, frozen=True):
    """An item as its instructions and the rest. Each of them is an item, or None if there is nothing of it."""

    instructions: Any
    rest: Any


def asks(item: Any) -> bool:
    """Return whether `item` can precede the first response of a conversation."""
    return role_of(item) in ("user", *ROLES)


def split(item: Any, *, is_first: bool) -> Split:
    """Return the instructions in `item`. `is_first` is whether no response precedes `item`.

    Later user messages of clients contain notes about single turns, which are archived with their turn.
    """
    role = role_of(item)
    if role in ROLES:
        return Split(None, item) if item.get(TEMPORARY, "never") != "never" else Split(item, None)
    content = item.get("content") if is_first and role == "user" else None
    if isinstance(content, str):
        return Split(item, None) if INJECTED.match(content) else Split(None, item)
    if not isinstance(content, list) or not any(map(_is_injected, content)):
        return Split(None, item)
    own = [part for part in content if not _is_injected(part)]
    instructions = item | {"content": [part for part in content if _is_injected(part)]}
    return Split(instructions, item | {"content": own} if own else None)


def _is_injected(part: Any) -> bool:
    text = part.get("text") if isinstance(part, dict) else None
    return isinstance(text, str) and INJECTED.match(text) is not None
