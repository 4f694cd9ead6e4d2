"""A conversation as strict providers take it, whatever was appended, and whoever answered before. Pure."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from msgspec import Struct

from orch_protocol.core.messages import Block, Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse
from orch_protocol.core.text import scrub

__all__ = ["SYSTEM_NOTE", "ProviderRequirements", "arrange", "whole"]

NO_RESULT: Final = "No result is on record: the call may have taken effect, or not."
STRAY_RESULT: Final = "[The result of a call that is not on record:]"
NO_START: Final = "[The beginning of this conversation is not on record.]"
NO_IMAGE: Final = "[An image was here; this model takes none.]"
NO_OUTPUT: Final = "(no output)"
SYSTEM_NOTE: Final = "[A note of the system:]"
"""Begins a system message that is sent as the user's, to servers that take none after the first message."""

Role = Literal["user", "assistant", "system"]


class ProviderRequirements(Struct, frozen=True):
    """What one provider takes: its own name, the ids of calls, whether images, whether late system messages."""

    provider: str
    ids: re.Pattern[str]
    images: bool = True
    system: bool = True


class _MessageGroup(Struct):
    role: Role
    blocks: list[Block]


def arrange(messages: Sequence[Message], wants: ProviderRequirements) -> list[Message]:
    """Return the conversation so that a strict provider accepts it.

    It begins with a user's message, and the roles of users and assistants alternate. No message or text is empty. Each
    call is answered once, in call order, first thing in the next message. Ids of calls are unique and as wanted;
    reasoning and opaque blocks are the provider's own. Empty if nothing is left to say.
    """
    turns = _answered(_alternating(_fitting(messages, wants)), wants.ids)
    return [Message(turn.role, tuple(turn.blocks)) for turn in turns]


def whole(text: str) -> str:
    """Return `text` as every encoding carries it: halves of a character that came apart are put together again."""
    if text.isascii():
        return text
    joined: str = scrub(text)
    if joined is not text and joined != text:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined


def _fitting(messages: Sequence[Message], wants: ProviderRequirements) -> Iterator[_MessageGroup]:
    """Yield what of each message the provider takes; nothing for a message of which it takes nothing."""
    for message in messages:
        blocks = [fit for block in message.content if (fit := _fit(block, wants)) is not None]
        if message.role == "system":
            blocks = [block for block in blocks if isinstance(block, Text)]
        if not blocks:
            continue
        if message.role == "system" and not wants.system:
            yield _MessageGroup("user", [Text(SYSTEM_NOTE), *blocks])
        else:
            yield _MessageGroup(message.role, blocks)


def _fit(block: Block, wants: ProviderRequirements) -> Block | None:
    match block:
        case Text(text):
            return block if text.strip() else None
        case Image():
            return block if wants.images else Text(NO_IMAGE)
        case Thinking(provider=provider) | Opaque(provider=provider):
            return block if provider == wants.provider else None
        case ToolResult(id, content, is_error):
            parts = [fit for part in content if isinstance(fit := _fit(part, wants), Text | Image)]
            return (
                block
                if parts and parts == list(content)
                else ToolResult(id, tuple(parts) or (Text(NO_OUTPUT),), is_error)
            )
        case _:
            return block


def _alternating(fitting: Iterator[_MessageGroup]) -> list[_MessageGroup]:
    """Return turns of alternating roles; a system message never parts calls from their results."""
    turns: list[_MessageGroup] = []
    held: list[_MessageGroup] = []
    last: _MessageGroup | None = None  # that was no system message
    for turn in fitting:
        if turn.role == "system":
            (held if last is not None and last.role == "assistant" else turns).append(turn)
        elif last is not None and last.role == turn.role:
            last.blocks += turn.blocks
        else:
            if last is None and turn.role == "assistant":
                turns.append(_MessageGroup("user", [Text(NO_START)]))
            turns.append(turn)
            if turn.role == "user":
                turns += held
                held = []
            last = turn
    return turns + held


def _answered(turns: Sequence[_MessageGroup], pattern: re.Pattern[str]) -> Iterator[_MessageGroup]:
    """Yield `turns` with exactly the calls of each assistant's turn answered in the next, under ids that fit."""
    ids = _CallIds(pattern)
    calls: list[tuple[str, str]] = []
    for turn in turns:
        if turn.role == "user":
            turn.blocks = _results_first(turn.blocks, calls)
            calls = []
        elif calls:
            yield _MessageGroup("user", _results_first([], calls))
            calls = []
        if turn.role == "assistant":
            for place, block in enumerate(turn.blocks):
                if isinstance(block, ToolUse):
                    calls.append((block.id, ids.new(block.id)))
                    if calls[-1][1] != block.id:
                        turn.blocks[place] = ToolUse(calls[-1][1], block.name, block.input)
        yield turn
    if calls:
        yield _MessageGroup("user", _results_first([], calls))


def _results_first(blocks: Sequence[Block], calls: Sequence[tuple[str, str]]) -> list[Block]:
    """Return `blocks` with the results of `calls` (old id, new id) in front, and any other result as text."""
    open_calls = Counter(old for old, _ in calls)
    results: defaultdict[str, list[ToolResult]] = defaultdict(list)
    rest: list[Block] = []
    for block in blocks:
        if not isinstance(block, ToolResult):
            rest.append(block)
        elif open_calls[block.tool_use_id]:
            open_calls[block.tool_use_id] -= 1
            results[block.tool_use_id].append(block)
        else:
            rest += [Text(STRAY_RESULT), *block.content]
    answers: list[Block] = []
    for old, new in calls:
        result = results[old].pop(0) if results[old] else ToolResult(old, (Text(NO_RESULT),), is_error=True)
        answers.append(result if new == old else ToolResult(new, result.content, result.is_error))
    return answers + rest


class _CallIds:
    """Gives each call an id that fits and that no other call has, the same one each time the conversation is sent."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._taken: set[str] = set()

    def new(self, id: str) -> str:
        """Return the id for the next call named `id`."""
        fits, number = id if self._pattern.fullmatch(id) else "", 0
        while not fits or fits in self._taken:
            number += 1
            fits = "call_" + hashlib.sha256(f"{id}\n{number}".encode("utf-8", "replace")).hexdigest()[:24]
        self._taken.add(fits)
        return fits
