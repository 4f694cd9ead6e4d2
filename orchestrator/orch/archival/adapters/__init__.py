"""The message shapes of providers, and our own: each format reads plain messages and writes them back unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from orch_protocol.core.errors import ConfigError

from .base import Format, convert_message, decode_message, encode_message, to_json_data, with_note

__all__ = [
    "FORMATS",
    "OWN",
    "ROWS",
    "Format",
    "convert_message",
    "decode_message",
    "detect",
    "encode_message",
    "format_named",
    "to_json_data",
    "with_note",
]

FORMATS: Final = {
    "anthropic": "orch.archival.adapters.anthropic",
    "openai": "orch.archival.adapters.openai",
    "responses": "orch.archival.adapters.responses",
    "orch": "orch.archival.adapters.base",
}
"""Each format and the module it lives in."""

OWN: Final = "orch"

ROWS: Final = "anthropic"
"""The format of the messages in the rows that a coding assistant leaves behind, one or more for each message."""


TYPED: Final = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})


def format_named(name: str) -> Format:
    """Return the format called `name`; ConfigError when there is none."""
    home = FORMATS.get(name)
    if home is None:
        raise ConfigError(f"unknown message format {name!r}: choose one of {', '.join(FORMATS)}")
    made: Format = import_module(home).FORMAT
    return made


def detect(messages: Sequence[Any]) -> Format:
    """Return the format of plain `messages`, by what only one of them has; chat messages when nothing tells."""
    for message in messages:
        if isinstance(message, dict) and message.get("type") in ("function_call", "function_call_output", "reasoning"):
            return format_named("responses")
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and (block.get("type") in TYPED or "source" in block):
                return format_named("anthropic")
    return format_named("openai")
