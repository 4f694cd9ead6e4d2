"""The archiving rule of the `seed` profile for finished turns. Pure functions; they never raise."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.messages import Message, StopReason
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.conversation.turns import calls_of, is_unfinished

__all__ = ["TriggerDecision", "TurnFacts", "evaluate_trigger", "facts_of"]


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


def facts_of(
    messages: Sequence[Message],
    estimator: TokenEstimator,
    *,
    stop_reason: StopReason | None = None,
    depth: int = 0,
) -> TurnFacts:
    """Return the properties of the turn `messages`. Tool calls without results count too."""
    return TurnFacts(
        messages=len(messages),
        tool_calls=len(calls_of(messages)),
        tokens=estimator.messages(messages),
        max_turns=stop_reason == "max_turns",
        unfinished=is_unfinished(messages),
        depth=depth,
    )


def evaluate_trigger(facts: TurnFacts, trigger: TriggerConfig) -> TriggerDecision:
    """Return whether to archive the turn.

    The turn must reach a threshold, and no other rule may prevent archiving.
    """
    if not facts.messages:
        return TriggerDecision(False, "nothing happened")
    if facts.depth >= trigger.depth_cap:
        return TriggerDecision(False, f"the depth is {facts.depth}, the limit is {trigger.depth_cap}")
    if facts.max_turns and trigger.on_max_turns:
        reason = "it ended at max_turns"
    elif facts.tool_calls >= trigger.tool_call_threshold:
        reason = f"{facts.tool_calls} tool calls, the threshold is {trigger.tool_call_threshold}"
    elif facts.tokens >= trigger.token_threshold:
        reason = f"{facts.tokens} tokens, the threshold is {trigger.token_threshold}"
    else:
        return TriggerDecision(
            False, f"{facts.tool_calls} tool calls and {facts.tokens} tokens are below the thresholds"
        )
    if facts.unfinished:
        return TriggerDecision(False, "a tool call has no result yet")
    return TriggerDecision(True, reason)
