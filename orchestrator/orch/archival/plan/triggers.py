"""Whether a finished turn is to be archived by the seed's rule. Data in, data out; never raises."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.messages import Message, StopReason
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.conversation.turns import calls_of, is_unfinished

__all__ = ["TriggerDecision", "TurnFacts", "evaluate_trigger", "facts_of"]


class TurnFacts(Struct, frozen=True):
    """What the rule needs to know of a turn. `depth` is its agent's, 0 for the one a person talks to."""

    messages: int
    tool_calls: int = 0
    tokens: int = 0
    max_turns: bool = False
    unfinished: bool = False
    depth: int = 0
    holder: bool = False


class TriggerDecision(Struct, frozen=True):
    """Whether to archive, and why or why not."""

    archive: bool
    reason: str


def facts_of(
    messages: Sequence[Message],
    estimator: TokenEstimator,
    *,
    stop_reason: StopReason | None = None,
    depth: int = 0,
    holder: bool = False,
) -> TurnFacts:
    """Return the facts of the turn `messages`. Calls count as they are issued, answered or not."""
    return TurnFacts(
        messages=len(messages),
        tool_calls=len(calls_of(messages)),
        tokens=estimator.messages(messages),
        max_turns=stop_reason == "max_turns",
        unfinished=is_unfinished(messages),
        depth=depth,
        holder=holder,
    )


def evaluate_trigger(facts: TurnFacts, trigger: TriggerConfig) -> TriggerDecision:
    """Return whether the turn is to be archived: a threshold reached (the limit itself counts), nothing in the way."""
    if not facts.messages:
        return TriggerDecision(False, "nothing happened")
    if facts.holder:
        return TriggerDecision(False, "an archive is not archived")
    if facts.depth >= trigger.depth_cap:
        return TriggerDecision(False, f"depth {facts.depth}, the cap is {trigger.depth_cap}")
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
