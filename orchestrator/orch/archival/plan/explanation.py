"""Explains why parts of a conversation are not archived, and what has to change so that they are. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

from orch_protocol.agent.config import TriggerConfig
from orch_worker.backends.prices import Prices
from orch_worker.conversation.turns import groups_of

from ...config.archival_profiles import ArchivalRules
from .economics import Gain, expected_calls
from .plan import Candidate, ConversationView, combined_gain, is_finished, smaller_turns, without_summaries
from .triggers import configured_only, facts_of, limits_of

__all__ = ["explain"]

MAX_TURNS: Final = 8
"""The maximum number of turns for which the best set of turns is computed."""


def explain(view: ConversationView, rules: ArchivalRules, trigger: TriggerConfig, prices: Prices) -> list[str]:
    """Return the reasons why turns and phases of `view` stay in the conversation, one sentence or two each.

    The list is empty only if every turn is archived.
    """
    turns = view.turns
    open_turns = [turn for turn in turns if not view.is_archived(turn)]
    if not turns:
        return ["The conversation has no messages, so there is nothing to archive."]
    finished = [turn for turn in open_turns if is_finished(view, turn)]
    reasons: list[str] = []
    if finished and not rules.turns:
        reasons.append(f"{_stay(len(finished))} because of turns = false. Set turns = true.")
    elif finished and not trigger.depth_cap:
        reasons.append("Finished turns stay because of trigger.depth_cap = 0. Set it to 1 or more.")
    elif finished and rules.gate:
        reasons += _without_gain(view, rules, trigger, prices, len(finished))
    elif finished:
        reasons.append(_below_thresholds(view, trigger, [(turn.start, turn.stop) for turn in finished]))
    if open_turns and open_turns[-1] not in finished:
        reasons.append(_running_turn(view, rules))
    return reasons


def _without_gain(
    view: ConversationView, rules: ArchivalRules, trigger: TriggerConfig, prices: Prices, finished: int
) -> list[str]:
    reasons: list[str] = []
    candidates = [part for part in smaller_turns(view, rules) if part is not None]
    if small := finished - len(candidates):
        reasons.append(
            f"{_count(small, 'finished turn')} would not become smaller: the record of an archive takes about as many "
            "tokens as the turn. Longer turns are archived."
        )
    if candidates:
        last = candidates[-MAX_TURNS:]
        variants = (last, without_summaries(last)) if view.summaries else (last,)
        choices = [
            (combined_gain(view, rules, prices, parts[index:]), parts[index:])
            for parts in variants
            for index in range(len(parts))
        ]
        is_full = view.total_tokens > rules.high_tokens
        if paying := [chosen for gain, chosen in choices if gain.pays or is_full]:
            why = _not_saved_yet(view, rules, prices, paying)
        else:
            why = _does_not_pay(view, rules, prices, *max(choices, key=lambda each: each[0].net))
        reasons.append(
            f"{_stay(len(candidates))} because {why} Turns are archived without this comparison with gate = false, or "
            "when they reach a condition of trigger."
        )
    if (conditions := configured_only(trigger)) is not None and reasons:
        reasons.append(_below_thresholds(view, conditions, [(turn.start, turn.stop) for turn in view.turns]))
    return reasons


def _does_not_pay(
    view: ConversationView, rules: ArchivalRules, prices: Prices, gain: Gain, chosen: Sequence[Candidate]
) -> str:
    freed = sum(part.removed - part.added for part in chosen)
    calls = expected_calls(view.calls)
    later = combined_gain(view, rules, prices, chosen, calls=2 * calls)
    per_call = (later.net - gain.net) / calls
    after = f" It pays from {calls + ceil(-gain.net / per_call)} further requests on." if per_call > 0 else ""
    return (
        f"archiving costs more than it saves: for the last {len(chosen)}, which would free {freed} tokens, it costs "
        f"{gain.cost:.0f} now and saves {gain.saved:.0f} in the expected {calls} further requests (in tokens at the "
        f"price of input).{after} Above high_tokens = {rules.high_tokens} (now {view.total_tokens}), turns are "
        "archived as soon as earlier savings cover the cost."
    )


def _not_saved_yet(
    view: ConversationView, rules: ArchivalRules, prices: Prices, choices: Sequence[Sequence[Candidate]]
) -> str:
    nets = [combined_gain(view, rules, prices, chosen, calls=1).net for chosen in choices]
    cheapest = max(range(len(nets)), key=nets.__getitem__)
    account = view.account(rules, prices)
    return (
        f"what archiving has saved so far does not cover the cost yet: archiving the last {len(choices[cheapest])} "
        f"costs {-nets[cheapest]:.0f} until the next request; archiving has saved {account.saved:.0f} in this "
        f"conversation, and may cost {account.margin:.0f} more than it has saved, which is 0.4 % of the cost without "
        "archiving (in tokens at the price of input). This limit grows with each request."
    )


def _below_thresholds(view: ConversationView, trigger: TriggerConfig, spans: Sequence[tuple[int, int]]) -> str:
    facts = [facts_of(view.messages[start:stop], view.original(start, stop)) for start, stop in spans]
    tokens, calls = max(each.tokens for each in facts), max(each.tool_calls for each in facts)
    limits = limits_of(trigger)
    return (
        f"No finished turn reaches a condition of trigger: the largest has {_count(tokens, 'token')} and the busiest "
        f"{_count(calls, 'tool call')}. Lower trigger.token_threshold ({limits.tokens}) or trigger.tool_call_threshold "
        f'({limits.tool_calls}), or pass stop_reason="max_turns" for a turn that reached its limit of steps.'
    )


def _running_turn(view: ConversationView, rules: ArchivalRules) -> str:
    turn = view.turns[-1]
    if turn.body == turn.stop:
        why = "has no response yet"
    elif view.stop_reason is not None:
        why = (
            f"ended with stop_reason={view.stop_reason!r} and stays until the next prompt, so that it can be continued"
        )
    else:
        why = "has no final answer yet: append the answer before `fold`, or pass `stop_reason`"
    text = f"The last turn {why}."
    if not rules.phase:
        return f"{text} With phase = false, no part of it is archived."
    if view.total_tokens <= rules.high_tokens:
        return (
            f"{text} Its first steps are archived above high_tokens = {rules.high_tokens}; the conversation has "
            f"{view.total_tokens} tokens."
        )
    if not groups_of(view.messages, turn.body, turn.stop):
        return f"{text} Its last step stays, and there are no earlier steps."
    return f"{text} Archiving its first steps would free too few tokens, or earlier savings do not cover its cost."


def _stay(turns: int) -> str:
    return f"{_count(turns, 'finished turn')} {'stays' if turns == 1 else 'stay'}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
