"""What the gateway needs to know of a model API. Each API implements `Api` and `Rewriter` in a module of its own.

Messages of a conversation are called items, because in the Responses API calls and results are items of their own.
Items are plain JSON data in the format of the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Raw, Struct

from orch_worker.backends.formats.reported_usage import ReportedUsage
from orch_worker.backends.formats.server_sent_events import ServerSentEvent

__all__ = [
    "Api",
    "Fields",
    "Operation",
    "RecallCall",
    "Reply",
    "Rewriter",
    "decode_value",
    "encode_event",
    "encode_value",
    "parse_arguments",
    "without_nulls",
]

Operation = Literal["respond", "count"]
"""What a request asks for: a response, or the number of its tokens."""

Fields = Mapping[str, Any]
"""The fields of a request's body, without the conversation."""


class RecallCall(Struct, frozen=True):
    """A call of a recall tool in a response."""

    id: str
    name: str
    input: dict[str, Any]


class Reply(Struct, frozen=True):
    """A complete response of the server, as items of the conversation.

    `recalls` contains the calls of recall tools that can be answered. Other recall calls are not part of `items`.
    `client_calls` is whether the client has to answer calls too.
    """

    items: list[Any]
    recalls: tuple[RecallCall, ...] = ()
    client_calls: bool = False


class Rewriter(Protocol):
    """Hides calls of recall tools in the responses to one request of a client.

    The server's responses are merged to one response, which the client gets. Call `start` for each of them, then `feed`
    for each event of a stream, or `read` for a body.
    """

    ended: bool
    """Whether the event that ends the response of the server has arrived."""

    @property
    def is_complete(self) -> bool:
        """Whether the response of the server is complete. Some servers leave out the event that ends it."""

    @property
    def response_id(self) -> str:
        """The id with which a later request can continue the response. "" if there is none."""

    def start(self) -> None:
        """Begin the next response of the server."""

    def feed(self, event: ServerSentEvent, raw: bytes) -> bytes:
        """Return the bytes that the client gets for an event. `raw` contains the bytes of the event.

        The events at the end of the response are held back; see `finish`. Raises LookupError, TypeError or ValueError
        for an event of an unknown form.
        """

    def read(self, body: dict[str, Any]) -> None:
        """Add a response without streaming. Raises LookupError, TypeError or ValueError for an unknown form."""

    def reply(self) -> Reply:
        """Return the complete response of the server."""

    def finish(self) -> bytes:
        """Return the events at the end of the response, which were held back."""

    def body(self) -> dict[str, Any]:
        """Return the merged response for a client that does not stream."""

    def visible(self) -> list[Any]:
        """Return the items that the client will send for this response. Empty if they cannot be recognized."""

    def error_event(self, body: bytes) -> bytes:
        """Return an event that reports the error of the server in `body` to a client that already got events."""


class Api(Protocol):
    """A model API."""

    format: str
    """The name of the message format of `Archiver`."""
    conversation: str
    """The name of the field with the conversation."""
    instructions_first: bool
    """Whether messages with instructions can precede the message to which they belong."""

    def operation(self, path: str) -> Operation | None:
        """Return what a POST request to `path` asks for. None if the gateway does not change such requests."""

    def accepts(self, fields: Fields, items: Sequence[bytes]) -> bool:
        """Return whether the gateway can change the request. If not, the request passes unchanged."""

    def session(self, headers: Mapping[str, str], fields: Fields) -> str:
        """Return the name that the client gives its session, "" if it gives none. `headers` have lower-case names."""

    def continued(self, fields: Fields) -> str:
        """Return the id of the stored response that the request continues, "" if there is none."""

    def tool_names(self, fields: Fields) -> set[str]:
        """Return the names of the client's tools."""

    def with_tools(
        self, fields: Mapping[str, bytes], items: Sequence[bytes], tools: Sequence[Any]
    ) -> list[bytes] | None:
        """Return the encoded `items` with the definitions `tools` if the client defines its tools in items.

        Return None if the definitions belong into the field "tools".
        """

    def without_markers(self, item: Any) -> Any:
        """Return `item` without cache markers. An item without markers is returned as it is."""

    def identity(self, item: Any) -> Any:
        """Return the part of `item` that stays the same when a client sends the item again."""

    def result_items(self, recalls: Sequence[RecallCall], texts: Sequence[str]) -> list[Any]:
        """Return the items that answer `recalls`."""

    def join(self, results: Sequence[Any], item: Any) -> list[Any]:
        """Return the items `results`, which answer recall calls, and `item`, the client's next item, in their order."""

    def call_ids(self, item: Any) -> list[str]:
        """Return the ids of the calls in `item`, if a server may refuse a response that `item` merges with others."""

    def unmerged(self, item: Any, last: Any) -> Any:
        """Return `item`, which merges several responses, in a form that is valid without them. `last` is the last."""

    def with_instructions(self, item: bytes, instructions: Sequence[Any]) -> list[bytes]:
        """Return the encoded `item` with `instructions`, which are items, as one or more encoded items."""

    def marked(
        self, fields: Mapping[str, bytes], items: Sequence[bytes], stable: int, *, recalled: bool
    ) -> list[bytes]:
        """Return the encoded `items` of a request with cache markers.

        `stable` is the index of the last item that stays until the next fold. `recalled` is whether the request ends
        with the result of a recall.
        """

    def reported(self, usage: dict[str, Any]) -> ReportedUsage:
        """Return the token counts in the field `usage` of a response."""

    def rewriter(self, names: set[str]) -> Rewriter:
        """Return a rewriter for the responses to one request. `names` are the names of the recall tools."""


def decode_value(raw: bytes | Raw) -> Any:
    """Return a JSON value. Raises msgspec.DecodeError."""
    return msgspec.json.decode(raw)


def encode_value(value: Any) -> bytes:
    """Return `value` as JSON."""
    return msgspec.json.encode(value)


def encode_event(data: dict[str, Any], name: str = "") -> bytes:
    """Return a server-sent event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + encode_value(data) + b"\n\n"


def parse_arguments(text: Any) -> dict[str, Any]:
    """Return the arguments of a call. Arguments that are not a JSON object become an empty object."""
    try:
        value = msgspec.json.decode(text) if isinstance(text, (str, bytes)) else text
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """Return `value` without fields that are null, because clients may leave such fields out."""
    return {name: each for name, each in value.items() if each is not None}
