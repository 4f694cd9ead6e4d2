"""Messages as text: for readers, and for models that have no tools to go with the calls in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from orch_protocol.core.messages import Block, Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse

from .tokens import clip
from .turns import calls_of

__all__ = ["fit_texts", "render_block", "render_message", "render_turn", "split_text", "turn_pieces"]

RESULT_CHARS: Final = 4_000
LEAST_CHARS: Final = 200
MOST_PIECES: Final = 16
SEPARATOR: Final = "\n\n"
HINT: Final = "it is on record whole"


def render_message(message: Message) -> str:
    """Return all of one message for a reader, results in their place and whole."""
    return "\n".join([f"## {message.role}", *map(render_block, message.content)])


def render_block(block: Block) -> str:
    """Return one block for a reader: a call as its name and arguments, a result as its text."""
    match block:
        case Text(text) | Thinking(text):
            return text
        case ToolUse(name=name, input=input):
            return f"[tool_use: {name}({json.dumps(input, ensure_ascii=False, default=str)})]"
        case ToolResult(content=content):
            text = "\n".join(map(render_block, content))
            return f"[tool_result: {text}]"
        case Image():
            return "[image]"
        case Opaque(raw=raw):
            return f"[{raw.get('type', 'block') if isinstance(raw, dict) else 'block'}]"


def render_turn(messages: Sequence[Message]) -> str:
    """Return `messages` for a reader: a heading for each, calls with their results below them, long results cut.

    A result stands once, at its call. Messages without any text of their own are left out.
    """
    return SEPARATOR.join(_rendered(messages))


def turn_pieces(messages: Sequence[Message], most: int) -> list[str]:
    """Return `messages` for a model to read, in at most 16 pieces of at most `most` characters.

    One message is at most one piece. What does not fit is cut, the longest messages first: the number of requests
    about a conversation is bounded.
    """
    room = most * MOST_PIECES // 2  # a cut between messages leaves a piece at least half full
    parts = [clip(part, most, HINT) for part in _rendered(messages)]
    return split_text(
        clip(SEPARATOR.join(fit_texts(parts, room - len(SEPARATOR) * len(parts), HINT)), room, HINT), most
    )


def _rendered(messages: Sequence[Message]) -> list[str]:
    """Return each message that has a text of its own."""
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
    """Return `texts` within `room` characters together, but each with at least 200: the longest are cut first.

    `hint` says in each cut text where the rest is.
    """
    if sum(map(len, texts)) <= room:
        return list(texts)
    # The largest size for one text at which all of them fit.
    low, high = LEAST_CHARS, max(map(len, texts))
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(len(text), middle) for text in texts) <= room:
            low = middle
        else:
            high = middle - 1
    return [clip(text, low, hint) for text in texts]


def split_text(text: str, most: int) -> list[str]:
    """Return what `render_turn` made in pieces of at most `most` characters, cut between messages where that can be."""
    found: list[str] = []
    while len(text) > most:
        cut = text.rfind("\n\n## ", most // 2, most)
        cut = cut if cut > 0 else most
        found.append(text[:cut])
        text = text[cut:].lstrip("\n")
    return [*found, text] if text else found
