"""Conversations for tests of records: turns with calls and results."""

from __future__ import annotations

from typing import Any

from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user

__all__ = ["Talk"]


class Talk:
    """A conversation that grows by one step at a time. `messages` contains all messages so far."""

    def __init__(self, *asked: str) -> None:
        self.messages: list[Message] = [user(text) for text in asked]

    def call(self, name: str, input: dict[str, Any], result: str = "", *, error: bool = False, said: str = "") -> Talk:
        """Add a call of the tool `name` after the text `said`, and its result."""
        id = f"c{len(self.messages)}"
        text = (Text(said),) if said else ()
        self.messages.append(Message("assistant", (*text, ToolUse(id, name, input))))
        self.messages.append(Message("user", (ToolResult(id, (Text(result),), error),)))
        return self

    def run(self, command: str, result: str = "", *, error: bool = False, said: str = "", **input: Any) -> Talk:
        """Add a shell command and its output."""
        return self.call("Bash", {"command": command, **input}, result, error=error, said=said)

    def edit(self, path: str, old: str = "a", new: str = "b", *, said: str = "") -> Talk:
        """Add an edit of a file."""
        input = {"file_path": path, "old_string": old, "new_string": new}
        return self.call("Edit", input, f"The file {path} has been updated.", said=said)

    def write(self, path: str, content: str = "x", *, said: str = "") -> Talk:
        """Add a new file."""
        return self.call("Write", {"file_path": path, "content": content}, f"File created at: {path}", said=said)

    def read(self, path: str, text: str = "1\tx", **input: Any) -> Talk:
        """Add a file that is read."""
        return self.call("Read", {"file_path": path, **input}, text)

    def say(self, text: str) -> Talk:
        """Add a text of the agent."""
        self.messages.append(assistant(text))
        return self

    def hear(self, text: str) -> Talk:
        """Add a text of the user."""
        self.messages.append(user(text))
        return self
