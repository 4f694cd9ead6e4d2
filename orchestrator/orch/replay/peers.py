"""What other programs and APIs do with a long conversation, with their published parameters.

The docs page `guides/replay.md` names the source of each parameter. The length of a summary is published nowhere: each
summary has 3,000 tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, tool_uses, user
from orch_worker.conversation.archive_text import edited_paths, message_text
from orch_worker.conversation.stubs import summary_message

from .policies import Nothing, ReplaySetting, filler_text

__all__ = ["ApiClearing", "ApiCompaction", "ClaudeCode", "Compacting", "HistoryFile", "Masking", "Pi"]

SUMMARY: Final = 3_000
"""The tokens of a summary of the whole conversation."""
CLEARED: Final = "[cleared]"


class Compacting(Nothing):
    """Replaces all but the last 20,000 tokens by a summary when the context window is 85 % full.

    The request for the summary reads the conversation from the prompt cache. A subclass changes when this happens,
    what is kept, and what the summary costs.
    """

    def before(self, context: list[Message], charge: Callable[[float], None]) -> list[Message]:
        live = self.setting.scale.beside + self.setting.scale.sizes(context)
        if live <= self.limit(context):
            return context
        sizes = [self.setting.scale.size(message) for message in context]
        cut = self.cut(context, sizes)
        if sum(sizes[:cut]) <= SUMMARY:
            return context
        charge(self.cost(context[:cut], live))
        self.collapses += 1
        return [*self.replacement(context[:cut]), *context[cut:]]

    def limit(self, context: Sequence[Message]) -> float:  # noqa: ARG002
        """Return the largest request, in tokens, that is sent without compaction."""
        return 0.85 * self.setting.window

    def cut(self, context: Sequence[Message], sizes: Sequence[int]) -> int:
        """Return the index of the first message that is kept."""
        cut, kept = len(context), 0
        while cut and kept + sizes[cut - 1] <= 20_000:
            cut -= 1
            kept += sizes[cut]
        return _whole_from(context, cut)

    def cost(self, removed: Sequence[Message], live: int) -> float:  # noqa: ARG002
        """Return the cost of the summary in units. The request before had `live` tokens."""
        prices = self.setting.prices
        return live * prices.read + SUMMARY * prices.output

    def replacement(self, removed: Sequence[Message]) -> list[Message]:  # noqa: ARG002
        """Return the messages that replace `removed`."""
        return [summary_message(filler_text(SUMMARY, self.setting.scale.estimator))]


class HistoryFile(Compacting):
    """Compaction that also writes the removed messages to a text file. The agent searches the file with `grep`."""

    def __init__(self, setting: ReplaySetting) -> None:
        super().__init__(setting)
        self._text = ""

    def replacement(self, removed: Sequence[Message]) -> list[Message]:
        self._text += "".join(f"{message_text(message)}\n" for message in removed)
        return [*super().replacement(removed), user("The conversation so far is in the file history.txt.")]

    def recall(self, item: str) -> str:
        at = self._text.find(item)
        if at < 0:
            return ""
        start, end = self._text.rfind("\n", 0, at) + 1, self._text.find("\n", at + len(item))
        return self._text[start:end]


class ClaudeCode(Compacting):
    """The automatic compaction of Claude Code.

    It begins 33,000 tokens before the end of the window: 20,000 for the answer and 13,000 as a buffer. The summary
    replaces everything. The five files that were read or changed last follow it; a file of more than 5,000 tokens is
    only named.
    """

    def __init__(self, setting: ReplaySetting) -> None:
        super().__init__(setting)
        self._files: dict[str, str] = {}

    def limit(self, context: Sequence[Message]) -> float:  # noqa: ARG002
        return max(self.setting.window - 33_000, self.setting.window / 2)

    def cut(self, context: Sequence[Message], sizes: Sequence[int]) -> int:  # noqa: ARG002
        return len(context)

    def replacement(self, removed: Sequence[Message]) -> list[Message]:
        for path, text in _files_in(removed):
            before = self._files.pop(path, "")
            self._files[path] = text or before
        last = list(self._files.items())[-5:]
        self._files = dict(last)
        size = self.setting.scale.estimator.text
        shown = [f"{path}\n{text}" if size(text) <= 5_000 else path for path, text in reversed(last)]
        return [*super().replacement(removed), *map(user, shown)]


class Pi(Compacting):
    """The compaction of pi.

    It begins 16,384 tokens before the end of the window, before a prompt. During a turn, it begins when the window is
    full. At least the last 20,000 tokens are kept. A separate request without a cache summarizes the rest as text, in
    which tool results are cut to 2,000 characters.
    """

    def limit(self, context: Sequence[Message]) -> float:
        window = self.setting.window
        is_prompt = bool(context) and not any(isinstance(block, ToolResult) for block in context[-1].content)
        return max(window - 16_384, window / 2) if is_prompt else window

    def cut(self, context: Sequence[Message], sizes: Sequence[int]) -> int:
        cut, kept = len(context), 0
        while cut and kept < 20_000:
            cut -= 1
            kept += sizes[cut]
        return _whole_from(context, cut)

    def cost(self, removed: Sequence[Message], live: int) -> float:  # noqa: ARG002
        prices, size = self.setting.prices, self.setting.scale.estimator.message
        return sum(size(_clipped(message, 2_000)) for message in removed) * prices.fresh + SUMMARY * prices.output


class ApiCompaction(Compacting):
    """The compaction of the Anthropic API: at 150,000 input tokens, a summary replaces the whole conversation."""

    def limit(self, context: Sequence[Message]) -> float:  # noqa: ARG002
        return min(150_000, self.setting.window)

    def cut(self, context: Sequence[Message], sizes: Sequence[int]) -> int:  # noqa: ARG002
        return len(context)


class ApiClearing(Nothing):
    """The clearing of tool results of the Anthropic API: above 100,000 input tokens, all results but the last three.

    The program goes on to send the whole conversation, and the API clears it for each request. The whole conversation
    therefore decides about the limit, and results are cleared one by one from then on.
    """

    def __init__(self, setting: ReplaySetting) -> None:
        super().__init__(setting)
        self._results = _Results()
        self._cleared_tokens = 0

    def before(self, context: list[Message], charge: Callable[[float], None]) -> list[Message]:  # noqa: ARG002
        size = self.setting.scale.size
        self._results.read(context)
        whole = self.setting.scale.beside + self.setting.scale.sizes(context) + self._cleared_tokens
        if whole <= min(100_000, self.setting.window) or len(self._results.open) <= 3:
            return context
        edited = list(context)
        for place, id in self._results.take(3):
            message = _cleared(edited[place], id)
            self._cleared_tokens += size(edited[place]) - size(message)
            edited[place] = message
        self.collapses += 1
        return edited


class Masking(Nothing):
    """Clears all tool results except the last 10, whenever this frees 20,000 tokens."""

    def __init__(self, setting: ReplaySetting) -> None:
        super().__init__(setting)
        self._results = _Results()

    def before(self, context: list[Message], charge: Callable[[float], None]) -> list[Message]:  # noqa: ARG002
        size = self.setting.scale.size
        self._results.read(context)
        edited: dict[int, Message] = {}
        for place, id in self._results.open[:-10]:
            edited[place] = _cleared(edited.get(place, context[place]), id)
        if sum(size(context[place]) - size(message) for place, message in edited.items()) < 20_000:
            return context
        self._results.take(10)
        self.collapses += 1
        return [edited.get(place, message) for place, message in enumerate(context)]


class _Results:
    """The tool results of a conversation that are not cleared, as indexes of messages and ids of calls."""

    def __init__(self) -> None:
        self.open: list[tuple[int, str]] = []
        self._read = 0

    def read(self, context: Sequence[Message]) -> None:
        """Add the results of the messages that follow those of the call before."""
        for place in range(self._read, len(context)):
            blocks = context[place].content
            self.open += [(place, block.tool_use_id) for block in blocks if isinstance(block, ToolResult)]
        self._read = len(context)

    def take(self, kept: int) -> list[tuple[int, str]]:
        """Remove and return all but the last `kept` results."""
        taken, self.open = self.open[:-kept], self.open[-kept:]
        return taken


def _whole_from(context: Sequence[Message], cut: int) -> int:
    """Return the first index from `cut` on whose message is not the result of a call before it."""
    while cut < len(context) and any(isinstance(block, ToolResult) for block in context[cut].content):
        cut += 1
    return cut


_READS: Final = re.compile(r"read|view", re.IGNORECASE)


def _files_in(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield each file that was read or changed, in order, with the text that was read, "" for a change."""
    reads: dict[str, str] = {}
    for message in messages:
        for call in tool_uses(message):
            yield from ((path, "") for path in edited_paths(call))
            if _READS.search(call.name) and (path := _path_in(call)):
                reads[call.id] = path
        for block in message.content:
            if isinstance(block, ToolResult) and block.tool_use_id in reads:
                text = "\n".join(part.text for part in block.content)
                yield reads[block.tool_use_id], text


def _path_in(call: ToolUse) -> str:
    values: list[Any] = [call.input.get(key) for key in ("file_path", "path", "filename", "file")]
    return next((value for value in values if isinstance(value, str)), "")


def _clipped(message: Message, limit: int) -> Message:
    """Return `message` with each tool result cut to `limit` characters."""
    if not any(isinstance(block, ToolResult) for block in message.content):
        return message
    blocks = (
        msgspec.structs.replace(block, content=(Text("\n".join(part.text for part in block.content)[:limit]),))
        if isinstance(block, ToolResult)
        else block
        for block in message.content
    )
    return Message(message.role, tuple(blocks))


def _cleared(message: Message, id: str) -> Message:
    """Return `message` without the content of the result of the call `id`."""
    blocks = (
        msgspec.structs.replace(block, content=(Text(CLEARED),))
        if isinstance(block, ToolResult) and block.tool_use_id == id
        else block
        for block in message.content
    )
    return Message(message.role, tuple(blocks))
