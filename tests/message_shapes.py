"""Conversations in the message formats of providers, for tests that run with each format."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["SHAPES", "Blocks", "Chat", "Items", "Shape", "work"]


class Blocks:
    """Messages with a role and a list of blocks. Tool results are in user messages."""

    name = "anthropic"

    def user(self, text: str) -> dict[str, Any]:
        """Return a prompt."""
        return {"role": "user", "content": text}

    def assistant(self, text: str) -> dict[str, Any]:
        """Return an answer."""
        return {"role": "assistant", "content": [{"type": "text", "text": text}]}

    def calls(self, *calls: tuple[str, str, dict[str, Any]], text: str = "") -> dict[str, Any]:
        """Return a response with the calls `calls`. Each call is a tuple of id, tool and input."""
        blocks = [{"type": "text", "text": text}] if text else []
        uses = [{"type": "tool_use", "id": id, "name": name, "input": input} for id, name, input in calls]
        return {"role": "assistant", "content": [*blocks, *uses]}

    def results(self, *results: tuple[str, str], is_error: bool = False) -> list[dict[str, Any]]:
        """Return the messages that contain `results`. Each result is a tuple of id and text."""
        blocks = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in results]
        return [{"role": "user", "content": [block | ({"is_error": True} if is_error else {}) for block in blocks]}]

    def text(self, message: dict[str, Any]) -> str:
        """Return the text of `message`."""
        content = message["content"]
        return content if isinstance(content, str) else "\n".join(block.get("text", "") for block in content)


class Chat:
    """Messages with a role and a string. Calls are a field of a message, and each result is a separate message."""

    name = "openai"

    def user(self, text: str) -> dict[str, Any]:
        """Return a prompt."""
        return {"role": "user", "content": text}

    def assistant(self, text: str) -> dict[str, Any]:
        """Return an answer."""
        return {"role": "assistant", "content": text}

    def calls(self, *calls: tuple[str, str, dict[str, Any]], text: str = "") -> dict[str, Any]:
        """Return a response with the calls `calls`. Each call is a tuple of id, tool and input."""
        uses = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(input)}}
            for id, name, input in calls
        ]
        return {"role": "assistant", "content": text or None, "tool_calls": uses}

    def results(self, *results: tuple[str, str], is_error: bool = False) -> list[dict[str, Any]]:
        """Return the messages that contain `results`. Each result is a tuple of id and text."""
        lead = "Error: " if is_error else ""
        return [{"role": "tool", "tool_call_id": id, "content": lead + text} for id, text in results]

    def text(self, message: dict[str, Any]) -> str:
        """Return the text of `message`."""
        content = message["content"]
        return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content or [])


class Items(Chat):
    """A list of items. Messages have a role; calls and results have their own types."""

    name = "responses"

    def turn(self, number: int, steps: int, size: int) -> list[dict[str, Any]]:
        """Return a turn that reads `steps` files, with reasoning before each call, and then answers."""
        items = [self.user(f"Look into module {number}")]
        for step in range(steps):
            id = f"call_{number}_{step}"
            items += [
                {"type": "reasoning", "id": f"r_{id}", "summary": [], "encrypted_content": "zz"},
                {"type": "function_call", "call_id": id, "name": "read_file", "arguments": json.dumps({"n": step})},
                {"type": "function_call_output", "call_id": id, "output": f"needle_{number}_{step} " + "word " * size},
            ]
        content = [{"type": "output_text", "text": "Fine.", "annotations": []}]
        return [*items, {"type": "message", "role": "assistant", "id": f"m_{number}", "content": content}]


Shape = Blocks | Chat
SHAPES: tuple[Shape, ...] = (Blocks(), Chat())


def work(shape: Shape, number: int, steps: int = 3, size: int = 400) -> list[dict[str, Any]]:
    """Return a turn that reads `steps` files of `size` characters each, and then answers."""
    messages = [shape.user(f"Look into module {number}")]
    for step in range(steps):
        id = f"call_{number}_{step}"
        messages.append(
            shape.calls((id, "read_file", {"path": f"src/mod_{number}/part_{step}.py"}), text=f"step {step}")
        )
        messages += shape.results(
            (id, f"needle_{number}_{step} took {number}{step}.5 ms\n" + "words, more;  " * (size // 14))
        )
    return [*messages, shape.assistant(f"Module {number} is fine, {number + 1000} lines.")]
