"""Message formats of providers and of orch.

Each format converts plain messages to orch messages and back without loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, check_images, images_in

from .base import (
    UNCOPYABLE,
    Format,
    convert_message,
    decode_message,
    encode_message,
    request_with,
    role_of,
    to_json_data,
)

__all__ = [
    "FORMATS",
    "ORCH_FORMAT",
    "TRANSCRIPT_FORMAT",
    "UNCOPYABLE",
    "Format",
    "convert_message",
    "decode_message",
    "detect",
    "encode_message",
    "format_named",
    "read_messages",
    "request_with",
    "role_of",
    "to_json_data",
]

FORMATS: Final = {
    "anthropic": "orch.archival.adapters.anthropic",
    "openai": "orch.archival.adapters.openai",
    "responses": "orch.archival.adapters.responses",
    "orch": "orch.archival.adapters.base",
}
"""The module that implements each format."""

ORCH_FORMAT: Final = "orch"

TRANSCRIPT_FORMAT: Final = "anthropic"
"""The format of the messages in transcripts of coding assistants.

These transcripts have one or more rows for each message.
"""


ANTHROPIC_BLOCKS: Final = ("tool_use", "tool_result", "thinking")
"""Endings of block types, also of tools that run on the server, such as `web_search_tool_result`."""


def format_named(name: str) -> Format:
    """Return the format `name`. Raises ConfigError if there is no such format."""
    module = FORMATS.get(name)
    if module is None:
        raise ConfigError(f"unknown message format {name!r}: choose one of {', '.join(FORMATS)}")
    format: Format = import_module(module).FORMAT
    return format


def detect(messages: Sequence[Any]) -> Format:
    """Return the format of `messages`.

    If `messages` have a feature that only one format has, return that format. Otherwise return the format of chat
    completions.
    """
    for message in messages:
        if isinstance(message, dict) and message.get("type") in ("function_call", "function_call_output", "reasoning"):
            return format_named("responses")
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and (str(block.get("type")).endswith(ANTHROPIC_BLOCKS) or "source" in block):
                return format_named("anthropic")
    return format_named("openai")


def read_messages(messages: Sequence[Any], what: str = "messages") -> tuple[Message, ...]:
    """Convert a list of messages of any format to orch messages.

    The list may contain orch messages. The format of the other messages is detected. `what` is the name of the list in
    errors. Raises ConfigError with the position of an invalid message or of a message with an invalid image.
    """
    raws = [
        raw if isinstance(raw, Message) else to_json_data(raw, f"{what}[{index}]") for index, raw in enumerate(messages)
    ]
    format = detect(raws)
    converted: list[Message] = []
    for index, raw in enumerate(raws):
        try:
            message = raw if isinstance(raw, Message) else format.read(raw)
            for image in images_in(message.content):  # one by one: requests contain only as many as fit
                check_images([image])
            converted.append(message)
        except ConfigError as error:
            raise ConfigError(f"{what}[{index}]: {error}") from None
    return tuple(converted)
