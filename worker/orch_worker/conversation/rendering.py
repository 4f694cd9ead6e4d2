"""Renders messages as text, for people and for models without tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from orch_protocol.core.messages import Block, Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse

from .tokens import clip
from .turns import calls_of

__all__ = ["fit_texts", "render_block", "split_text", "turn_pieces"]

RESULT_CHARS: Final = 4_000
MIN_CHARS: Final = 200
MAX_PIECES: Final = 16
SEPARATOR: Final = "\n\n"
HINT: Final = "it is on record whole"


def render_block(block: Block) -> str:
    """Return one block as text. A call becomes its name and arguments, and a result becomes its text."""
    match block:
        case Text(text) | Thinking(text):
            return text
        case Image():
            return block.text
        case ToolUse(name=name, input=input):
            return f"[tool_use: {name}({json.dumps(input, ensure_ascii=False, default=str)})]"
        case ToolResult(content=content):
            text = "\n".join(map(render_block, content))
            return f"[tool_result: {text}]"
        case Opaque(raw=raw):
            return f"[{raw.get('type', 'block') if isinstance(raw, dict) else 'block'}]"


def turn_pieces(messages: Sequence[Message], limit: int) -> list[str]:
    """Return `messages` as text for a model, in at most 16 pieces of at most `limit` characters.

    Each message has a heading; messages without text are left out. A result follows its call and is cut if it is long.
    Each message is at most as long as one piece. If the total is too long, the longest messages are cut first. So the
    number of requests per conversation is limited.
    """
    room = limit * MAX_PIECES // 2  # Pieces are split between messages, so each piece is at least half full.
    parts = [clip(part, limit, HINT) for part in _rendered(messages)]
    return split_text(
        clip(SEPARATOR.join(fit_texts(parts, room - len(SEPARATOR) * len(parts), HINT)), room, HINT), limit
    )


def _rendered(messages: Sequence[Message]) -> list[str]:
    """Return the texts of the messages that contain text."""
    results = {call.id: call.result for call in calls_of(messages)}
    parts = []
    for message in messages:
        lines = []
        for block in message.content:
            if isinstance(block, ToolUse):
                result = results.get(block.id)
                shown = "(pending)" if result is None else clip(result, RESULT_CHARS, HINT)
                lines += [render_block(block), f"[tool_result: {shown}]"]
            elif not isinstance(block, ToolResult):
                lines.append(render_block(block))
        text = "\n".join(line for line in lines if line.strip())
        if text:
            parts.append(f"## {message.role}\n{text}")
    return parts


def fit_texts(texts: Sequence[str], room: int, hint: str) -> list[str]:
    """Return `texts` within `room` characters in total, each with at least 200 characters.

    The longest texts are cut first.

    Each cut text contains `hint`, which explains where to find the rest.
    """
    if sum(map(len, texts)) <= room:
        return list(texts)
    # Find the largest limit per text with which all texts fit.
    low, high = MIN_CHARS, max(map(len, texts))
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(len(text), middle) for text in texts) <= room:
            low = middle
        else:
            high = middle - 1
    return [clip(text, low, hint) for text in texts]


def split_text(text: str, limit: int) -> list[str]:
    """Split the text of rendered messages into pieces of at most `limit` characters, between messages if possible."""
    found: list[str] = []
    while len(text) > limit:
        cut = text.rfind("\n\n## ", limit // 2, limit)
        cut = cut if cut > 0 else limit
        found.append(text[:cut])
        text = text[cut:].lstrip("\n")
    return [*found, text] if text else found
