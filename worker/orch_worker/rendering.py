"""Messages as text: for readers, and for models that have no tools to go with the calls in them."""

from __future__ import annotations

import json

from orch_protocol.messages import Block, Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse

__all__ = ["render_block", "render_message"]


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
