"""The conditions of `archival.trigger` for archiving a finished turn. Pure functions; they never raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.messages import Message, StopReason
from orch_worker.conversation.turns import calls_of, is_unfinished

__all__ = [
    "TriggerDecision",
    "TriggerLimits",
    "TurnFacts",
    "configured_only",
    "evaluate_trigger",
    "facts_of",
    "limits_of",
]

DEFAULT_TOKENS: Final = 8000
DEFAULT_TOOL_CALLS: Final = 5
NEVER: Final = 1 << 60


class TurnFacts(Struct, frozen=True):
    """Properties of a turn that the rule uses.

    `depth` is the depth of the turn's agent, 0 for a top-level agent.
    """

    messages: int
    tool_calls: int = 0
    tokens: int = 0
    max_turns: bool = False
    unfinished: bool = False
    depth: int = 0


class TriggerDecision(Struct, frozen=True):
    """Whether to archive, and the reason."""

    archive: bool
    reason: str


class TriggerLimits(Struct, frozen=True):
    """The thresholds of a trigger, with the defaults of those that are not configured."""

    tokens: int
    tool_calls: int


def limits_of(trigger: TriggerConfig) -> TriggerLimits:
    """Return the thresholds of `trigger`."""
    return TriggerLimits(
        DEFAULT_TOKENS if trigger.token_threshold is None else trigger.token_threshold,
        DEFAULT_TOOL_CALLS if trigger.tool_call_threshold is None else trigger.tool_call_threshold,
    )


def configured_only(trigger: TriggerConfig) -> TriggerConfig | None:
    """Return `trigger` without the defaults of conditions that are not configured. Return None if none is left."""
    values = trigger.on_max_turns, trigger.token_threshold, trigger.tool_call_threshold
    if not any(value is not None and value is not False for value in values):
        return None
    on_max_turns, tokens, calls = values
    return msgspec.structs.replace(
        trigger,
        on_max_turns=bool(on_max_turns),
        token_threshold=NEVER if tokens is None else tokens,
        tool_call_threshold=NEVER if calls is None else calls,
    )


def facts_of(
    messages: Sequence[Message],
    tokens: int,
    *,
    archived_calls: int = 0,
    stop_reason: StopReason | None = None,
    depth: int = 0,
) -> TurnFacts:
    """Return the properties of the turn `messages` of `tokens` tokens. Tool calls without results count too.

    `archived_calls` is the number of calls in phases of the turn that are already archived.
    """
    return TurnFacts(
        messages=len(messages),
        tool_calls=archived_calls + len(calls_of(messages)),
        tokens=tokens,
        max_turns=stop_reason == "max_turns",
        unfinished=is_unfinished(messages),
        depth=depth,
    )


def evaluate_trigger(facts: TurnFacts, trigger: TriggerConfig) -> TriggerDecision:
    """Return whether to archive the turn. Conditions that are not configured have their defaults.

    The turn must reach a threshold, and no other rule may prevent archiving.
    """
    limits = limits_of(trigger)
    if not facts.messages:
        return TriggerDecision(False, "nothing happened")
    if facts.depth >= trigger.depth_cap:
        return TriggerDecision(False, f"the depth is {facts.depth}, the limit is {trigger.depth_cap}")
    if facts.max_turns and trigger.on_max_turns is not False:
        reason = "it ended at max_turns"
    elif facts.tool_calls >= limits.tool_calls:
        reason = f"{facts.tool_calls} tool calls, the threshold is {limits.tool_calls}"
    elif facts.tokens >= limits.tokens:
        reason = f"{facts.tokens} tokens, the threshold is {limits.tokens}"
    else:
        return TriggerDecision(
            False, f"{facts.tool_calls} tool calls and {facts.tokens} tokens are below the thresholds"
        )
    if facts.unfinished:
        return TriggerDecision(False, "a tool call has no result yet")
    return TriggerDecision(True, reason)
