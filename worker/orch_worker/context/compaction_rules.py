"""Whether a conversation is to be compacted, and where it may be cut. Data in, data out."""

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
    "asked_for",
    "is_critical",
    "line_of",
    "max_request_tokens",
    "plan_compaction",
    "safe_cuts",
    "summary_tokens",
    "turn_cut",
]

CRITICAL: Final = 95
"""At so much of the window a running turn is cut too, if nothing else can go."""
LEAST_SHARE: Final = 5
"""A cut that does not free a fifth of the request is not worth a summary: the next one would be due soon."""
KEPT_SHARE: Final = 4
MOST_KEPT: Final = 20_000
SUMMARY_SHARE: Final = 10
LEAST_SUMMARY: Final = 100
MOST_SUMMARY: Final = 4_000


WHY: Final[dict[CompactionReason, str]] = {
    "size": "the conversation had grown too long",
    "refused": "the conversation was refused as too long",
    "asked": "somebody asked for it",
    "hook": "a hook wanted it shorter",
}
BY: Final[dict[CompactionWriter, str]] = {
    "model": "a model's summary",
    "extract": "what was asked and answered",
    "hook": "a hook's summary",
}


class CompactionCut(Struct, frozen=True):
    """The first `stop` messages that are shown give way; `within` says that this is in the middle of a turn."""

    stop: int
    within: bool = False


def summary_tokens(at: int) -> int:
    """Return how long a summary may be where conversations are compacted at `at` tokens."""
    return max(LEAST_SUMMARY, min(at // SUMMARY_SHARE, MOST_SUMMARY))


def asked_for(
    items: Sequence[VisibleMessage[Any]],
    size: Callable[[Message], int],
    rules: CompactionSpec,
    *,
    tokens: int,
    told: int = 0,
) -> CompactionCut | None:
    """Return what of a conversation of `tokens` gives way when somebody wants that, None: that would free nothing.

    The last turns stay as far as the rules say; where there are no others, the end of the last one.
    """
    cuts = safe_cuts(items, told)
    if not cuts:
        return None
    messages = [item.message for item in items]
    behind, room = _behind(messages, size), summary_tokens(tokens)
    stop = turn_cut(messages, rules.keep_turns)
    if stop in cuts and behind[told] - behind[stop] > room:
        return CompactionCut(stop)
    most = min(tokens // KEPT_SHARE, MOST_KEPT)
    stop = next((place for place in cuts if behind[place] <= most), cuts[-1])
    within = not is_answered(messages) and stop not in [turn.start for turn in turns_of(messages)]
    return CompactionCut(stop, within) if behind[told] - behind[stop] > room else None


def max_request_tokens(rules: CompactionSpec, window: int, tokens: int, *, refused: bool) -> int:
    """Return how large a request may be, in tokens as they are estimated. Of one that was `refused` and thought to be
    small enough, that is its own size: estimates run low there."""
    at = rules.at(window) or tokens
    return min(at, tokens) if refused else at


def is_critical(tokens: int, rules: CompactionSpec, window: int) -> bool:
    """Return whether a request of `tokens` is so large that a running turn may be cut."""
    return tokens * rules.pct >= rules.at(window) * max(CRITICAL, rules.pct)


def plan_compaction(
    items: Sequence[VisibleMessage[Any]],
    size: Callable[[Message], int],
    rules: CompactionSpec,
    *,
    tokens: int,
    window: int,
    told: int = 0,
    refused: bool = False,
) -> CompactionCut | None:
    """Return what of a conversation is to give way now, None: nothing that would help.

    `tokens` is the size of its next request, `window` what the model takes (0: nobody knows). The first `told` messages
    stay whatever is cut. With `refused` the request was too long for its model, whatever was thought of it.
    """
    at = max_request_tokens(rules, window, tokens, refused=refused)
    pressing = refused or is_critical(tokens, rules, window)
    if not pressing and (tokens < at or len(items) - told < rules.least):
        return None
    cuts = safe_cuts(items, told)
    if not cuts:
        return None
    messages = [item.message for item in items]
    behind, room = _behind(messages, size), summary_tokens(at)

    def freed(stop: int) -> int:
        return behind[told] - behind[stop] - room

    stop = turn_cut(messages, rules.keep_turns)
    if stop in cuts and _is_worth(freed(stop), tokens) and not (pressing and tokens - freed(stop) >= at):
        return CompactionCut(stop)
    if not pressing:
        return None
    most = min(at // KEPT_SHARE, MOST_KEPT)
    stop = next((place for place in cuts if behind[place] <= most), cuts[-1])
    if _is_worth(freed(stop), tokens) or (refused and freed(stop) > 0):
        return CompactionCut(stop, within=stop not in [turn.start for turn in turns_of(messages)])
    return None


def safe_cuts(items: Sequence[VisibleMessage[Any]], told: int = 0) -> list[int]:
    """Return before which of `items` a conversation may be cut, ascending.

    Never between a call and its result, nor between messages that stand for the same entries; and behind the first
    `told`, and something more.
    """
    answered = {block.tool_use_id: place for place, block in _blocks(items) if isinstance(block, ToolResult)}
    open_until = 0
    cuts = []
    for place, item in enumerate(items):
        if place > told and place >= open_until and item.first != items[place - 1].first:
            cuts.append(place)
        for block in item.message.content:
            if isinstance(block, ToolUse):
                open_until = max(open_until, answered.get(block.id, 0) + 1)
    return cuts


def line_of(done: CompactionDone) -> str:
    """Return what a compaction did, as a line for people."""
    before, after = done.tokens_before, done.tokens_after
    return f"{WHY[done.reason]}: {before:,} tokens are {after:,} now, by {BY[done.writer]}"


def turn_cut(messages: Sequence[Message], keep: int) -> int:
    """Return where the last `keep` turns begin in which something was done, 0 when there are no more than these."""
    turns = turns_of(messages)
    done = [turn for turn in turns if turn.body < turn.stop]
    return done[-keep].start if len(done) > keep else 0


def _behind(messages: Sequence[Message], size: Callable[[Message], int]) -> list[int]:
    """Return, for each place in `messages` and their end, how much stands from there on."""
    behind = [0] * (len(messages) + 1)
    for place in range(len(messages) - 1, -1, -1):
        behind[place] = behind[place + 1] + size(messages[place])
    return behind


def _blocks(items: Sequence[VisibleMessage[Any]]) -> list[tuple[int, Any]]:
    return [(place, block) for place, item in enumerate(items) for block in item.message.content]


def _is_worth(freed: int, tokens: int) -> bool:
    return freed * LEAST_SHARE >= tokens
