"""A conversation taken apart: turns, calls with their results, groups that must stay together. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, text_of, tool_uses

from .framing import is_project, question_in

__all__ = [
    "CallWithResult",
    "TurnSpan",
    "calls_of",
    "first_line",
    "groups_of",
    "is_answered",
    "is_prompt",
    "is_unfinished",
    "responses",
    "task_of",
    "turns_of",
]

TASK_CHARS = 80


class CallWithResult(Struct, frozen=True):
    """A tool call and its result; `result` is None while there is none."""

    id: str
    name: str
    input: dict[str, Any]
    result: str | None = None
    is_error: bool = False

    @property
    def completed(self) -> bool:
        """Whether a result is there."""
        return self.result is not None


class TurnSpan(Struct, frozen=True):
    """One turn: messages `start` to `body` are what was asked, `body` to `stop` what was done about it."""

    start: int
    body: int
    stop: int


def is_prompt(message: Message) -> bool:
    """Return whether `message` asks something, rather than answering calls."""
    return message.role == "user" and not any(isinstance(block, ToolResult) for block in message.content)


def turns_of(messages: Sequence[Message]) -> list[TurnSpan]:
    """Return the turns of `messages`, in order. System messages before the first belong to none, nor does what is
    told of the project there: it stays.

    A turn begins with a prompt, or several in a row; a conversation that begins otherwise has a first turn without.
    """
    starts: list[tuple[int, int]] = []
    acted = True
    for place, message in enumerate(messages):
        if not starts and (message.role == "system" or is_project(message)):
            continue
        if is_prompt(message) or (message.role == "system" and not acted):
            if acted:
                starts.append((place, place + 1))
            else:
                starts[-1] = (starts[-1][0], place + 1)
            acted = False
        else:
            if not starts:
                starts.append((place, place))
            acted = True
    ends = [*starts[1:], (len(messages), 0)]
    return [TurnSpan(start, body, end) for (start, body), (end, _) in zip(starts, ends, strict=False)]


def calls_of(messages: Sequence[Message]) -> list[CallWithResult]:
    """Return the calls in `messages`, in order, each with its result if one is there."""
    results: dict[str, ToolResult] = {}
    for message in messages:
        for block in message.content:
            if isinstance(block, ToolResult):
                results.setdefault(block.tool_use_id, block)
    found = []
    for use in (use for message in messages if message.role == "assistant" for use in tool_uses(message)):
        result = results.get(use.id)
        if result is None:
            found.append(CallWithResult(use.id, use.name, use.input))
        else:
            text = "\n".join(part.text if isinstance(part, Text) else "[image]" for part in result.content)
            found.append(CallWithResult(use.id, use.name, use.input, text, result.is_error))
    return found


def is_unfinished(messages: Sequence[Message]) -> bool:
    """Return whether `messages` end with an assistant message while a call of theirs has no result."""
    if not messages or messages[-1].role != "assistant":
        return False
    return any(not call.completed for call in calls_of(messages))


def is_answered(messages: Sequence[Message]) -> bool:
    """Return whether `messages` end with an answer: an assistant message that asks for nothing more."""
    return bool(messages) and messages[-1].role == "assistant" and not tool_uses(messages[-1])


def groups_of(messages: Sequence[Message], start: int, stop: int) -> list[int]:
    """Return where the complete groups of `messages[start:stop]` end: after a response with all results of its calls.

    A cut at such a place parts no call from its result.
    """
    ends = []
    waiting: set[str] = set()
    for place in range(start, stop):
        message = messages[place]
        for block in message.content:
            if isinstance(block, ToolUse):
                waiting.add(block.id)
            elif isinstance(block, ToolResult):
                waiting.discard(block.tool_use_id)
        follows = place + 1 < stop and messages[place + 1].role == "assistant"
        if not waiting and follows and message.role != "assistant":
            ends.append(place + 1)
    return ends


def responses(messages: Sequence[Message]) -> int:
    """Return how many model responses are in `messages`: assistant messages in a row are one."""
    return sum(
        message.role == "assistant" and (not place or messages[place - 1].role != "assistant")
        for place, message in enumerate(messages)
    )


def first_line(text: str) -> str:
    """Return the first line of `text` in at most 80 characters; "(no prompt)" when it says nothing."""
    line = text.strip().partition("\n")[0].strip()
    if not line:
        return "(no prompt)"
    return line if len(line) <= TASK_CHARS else line[: TASK_CHARS - 3] + "..."


def task_of(messages: Sequence[Message]) -> str:
    """Return what the prompts `messages` ask, as one line; of an agent's first, the query alone."""
    said = "\n".join(text_of(message) for message in messages if message.role == "user")
    return first_line(question_in(said))
