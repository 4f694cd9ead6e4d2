"""What the two APIs of OpenAI have in common in the gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import DecodeError

from .api import Fields, decode_value, encode_event, encode_value

__all__ = ["OpenAiApi", "error_event", "session_of"]

SESSION_HEADERS: Final = ("session_id", "session-id", "x-session-id", "conversation_id", "x-conversation-id")
SESSION_KEYS: Final = ("session_id", "conversation_id", "thread_id")


class OpenAiApi:
    """Results are items of their own, and the servers find cached prefixes themselves."""

    instructions_first = True

    def continued(self, fields: Fields) -> str:
        response = fields.get("previous_response_id")
        return response if isinstance(response, str) else ""

    def with_instructions(self, item: bytes, instructions: Sequence[Any]) -> list[bytes]:
        return [*map(encode_value, instructions), item]

    def with_tools(
        self,
        fields: Mapping[str, bytes],  # noqa: ARG002
        items: Sequence[bytes],  # noqa: ARG002
        tools: Sequence[Any],  # noqa: ARG002
    ) -> list[bytes] | None:
        return None

    def join(self, results: Sequence[Any], item: Any) -> list[Any]:
        return [*results, item]

    def call_ids(self, item: Any) -> list[str]:  # noqa: ARG002
        return []

    def unmerged(self, item: Any, last: Any) -> Any:  # noqa: ARG002
        return item

    def marked(
        self,
        fields: Mapping[str, bytes],  # noqa: ARG002
        items: Sequence[bytes],
        stable: int,  # noqa: ARG002
        *,
        recalled: bool,  # noqa: ARG002
    ) -> list[bytes]:
        """Return `items` with the markers of the client only."""
        return list(items)


def session_of(headers: Mapping[str, str], fields: Fields) -> str:
    """Return the name that the client gives its session. Without a name, return "".

    Clients use the field for the routing of cached prompts for the session.
    """
    metadata = fields.get("metadata")
    given = [headers.get(name) for name in SESSION_HEADERS]
    given += [metadata.get(name) for name in SESSION_KEYS] if isinstance(metadata, dict) else []
    given += [fields.get("prompt_cache_key"), fields.get("user")]
    return next((value for value in given if isinstance(value, str) and value), "")


def error_event(body: bytes, name: str = "") -> bytes:
    """Return the event of a stream that reports the error in the body of a response."""
    try:
        error = decode_value(body)
    except DecodeError:
        error = None
    if not isinstance(error, dict) or "error" not in error:
        error = {"error": {"type": "server_error", "message": body.decode(errors="replace")[:2000]}}
    if name:
        details: Any = error["error"]
        error = {"type": name} | (details if isinstance(details, dict) else {"message": str(details)}) | {"type": name}
    return encode_event(error, name)
