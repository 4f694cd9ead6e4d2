"""Checks that the messages of a caller form a conversation: roles of blocks, and results after their calls."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, ToolResult, ToolUse

from .conversation_items import ConversationItem

__all__ = ["MessageOrder"]


class MessageOrder:
    """Checks conversations. Messages that were checked before, at the same place, are not checked again."""

    def __init__(self) -> None:
        self._items: Sequence[ConversationItem] = ()
        self._waiting: dict[str, int] = {}
        """The number of calls without a result, by id. Some servers use an id again after its result."""

    def check(self, items: Sequence[ConversationItem]) -> None:
        """Raise ConfigError with the position of the first message that no model API accepts at its place."""
        checked = len(self._items) if len(items) >= len(self._items) and all(map(is_, self._items, items)) else 0
        waiting = dict(self._waiting) if checked else {}
        for index in range(checked, len(items)):
            _check(items[index].message, index, waiting)
        self._items, self._waiting = items, waiting


def _check(message: Message, index: int, waiting: dict[str, int]) -> None:
    for block in message.content:
        if isinstance(block, ToolUse):
            if message.role != "assistant":
                raise ConfigError(
                    f"message {index}: a message with the role {message.role!r} contains the call {block.id!r}; "
                    "only assistant messages contain calls"
                )
            waiting[block.id] = waiting.get(block.id, 0) + 1
        elif isinstance(block, ToolResult):
            if message.role != "user":
                raise ConfigError(
                    f"message {index}: a message with the role {message.role!r} contains the result of the call "
                    f"{block.tool_use_id!r}; results are messages of the user or of a tool"
                )
            if not waiting.get(block.tool_use_id):
                raise ConfigError(
                    f"message {index}: a result for the call {block.tool_use_id!r}, but no earlier message contains "
                    "this call without a result. Pass the conversation that the last `fold` returned, with the new "
                    "messages at its end"
                )
            waiting[block.tool_use_id] -= 1
