"""Converts stored messages into a conversation that providers accept. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orch_protocol.core.messages import Block, Message, Text, ToolResult, tool_uses, user

__all__ = ["HistoryBuilder", "valid_conversation", "without_lost"]

LOST_RESULT = "The process ended before a result was recorded: the call may have taken effect, or not."
LIVE = "run_python"
LOST_LIVE = (
    "The Python process ended before a result of this was recorded: the code may have ended it, and may have taken "
    "effect, or not. Names bound before are gone; what was stored under handles is kept."
)
LOST_CALL = "[The result of a call that is not on record:]"
LOST_START = "[The beginning of this conversation is not on record.]"


def without_lost(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return `messages` without the error results at the end that stand for calls that are still running."""
    if not messages or messages[-1].role != "user":
        return tuple(messages)
    blocks = tuple(block for block in messages[-1].content if not _is_lost(block))
    return (*messages[:-1], *([Message("user", blocks)] if blocks else []))


def _is_lost(block: Block) -> bool:
    return isinstance(block, ToolResult) and block.content in ((Text(LOST_RESULT),), (Text(LOST_LIVE),))


class HistoryBuilder:
    """Builds a conversation that providers accept. Stored messages are added one at a time."""

    def __init__(self) -> None:
        self._done: list[Message] = []
        self._run: list[Message] = []
        """The last messages, which have the same role and will become one message."""
        self._calls: list[str] = []
        """Ids of the calls in the last assistant message."""
        self._open: list[str] = []
        """Ids of the calls in the last assistant message that have no result yet."""
        self._live: set[str] = set()
        """Ids of the calls in the last assistant message that run code in the agent's process."""

    def add(self, message: Message) -> None:
        """Add the next message. A message without content is ignored."""
        if not message.content:
            return
        if message.role == "user":
            message = self._match(message)
        elif self._open:
            self._done += self._tail()
            self._run, self._open = [], []
        if self._run and self._run[0].role != message.role:
            self._done.append(self._joined(self._run))
            self._run = []
        if message.role == "assistant":
            self._calls = [call.id for call in tool_uses(message)]
            self._live = {call.id for call in tool_uses(message) if call.name == LIVE}
            self._open = list(self._calls)
            if not self._run and all(earlier.role == "system" for earlier in self._done):
                self._done.append(user(LOST_START))
        self._run.append(message)

    def messages(self) -> tuple[Message, ...]:
        """Return the conversation so far, with an error result for each call without a result."""
        return (*self._done, *self._tail())

    def _tail(self) -> list[Message]:
        if not self._open:
            return [self._joined(self._run)] if self._run else []
        texts = [Text(LOST_LIVE if id in self._live else LOST_RESULT) for id in self._open]
        results = (ToolResult(id, (text,), is_error=True) for id, text in zip(self._open, texts, strict=True))
        lost = Message("user", tuple(results))
        if self._run[0].role == "user":
            return [self._joined([*self._run, lost])]
        return [self._joined(self._run), lost]

    def _match(self, message: Message) -> Message:
        """Return `message`. A result without an open call becomes text."""
        if not any(type(block) is ToolResult for block in message.content):
            return message
        blocks: list[Block] = []
        for block in message.content:
            if not isinstance(block, ToolResult):
                blocks.append(block)
            elif block.tool_use_id in self._open:
                self._open.remove(block.tool_use_id)
                blocks.append(block)
            else:
                blocks += [Text(LOST_CALL), *block.content]
        return Message("user", tuple(blocks))

    def _joined(self, run: list[Message]) -> Message:
        """Return the messages of `run` as one message.

        In a user message, the results come first, in the order of their calls, as providers require.
        """
        role = run[0].role
        blocks = [block for message in run for block in message.content]
        if role == "user":
            blocks.sort(key=self._rank)
        return Message(role, tuple(blocks))

    def _rank(self, block: Block) -> int:
        return self._calls.index(block.tool_use_id) if isinstance(block, ToolResult) else len(self._calls)


def valid_conversation(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return `messages` in a form that providers accept. See `Session.messages`."""
    history = HistoryBuilder()
    for message in messages:
        history.add(message)
    return history.messages()
