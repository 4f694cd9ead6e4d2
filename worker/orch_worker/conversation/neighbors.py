"""The line that a search shows beside a hit: the outcome of a call, the call of a result, or the reply to a prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from orch_protocol.core.messages import Message, Text, Thinking, ToolResult, ToolUse, tool_uses

from .archive_text import EntryLines, clip_line, edited_paths, entry_lines
from .records import outcomes
from .records.call_arguments import command_of
from .records.prose import cut_at_sentence, flat, shorten
from .turns import is_prompt

__all__ = ["beside"]

TEXT_CHARS: Final = 110
REPLY_CHARS: Final = 200
"""A question is often asked again, and the reply answers it."""
MAX_DISTANCE: Final = 20
"""Maximum number of messages between a call and its result."""


_NO_OUTPUT: Final = re.compile(r"\W*no output\W*", re.IGNORECASE)


def beside(
    messages: Sequence[Message | None], index: int, lines: EntryLines, line: int, number: Callable[[int], int]
) -> str:
    """Return the line beside a hit on the line `line` of `messages[index]`. Return "" if nothing is known.

    `lines` is the text of this message, and `line` counts from 0. `number` maps an index of `messages` to the number of
    the entry, 0 if unknown. Damaged messages are None.
    """
    message = messages[index]
    if message is None:
        return ""
    block = _block_at(message, lines, line)
    match block:
        case ToolUse():
            return _outcome(messages, index, block, number)
        case ToolResult():
            return _call(messages, index, block, number)
    if is_prompt(message):
        return _reply(messages, index, number)
    return ""


def _block_at(message: Message, lines: EntryLines, line: int) -> ToolUse | ToolResult | None:
    """Return the call or result at `line`, or the only call below the text at `line`."""
    id = next((id for first, end, id in lines.calls if first <= line < end), "")
    calls = tool_uses(message)
    if not id and len(calls) == 1:
        return calls[0]
    blocks = (each for each in message.content if isinstance(each, (ToolUse, ToolResult)))
    return next(
        (each for each in blocks if id and id == (each.id if isinstance(each, ToolUse) else each.tool_use_id)), None
    )


def _outcome(messages: Sequence[Message | None], index: int, call: ToolUse, number: Callable[[int], int]) -> str:
    for later in range(index + 1, min(index + MAX_DISTANCE, len(messages))):
        for block in _blocks(messages[later]):
            if isinstance(block, ToolResult) and block.tool_use_id == call.id:
                text = _outcome_of(call, block)
                return f"-> {_entry(number(later))}{text}" if text else ""
    return ""


def _outcome_of(call: ToolUse, result: ToolResult) -> str:
    """Return what a result states: all of a short result, or the line that states the result of a command."""
    text = outcomes.clean_output("\n".join(part.text for part in result.content if isinstance(part, Text)))
    lines = [line for line in text.split("\n") if line.strip()]
    code = outcomes.exit_code_in(text)
    failed = result.is_error or bool(code)
    if edited_paths(call) and not failed:
        return ""  # the hit shows the edit
    command = command_of(call.input)
    if not lines or _NO_OUTPUT.fullmatch(text.strip()):
        return "no output" if command and outcomes.prints_findings(command) else ""
    whole = flat(" / ".join(line.strip() for line in lines)) if len(text) <= 4 * TEXT_CHARS else ""
    if whole and len(whole) <= TEXT_CHARS:
        return whole
    if failed:
        prefix = f"exit {code}: " if code else "failed: "
        return prefix + shorten(outcomes.failure_line(text), TEXT_CHARS - len(prefix))
    return shorten(outcomes.stated_result(command, text), TEXT_CHARS) if command else ""


def _call(messages: Sequence[Message | None], index: int, result: ToolResult, number: Callable[[int], int]) -> str:
    for earlier in range(index - 1, max(index - MAX_DISTANCE, -1), -1):
        for block in _blocks(messages[earlier]):
            if isinstance(block, ToolUse) and block.id == result.tool_use_id:
                head = entry_lines(Message("assistant", (block,))).lines[0].removeprefix("> ")
                return f"<- {_entry(number(earlier))}{_shown_call(head)}"
    return ""


def _shown_call(head: str) -> str:
    """Return the line of a call in its limit. The end is kept, because the command or the name of the file is there."""
    if len(head) <= TEXT_CHARS:
        return head
    name, _, rest = head.partition(" ")
    command = rest.partition("$ ")[2]
    return (
        f"{name} $ {shorten(command, TEXT_CHARS - 20)}"
        if command
        else f"{name} {clip_line(rest, TEXT_CHARS - 20, len(rest))}"
    )


def _reply(messages: Sequence[Message | None], index: int, number: Callable[[int], int]) -> str:
    for later in range(index + 1, min(index + MAX_DISTANCE, len(messages))):
        message = messages[later]
        if message is None:
            continue
        if is_prompt(message):
            break
        texts = [
            each.text if isinstance(each, Text) else each.thinking
            for each in message.content
            if isinstance(each, (Text, Thinking))
        ]
        if message.role == "assistant" and (text := flat(" ".join(texts))):
            return f"-> {_entry(number(later))}{cut_at_sentence(text, REPLY_CHARS)}"
    return ""


def _entry(number: int) -> str:
    return f"entry {number}: " if number else ""


def _blocks(message: Message | None) -> Sequence[object]:
    return () if message is None else message.content
