"""Decides whether to compact a conversation, and where to cut the conversation. This module does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from orch_protocol.agent.spec import CompactionSpec
from orch_protocol.core.messages import Message, ToolResult, ToolUse
from orch_protocol.session.entries import CompactionReason, CompactionWriter
from orch_protocol.session.tree import CompactionDone

from ..conversation.turns import is_answered, turns_of
from ..session.visible_messages import VisibleMessage

__all__ = [
    "CRITICAL",
    "CompactionCut",
    "is_critical",
    "line_of",
    "max_request_tokens",
    "plan_compaction",
    "requested_cut",
    "safe_cuts",
    "summary_tokens",
    "turn_cut",
]

CRITICAL: Final = 95
"""Percentage of the context window. Above this percentage, orch may also cut a running turn.

If a limit in tokens applies, the percentage is scaled by the ratio of this limit to `pct` of the window.
"""
MIN_SHARE: Final = 5
"""A cut must free at least one fifth of the request. Otherwise the next compaction would soon be necessary."""
KEPT_SHARE: Final = 4
MAX_KEPT: Final = 20_000
SUMMARY_SHARE: Final = 10
MIN_SUMMARY: Final = 100
MAX_SUMMARY: Final = 4_000


WHY: Final[dict[CompactionReason, str]] = {
    "size": "the conversation had grown too long",
    "refused": "the conversation was refused as too long",
    "asked": "it was requested",
    "hook": "a hook requested the compaction",
}
BY: Final[dict[CompactionWriter, str]] = {
    "model": "a model's summary",
    "extract": "what was asked and answered",
    "hook": "a hook's summary",
}


class CompactionCut(Struct, frozen=True):
    """A cut that replaces the first `stop` visible messages. `within` is True if the cut lies inside a turn.

    `summary` is the maximum length of the summary in tokens.
    """

    stop: int
    within: bool = False
    summary: int = MIN_SUMMARY


def summary_tokens(threshold: int, room: int | None = None) -> int:
    """Return the maximum length of a summary if conversations are compacted at `threshold` tokens.

    `room` is the number of tokens for all messages. None means that all of `threshold` is for messages.
    """
    most = min(threshold // SUMMARY_SHARE, MAX_SUMMARY)
    return max(MIN_SUMMARY, most if room is None else min(most, room // KEPT_SHARE))


def requested_cut(
    items: Sequence[VisibleMessage[Any]],
    size: Callable[[Message], int],
    rules: CompactionSpec,
    *,
    tokens: int,
    context_messages: int = 0,
) -> CompactionCut | None:
    """Return the cut for a requested compaction of a conversation of `tokens` tokens, or None if a cut would free
    nothing.

    The last turns stay as the rules require. If there are no earlier turns, the cut lies inside the last turn.
    """
    cuts = safe_cuts(items, context_messages)
    if not cuts:
        return None
    messages = [item.message for item in items]
    suffix_sizes, room = _suffix_sizes(messages, size), summary_tokens(tokens)
    stop = turn_cut(messages, rules.keep_turns)
    if stop in cuts and suffix_sizes[context_messages] - suffix_sizes[stop] > room:
        return CompactionCut(stop, summary=room)
    limit = min(tokens // KEPT_SHARE, MAX_KEPT)
    stop = next((place for place in cuts if suffix_sizes[place] <= limit), cuts[-1])
    within = not is_answered(messages) and stop not in [turn.start for turn in turns_of(messages)]
    return CompactionCut(stop, within, room) if suffix_sizes[context_messages] - suffix_sizes[stop] > room else None


def max_request_tokens(rules: CompactionSpec, window: int, tokens: int, *, refusals: int = 0) -> int:
    """Return the maximum estimated tokens of a request.

    `refusals` counts the refusals of this request. The first refusal means that the estimate was too low, so the
    maximum is at most that estimate. Each further refusal halves it.
    """
    threshold = rules.compaction_threshold(window) or tokens
    return min(threshold, tokens) >> (refusals - 1) if refusals else threshold


def is_critical(tokens: int, rules: CompactionSpec, window: int) -> bool:
    """Return whether a request of `tokens` tokens is so large that the running turn may be cut."""
    return tokens * rules.pct >= rules.compaction_threshold(window) * max(CRITICAL, rules.pct)


def plan_compaction(
    items: Sequence[VisibleMessage[Any]],
    size: Callable[[Message], int],
    rules: CompactionSpec,
    *,
    tokens: int,
    window: int,
    context_messages: int = 0,
    refusals: int = 0,
) -> CompactionCut | None:
    """Return the cut that is necessary now, or None if no cut is necessary or none would help.

    `tokens` is the size of the next request, and `window` the context window of the model (0 means unknown). The first
    `context_messages` messages always stay. `refusals` is the number of times that the provider refused the request
    as too long. A request that cannot fit is shortened even if the cut frees little.
    """
    threshold = max_request_tokens(rules, window, tokens, refusals=refusals)
    is_too_long = refusals > 0 or 0 < window < tokens
    is_urgent = is_too_long or is_critical(tokens, rules, window)
    if not is_urgent and (tokens < threshold or len(items) - context_messages < rules.min_messages):
        return None
    cuts = safe_cuts(items, context_messages)
    if not cuts:
        return None
    messages = [item.message for item in items]
    suffix_sizes = _suffix_sizes(messages, size)
    room = max(0, threshold - max(0, tokens - suffix_sizes[context_messages]))
    summary = summary_tokens(threshold, room)

    def freed(stop: int) -> int:
        return suffix_sizes[context_messages] - suffix_sizes[stop] - summary

    stop = turn_cut(messages, rules.keep_turns)
    if stop in cuts and _is_worth(freed(stop), tokens) and not (is_urgent and tokens - freed(stop) >= threshold):
        return CompactionCut(stop, summary=summary)
    if not is_urgent:
        return None
    limit = min(threshold // KEPT_SHARE, MAX_KEPT, max(0, room - summary))
    stop = next((place for place in cuts if suffix_sizes[place] <= limit), cuts[-1])
    if _is_worth(freed(stop), tokens) or (is_too_long and freed(stop) > 0):
        return CompactionCut(stop, stop not in [turn.start for turn in turns_of(messages)], summary)
    return None


def safe_cuts(items: Sequence[VisibleMessage[Any]], context_messages: int = 0) -> list[int]:
    """Return the positions in `items` before which the conversation may be cut, ascending.

    A cut never separates a call from its result, and never separates messages of the same entry. At least one message
    stays between the first `context_messages` messages and a cut.
    """
    answered = {block.tool_use_id: place for place, block in _blocks(items) if isinstance(block, ToolResult)}
    open_until = 0
    cuts = []
    for place, item in enumerate(items):
        if place > context_messages and place >= open_until and item.first != items[place - 1].first:
            cuts.append(place)
        for block in item.message.content:
            if isinstance(block, ToolUse):
                open_until = max(open_until, answered.get(block.id, 0) + 1)
    return cuts


def line_of(done: CompactionDone) -> str:
    """Return a one-line description of a compaction."""
    before, after = done.tokens_before, done.tokens_after
    return f"{WHY[done.reason]}: {before:,} tokens are {after:,} now, by {BY[done.writer]}"


def turn_cut(messages: Sequence[Message], keep: int) -> int:
    """Return the start of the last `keep` turns that contain a response, or 0 if there are no earlier turns."""
    turns = turns_of(messages)
    done = [turn for turn in turns if turn.body < turn.stop]
    return done[-keep].start if len(done) > keep else 0


def _suffix_sizes(messages: Sequence[Message], size: Callable[[Message], int]) -> list[int]:
    """Return a list of sizes. Item `n` is the total size of the messages from position `n` to the end."""
    suffix_sizes = [0] * (len(messages) + 1)
    for place in range(len(messages) - 1, -1, -1):
        suffix_sizes[place] = suffix_sizes[place + 1] + size(messages[place])
    return suffix_sizes


def _blocks(items: Sequence[VisibleMessage[Any]]) -> list[tuple[int, Any]]:
    return [(place, block) for place, item in enumerate(items) for block in item.message.content]


def _is_worth(freed: int, tokens: int) -> bool:
    return freed * MIN_SHARE >= tokens
