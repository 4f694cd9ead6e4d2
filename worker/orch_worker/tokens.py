"""Sizes of messages in tokens, estimated, and cutting text down to size."""

from __future__ import annotations

from typing import Final

from orch_protocol.messages import Block, Image, Message, Text, Thinking, ToolResult, ToolUse

__all__ = ["CHARS_PER_TOKEN", "clip", "message_tokens", "text_tokens"]

CHARS_PER_TOKEN: Final = 4
IMAGE_CHARS: Final = 1600 * CHARS_PER_TOKEN
ROOM_FOR_NOTE: Final = 120


def text_tokens(text: str) -> int:
    """Return about how many tokens `text` is, from its length alone."""
    return -(-len(text) // CHARS_PER_TOKEN)


def message_tokens(message: Message) -> int:
    """Return about how many tokens `message` is."""
    return -(-sum(map(_chars, message.content)) // CHARS_PER_TOKEN)


def _chars(block: Block) -> int:
    match block:
        case Text(text):
            return len(text)
        case Thinking(thinking):
            return len(thinking)
        case Image():
            return IMAGE_CHARS
        case ToolUse(name=name, input=input):
            return len(name) + len(repr(input))
        case ToolResult(content=content):
            return sum(map(_chars, content))
        case _:
            return len(repr(block.raw))


def clip(text: str, limit: int, hint: str) -> str:
    """Return `text` in at most `limit` characters: head and tail, and between them how much was left out and `hint`.

    A limit too small for head, tail and note keeps the head alone.
    """
    if len(text) <= limit:
        return text
    room = limit - ROOM_FOR_NOTE - len(hint)
    if room < ROOM_FOR_NOTE:
        return text[: max(limit, 0)]
    head, tail = room * 2 // 3, room // 3
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} of {len(text):,} characters left out: {hint} ...]\n{text[-tail:]}"
