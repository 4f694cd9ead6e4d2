"""Splits a conversation into turns, calls with results, and groups that must stay together. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from orch_protocol.core.messages import Message, ToolResult, ToolUse, text_of, tool_uses

from .framing import is_project, question_in, without_markers
from .records.prose import first_request, is_request, request_in

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
    "title_of",
    "turns_of",
]

TASK_CHARS = 80


class CallWithResult(Struct, frozen=True):
    """A tool call and its result. `result` is None if there is no result yet."""

    id: str
    name: str
    input: dict[str, Any]
    result: str | None = None
    is_error: bool = False

    @property
    def completed(self) -> bool:
        """Whether the call has a result."""
        return self.result is not None


class TurnSpan(Struct, frozen=True):
    """One turn. The prompts are the messages from `start` to `body`.

    The responses are the messages from `body` to `stop`.
    """

    start: int
    body: int
    stop: int


def is_prompt(message: Message) -> bool:
    """Return whether `message` is a user message without tool results."""
    return message.role == "user" and not any(isinstance(block, ToolResult) for block in message.content)


def turns_of(messages: Sequence[Message], first: int = 0) -> list[TurnSpan]:
    """Return the turns of `messages`, in order. A turn begins at `first`, and earlier turns are left out.

    A turn starts with one or more prompts. If a conversation does not start with a prompt, its first turn has no
    prompt. System messages and the project description at the beginning belong to no turn.
    """
    starts: list[tuple[int, int]] = []
    acted = True
    for place, message in enumerate(islice(messages, first, None), first):
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
    """Return the calls in `messages`, in order, each with its result if there is one."""
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
            text = "\n".join(part.text for part in result.content)
            found.append(CallWithResult(use.id, use.name, use.input, text, result.is_error))
    return found


def is_unfinished(messages: Sequence[Message]) -> bool:
    """Return whether `messages` end with an assistant message that has a call without a result."""
    if not messages or messages[-1].role != "assistant":
        return False
    return any(not call.completed for call in calls_of(messages))


def is_answered(messages: Sequence[Message]) -> bool:
    """Return whether `messages` end with an answer: an assistant message without calls."""
    return bool(messages) and messages[-1].role == "assistant" and not tool_uses(messages[-1])


def groups_of(messages: Sequence[Message], start: int, stop: int) -> list[int]:
    """Return the end positions of complete groups in `messages[start:stop]`.

    A group is a response with the results of all its calls. A cut at the end of a group never separates a call from its
    result.
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
    """Return the number of model responses in `messages`. Adjacent assistant messages count as one response."""
    return sum(
        message.role == "assistant" and (not place or messages[place - 1].role != "assistant")
        for place, message in enumerate(messages)
    )


def first_line(text: str) -> str:
    """Return the first line of `text` in at most 80 characters. Return "(no prompt)" if `text` is empty."""
    line = text.strip().partition("\n")[0].strip()
    if not line:
        return "(no prompt)"
    return line if len(line) <= TASK_CHARS else line[: TASK_CHARS - 3] + "..."


def task_of(messages: Sequence[Message]) -> str:
    """Return the requests of the user in `messages` as one line, without the task of the agent.

    Return "" if there is no request. Interruptions, notifications, and words such as "continue" are no requests.
    """
    asked = "\n".join(request_in(text) for text in _questions(messages) if is_request(text))
    return first_line(asked) if asked else ""


def title_of(messages: Sequence[Message]) -> str:
    """Return the first words that the user wrote in `messages`, as one line. Return "" if the user wrote nothing."""
    asked = first_request(_questions(messages))
    return first_line(asked) if asked else ""


def _questions(messages: Sequence[Message]) -> Iterator[str]:
    return (without_markers(question_in(text_of(message))) for message in messages if message.role == "user")
