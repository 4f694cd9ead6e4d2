"""Plans what to archive next, with the reason. No I/O.

Candidates are finished turns, past phases of a running turn, and excess records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec
from msgspec import Struct, field

from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.archives import ArchiveKind
from orch_protocol.core.messages import Message, StopReason, tool_uses
from orch_worker.backends.prices import Prices
from orch_worker.conversation.turns import TurnSpan, groups_of, is_answered, is_unfinished, turns_of

from ...config.archival_profiles import ArchivalRules
from .economics import Account, Change, Gain, cost_without_archiving, estimate_gain, expected_calls, summary_cost
from .rollup import RecordSize, era_tokens, phase_budget, possible_merges, record_tokens
from .triggers import configured_only, evaluate_trigger, facts_of

__all__ = [
    "MIN_RECEIPT",
    "MIN_TOKENS_FOR_SUMMARY",
    "SUMMARY_TOKENS",
    "ArchiveRange",
    "Candidate",
    "ConversationView",
    "JudgedTurns",
    "all_archivable_turns",
    "bounded_tokens",
    "combined_gain",
    "due_upgrades",
    "first_uncached_message",
    "gains_of_suffixes",
    "is_finished",
    "is_over_bound",
    "list_tokens",
    "next_era",
    "next_phases",
    "next_range_over_bound",
    "smaller_turns",
    "turns_to_archive",
    "without_summaries",
]

HEAD_TOKENS: Final = 25
ERA_PROMPT_TOKENS: Final = 15
SUMMARY_TOKENS: Final = 220
MIN_TOKENS_FOR_SUMMARY: Final = 1500
MIN_RECEIPT: Final = 30
CALL_TOKENS: Final = 12
LIST_TOKENS: Final = 70
ENTRY_TOKENS: Final = 36
URGENT_RATIO: Final = 1.5
UNFINISHED_STOP_REASONS: Final = frozenset({"error", "cancelled", "timeout", "budget", "aborted"})
"""Stop reasons of turns that the user may want to continue."""


class JudgedTurns:
    """What the rules found about the first turns of a conversation, for one set of rules.

    Only turns that are followed by another turn are judged, because the last turn can grow.
    """

    def __init__(self, below_triggers: int = 0, smaller: Sequence[Candidate | None] = ()) -> None:
        self.below_triggers = below_triggers
        """The number of turns at the start that no trigger archives."""
        self.smaller = list(smaller)
        """For each turn at the start, the result of `_smaller_if_archived`."""

    def first(self, turns: int) -> JudgedTurns:
        """Return the results for the first `turns` turns."""
        return JudgedTurns(min(self.below_triggers, turns), self.smaller[:turns])


class ConversationView(Struct):
    """A conversation in the form that the rules use.

    `tokens` contains the size of each message, and `own_tokens` the size without records of archives. `levels` maps
    the position of each record to the level of the record. `calls` is the number of model calls so far, including
    calls in archived turns. `archive_count` is the number of archives that the list of archived turns names.
    `other_tokens` is the number of tokens of a request that are not in messages. `original_tokens` contains the
    size of what each message stands for, with the content of archives and without the prompts that stay before an
    archive. If it is empty, `tokens` is used. `original_calls` contains the number of model calls that each message
    stands for. `archived_calls` maps the position of each prompt with archived phases to the number of tool calls
    in these phases. `saved` is what archiving had saved when the conversation had `saved_calls` calls, in uncached
    input tokens. `known_turns` are the turns of `messages` if they are known. `judged` keeps results of the rules
    for turns that do not change any more.
    """

    messages: Sequence[Message]
    tokens: Sequence[int]
    own_tokens: Sequence[int]
    levels: dict[int, int]
    calls: int
    archive_count: int = 0
    other_tokens: int = 0
    summaries: bool = False
    stop_reason: StopReason | None = None
    original_tokens: Sequence[int] = ()
    archived_calls: dict[int, int] = {}
    original_calls: Sequence[int] = ()
    saved: float = 0.0
    saved_calls: int = 0
    known_turns: Sequence[TurnSpan] | None = None
    judged: JudgedTurns = field(default_factory=lambda: JudgedTurns())

    def account(self, rules: ArchivalRules, prices: Prices) -> Account:
        """Return what archiving has saved up to now, and what the conversation would have cost without archiving."""
        original = self.original_tokens or self.tokens
        since = self.calls - self.saved_calls if self.archive_count else 0
        removed = sum(original) - sum(self.tokens) - list_tokens(rules, self.archive_count)
        saved = self.saved + since * removed * prices.read
        calls = self.original_calls or [int(message.role == "assistant") for message in self.messages]
        answered = [
            tokens * (message.role == "assistant" and index not in self.levels)
            for index, (message, tokens) in enumerate(zip(self.messages, self.tokens, strict=True))
        ]
        without = cost_without_archiving(zip(original, calls, answered, strict=True), self.other_tokens, prices)
        return Account(saved, without)

    def original(self, start: int, stop: int) -> int:
        """Return the number of tokens that the messages `start` to `stop` stand for."""
        return sum((self.original_tokens or self.tokens)[start:stop])

    @property
    def turns(self) -> Sequence[TurnSpan]:
        """The turns of the conversation, in order."""
        if self.known_turns is None:
            self.known_turns = turns_of(self.messages)
        return self.known_turns

    @property
    def total_tokens(self) -> int:
        """The total number of tokens of all messages."""
        return sum(self.tokens)

    @property
    def last_record(self) -> int:
        """The position of the last message with a record of an archive. The position is -1 if there is none."""
        in_prompts = (index for index, own in enumerate(self.own_tokens) if own < self.tokens[index])
        return max((*self.levels, *in_prompts), default=-1)

    def is_archived(self, turn: TurnSpan) -> bool:
        """Whether `turn` is already archived."""
        return turn.stop - turn.body == 1 and turn.body in self.levels


class ArchiveRange(Struct, frozen=True):
    """A range to archive, which contains the messages `start` to `stop`. The messages before `body` are prompts.

    If `summarize` is True, a model is asked for a summary. `level` is the level of an era, 0 for other kinds. If
    `merges` is True, the record of a phase replaces the records of the turn's earlier phases. If `triggered` is True,
    a configured condition demands the archive, even if the record is larger than the turn.
    """

    kind: ArchiveKind
    start: int
    body: int
    stop: int
    reason: str
    summarize: bool = False
    level: int = 0
    gain: Gain | None = None
    merges: bool = False
    triggered: bool = False


class Candidate(Struct, frozen=True):
    """A candidate for archiving, which contains the messages `start` to `stop`. `changed` is the first that changes.

    `removed` is the number of tokens that archiving removes, and `added` the number of inserted tokens. `summary` is
    the part of `added` that a model writes, and `receipt` the number of tokens that would replace it. If `merges` is
    True, the range includes the records of the turn's earlier phases.
    """

    start: int
    body: int
    stop: int
    removed: int
    added: int
    summary: int
    receipt: int
    changed: int
    merges: bool = False


def turns_to_archive(
    view: ConversationView,
    rules: ArchivalRules,
    trigger: TriggerConfig,
    prices: Prices,
    *,
    depth: int = 0,
) -> list[ArchiveRange]:
    """Return the finished turns that should be archived, in order: those that `trigger` selects, and those that pay.

    Never raises.
    """
    if not rules.turns or depth >= trigger.depth_cap:
        return []
    if not rules.gate:
        return _turns_over_threshold(view, trigger, depth)
    conditions = configured_only(trigger)
    triggered = _turns_over_threshold(view, conditions, depth) if conditions else []
    starts = {each.start for each in triggered}
    others = [each for each in smaller_turns(view, rules) if each is not None and each.start not in starts]
    return sorted([*triggered, *_turns_that_pay(view, others, rules, prices)], key=lambda each: each.start)


def _turns_that_pay(
    view: ConversationView, candidates: Sequence[Candidate], rules: ArchivalRules, prices: Prices
) -> list[ArchiveRange]:
    is_full = view.total_tokens > rules.high_tokens
    account = None
    for parts in (candidates, without_summaries(candidates)) if view.summaries else (candidates,):
        allowed: list[tuple[Gain, int]] = []
        of_next_call = gains_of_suffixes(view, rules, prices, parts, calls=1)
        for index, gain in enumerate(gains_of_suffixes(view, rules, prices, parts)):
            if gain.pays or is_full:
                account = account or view.account(rules, prices)
                if account.allows(of_next_call[index]):
                    allowed.append((gain, index))
        if is_full and allowed:
            reason = f"{view.total_tokens} tokens are live, the maximum is {rules.high_tokens}"
            return [_archive_range("turn", each, reason, None) for each in parts[allowed[0][1] :]]
        if allowed:
            gain, index = max(allowed, key=lambda each: each[0].net)
            reason = f"saves {gain.saved:.0f} for {gain.cost:.0f}"
            return [_archive_range("turn", each, reason, gain) for each in parts[index:]]
    return []


def all_archivable_turns(
    view: ConversationView, rules: ArchivalRules, trigger: TriggerConfig, *, depth: int = 0
) -> list[ArchiveRange]:
    """Return all finished turns that become smaller by archiving, in order. Used for explicit requests."""
    if depth >= trigger.depth_cap:
        return []
    parts = smaller_turns(view, rules)
    return [_archive_range("turn", part, "it was requested", None) for part in parts if part is not None]


def next_era(view: ConversationView, rules: ArchivalRules, prices: Prices) -> ArchiveRange | None:
    """Return the next records to merge, with the small turns between them. Return None if the records fit their budget.

    Skip merges that save nothing, and merges that do not pay yet.
    """
    if view.total_tokens <= rules.rollup_tokens or not rules.rollup_tokens:
        return None
    mergeable: list[tuple[TurnSpan, RecordSize]] = []
    for turn, smaller in zip(view.turns, smaller_turns(view, rules), strict=True):
        if not view.is_archived(turn) and not (is_finished(view, turn) and smaller is None):
            break
        level = view.levels.get(turn.stop - 1, 0)
        mergeable.append((turn, RecordSize(sum(view.tokens[turn.start : turn.stop]), level)))
    total = sum(record.tokens for _, record in mergeable)
    account = None
    for merge in possible_merges([record for _, record in mergeable], rules.rollup_tokens):
        start, stop = mergeable[merge.start][0].start, mergeable[merge.stop - 1][0].stop
        removed = sum(view.tokens[start:stop])
        era = era_tokens(rules.rollup_tokens, view.original(start, stop))
        change = Change(removed, HEAD_TOKENS + era, sum(view.tokens[stop:]))
        gain = estimate_gain(change, expected_calls(view.calls), prices)
        if gain.pays and account is None:
            account = view.account(rules, prices)
        is_allowed = gain.pays and account is not None and account.allows(estimate_gain(change, 1, prices))
        if removed > change.added and (is_allowed or not rules.gate):
            reason = f"the records have {total} tokens, the budget is {rules.rollup_tokens}"
            return ArchiveRange("era", start, start, stop, reason, level=merge.level, gain=gain)
    return None


def next_phases(view: ConversationView, rules: ArchivalRules, prices: Prices) -> list[ArchiveRange]:
    """Return the past phases of turns that should be archived, oldest first.

    The phases bring the conversation below the low-water mark. Each phase ends after a tool call with its results. The
    latest results stay. The list is empty if the conversation is below the high-water mark, or if archiving would not
    pay.
    """
    live = view.total_tokens
    if not rules.phase or live <= rules.high_tokens:
        return []
    chosen: list[Candidate] = []
    for turn in view.turns:
        excess = live - sum(part.removed - part.added for part in chosen) - rules.low_tokens
        if excess <= 0:
            break
        if not view.is_archived(turn) and (part := _allowed_phase(view, turn, rules, prices, excess)):
            chosen.append(part)
    if not chosen:
        return []
    gain = combined_gain(view, rules, prices, chosen)
    removed = sum(part.removed for part in chosen)
    is_allowed = gain.pays and view.account(rules, prices).allows(combined_gain(view, rules, prices, chosen, calls=1))
    if removed < (rules.high_tokens - rules.low_tokens) // 4 or (
        rules.gate and not is_allowed and live <= URGENT_RATIO * rules.high_tokens
    ):
        return []
    reason = f"{live} tokens are live, the maximum is {rules.high_tokens}"
    return [_archive_range("phase", part, reason, gain) for part in chosen]


def bounded_tokens(view: ConversationView) -> int:
    """Return the number of tokens that the limit of the profile applies to.

    The limit does not apply to the head of the conversation, to the prompts of the current turn, and to the last step
    of the current turn.
    """
    turns = view.turns
    if not turns:
        return 0
    last_turn, total = turns[-1], sum(view.tokens[turns[0].start :])
    if view.is_archived(last_turn):
        return total
    group_ends = groups_of(view.messages, last_turn.body, last_turn.stop)
    last_step = group_ends[-1] if group_ends else last_turn.body
    return total - sum(view.own_tokens[last_turn.start : last_turn.body]) - sum(view.tokens[last_step : last_turn.stop])


def is_over_bound(view: ConversationView, rules: ArchivalRules) -> bool:
    """Return whether the profile has a limit and `view` exceeds the limit.

    The limit is the low-water mark plus the budget for records.
    """
    return rules.bounded and bounded_tokens(view) > rules.low_tokens + rules.rollup_tokens


def next_range_over_bound(view: ConversationView, rules: ArchivalRules, prices: Prices) -> ArchiveRange | None:
    """Return the next range to archive to bring `view` below the low-water mark, even if archiving it does not pay.

    The oldest steps of the current turn come first, then the oldest finished turns as one era. Return None if no range
    would become smaller.
    """
    turns = view.turns
    excess = bounded_tokens(view) - rules.low_tokens
    reason = f"{excess + rules.low_tokens} tokens are left, the limit is {rules.low_tokens + rules.rollup_tokens}"
    if not turns or excess <= 0:
        return None
    if not view.is_archived(turns[-1]) and (part := _allowed_phase(view, turns[-1], rules, prices, excess)):
        return _archive_range("phase", part, reason, None)
    finished = [turn for turn in turns if view.is_archived(turn) or is_finished(view, turn)]
    # If a merge of the other turns is enough, the latest finished turn stays.
    return _merge_oldest_turns(view, rules, prices, finished[:-1], excess, reason) or _merge_oldest_turns(
        view, rules, prices, finished, excess, reason
    )


def _merge_oldest_turns(
    view: ConversationView,
    rules: ArchivalRules,
    prices: Prices,
    finished: Sequence[TurnSpan],
    excess: int,
    reason: str,
) -> ArchiveRange | None:
    """Return a merge of the oldest turns in `finished` that frees at least `excess` tokens, or of more turns.

    The turns after the merge have to be cached again. If this costs more than archiving has saved, merge more turns. If
    all turns together free less, return the merge of all turns. Return None if the merge frees nothing.
    """
    if not finished:
        return None
    account, live = view.account(rules, prices), sum(view.tokens[finished[0].start :])
    removed, level, merge = 0, 0, None
    for turn in finished:
        removed += sum(view.tokens[turn.start : turn.stop])
        level = max(level, view.levels.get(turn.stop - 1, 0))
        original = view.original(finished[0].start, turn.stop)
        added = HEAD_TOKENS + ERA_PROMPT_TOKENS + era_tokens(rules.rollup_tokens, original)
        if turn is finished[0] and view.is_archived(turn):
            continue  # a record alone cannot become smaller
        if removed - added >= excess or (turn is finished[-1] and removed > added):
            start = finished[0].start
            merge = ArchiveRange("era", start, start, turn.stop, reason, level=level + 1)
            gain = estimate_gain(Change(removed, added, live - removed), 1, prices)
            if not rules.gate or account.allows(gain):
                break
    return merge


def first_uncached_message(messages: Sequence[Message]) -> int:
    """Return the position of the last response.

    The prompt cache does not contain this message, because no request has contained it.
    """
    index = len(messages)
    while index and messages[index - 1].role != "assistant":
        index -= 1
    return max(index - 1, 0)


def due_upgrades(indexes: Sequence[int], tokens: Sequence[int], cached_end: int, prices: Prices) -> list[int]:
    """Return those positions of `indexes` whose records should get their late summaries now.

    `indexes` contains the positions of records with a late summary, in order. `tokens` contains the sizes of all
    messages. The cached prefix ends at `cached_end`, so records from `cached_end` on are always selected. An earlier
    record is selected if the summary has cost more than the cache writes for the messages from the record to
    `cached_end`. The other records wait until the cached prefix ends earlier.
    """
    summary_price = SUMMARY_TOKENS * prices.output
    return [index for index in indexes if sum(tokens[index:cached_end]) * (prices.write - prices.read) <= summary_price]


def is_finished(view: ConversationView, turn: TurnSpan) -> bool:
    """Return whether `turn` has ended without open tool calls and is not archived yet."""
    if turn.body == turn.stop or view.is_archived(turn):
        return False
    if turn.stop < len(view.messages):
        return True  # another turn has begun, so a call without a result is no longer running
    if view.stop_reason in UNFINISHED_STOP_REASONS:
        return False
    part = view.messages[turn.start : turn.stop]
    return not is_unfinished(part) and (view.stop_reason is not None or is_answered(part))


def _turns_over_threshold(view: ConversationView, trigger: TriggerConfig, depth: int) -> list[ArchiveRange]:
    ranges: list[ArchiveRange] = []
    judged, last = view.judged, len(view.turns) - 1
    for number in range(judged.below_triggers, len(view.turns)):
        turn = view.turns[number]
        if is_finished(view, turn):
            facts = facts_of(
                view.messages[turn.start : turn.stop],
                view.original(turn.start, turn.stop),
                archived_calls=sum(view.archived_calls.get(index, 0) for index in range(turn.start, turn.body)),
                stop_reason=view.stop_reason if number == last else None,
                depth=depth,
            )
            verdict = evaluate_trigger(facts, trigger)
            if verdict.archive:
                ranges.append(
                    ArchiveRange(
                        "turn", turn.start, turn.body, turn.stop, verdict.reason, view.summaries, triggered=True
                    )
                )
        if not ranges and number < last:
            judged.below_triggers = number + 1
    return ranges


def smaller_turns(view: ConversationView, rules: ArchivalRules) -> list[Candidate | None]:
    """Return for each turn of `view` the result of `_smaller_if_archived`."""
    known = view.judged.smaller
    known += [_smaller_if_archived(view, turn, rules) for turn in view.turns[len(known) : -1]]
    return [*known, *(_smaller_if_archived(view, turn, rules) for turn in view.turns[len(known) :])]


def without_summaries(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return those of the turns `candidates` that become smaller without a model's summary, without summaries."""
    parts = [
        msgspec.structs.replace(each, added=each.added - each.summary + each.receipt, summary=0)
        if each.summary
        else each
        for each in candidates
    ]
    return [each for each in parts if each.removed > each.added]


def _smaller_if_archived(view: ConversationView, turn: TurnSpan, rules: ArchivalRules) -> Candidate | None:
    """Return `turn` as a candidate. Return None if it has not ended, is archived, or would not become smaller."""
    return _turn_candidate(view, turn, rules) if is_finished(view, turn) else None


def _turn_candidate(view: ConversationView, turn: TurnSpan, rules: ArchivalRules) -> Candidate | None:
    """Return `turn` as a candidate for archiving. Return None if the turn would not become smaller."""
    prompt_tokens = sum(view.tokens[turn.start : turn.body])
    kept_tokens = sum(min(size, rules.prompt_tokens) for size in view.own_tokens[turn.start : turn.body])
    work_tokens = sum(view.tokens[turn.body : turn.stop])
    answer = (
        min(view.tokens[turn.stop - 1], rules.answer_tokens) if is_answered(view.messages[turn.body : turn.stop]) else 0
    )
    summary = SUMMARY_TOKENS if view.summaries and work_tokens > MIN_TOKENS_FOR_SUMMARY else 0
    receipt = _receipt_tokens(view, turn.start, turn.stop, work_tokens)
    added = HEAD_TOKENS + answer + (summary or receipt)
    removed = prompt_tokens - kept_tokens + work_tokens
    changed = turn.body if prompt_tokens == kept_tokens else turn.start
    candidate = Candidate(turn.start, turn.body, turn.stop, removed, added, summary, receipt, changed)
    return candidate if removed > added else None


def _allowed_phase(
    view: ConversationView, turn: TurnSpan, rules: ArchivalRules, prices: Prices, excess: int
) -> Candidate | None:
    """Return the oldest complete groups of `turn` with at least `excess` tokens, or more groups.

    What stays after these groups has to be cached again, and a summary costs a request. As long as this costs more than
    archiving has saved, the phase has no summary and more groups. Return None if archiving saves nothing.
    """
    group_ends = groups_of(view.messages, turn.body, turn.stop)
    if not group_ends:
        return None
    sizes = accumulate(view.tokens[turn.body : turn.stop])
    min_stop = turn.body + next((index + 1 for index, size in enumerate(sizes) if size >= excess), turn.stop)
    stops = [end for end in group_ends if end >= min_stop] or group_ends[-1:]
    account = view.account(rules, prices)

    def candidate(stop: int, *, summaries: bool = False) -> Candidate | None:
        return _phase_candidate(view, turn, rules, stop, summaries=summaries)

    def is_allowed(part: Candidate | None) -> bool:
        if part is None or not rules.gate:
            return part is not None
        return account.allows(combined_gain(view, rules, prices, [part], calls=1))

    if view.summaries and is_allowed(part := candidate(stops[0], summaries=True)):
        return part
    # Each further group leaves less to cache again.
    fewest = bisect_left(stops, True, key=lambda stop: is_allowed(candidate(stop)))
    return candidate(stops[min(fewest, len(stops) - 1)])


def _phase_candidate(
    view: ConversationView, turn: TurnSpan, rules: ArchivalRules, stop: int, *, summaries: bool
) -> Candidate | None:
    """Return the part of `turn` up to the message `stop` as a candidate. Return None if archiving it saves nothing."""
    removed = sum(view.tokens[turn.body : stop])
    summary = SUMMARY_TOKENS if summaries and removed > MIN_TOKENS_FOR_SUMMARY else 0
    earlier = sum(view.tokens[turn.start : turn.body]) - sum(view.own_tokens[turn.start : turn.body])
    merges = 0 < phase_budget(rules.rollup_tokens) < earlier
    receipt = _receipt_tokens(view, turn.start if merges else turn.body, stop, removed) + (earlier if merges else 0)
    added = HEAD_TOKENS + (summary or min(receipt, record_tokens(view.original(turn.start, stop))))
    removed += earlier if merges else 0
    changed = max(turn.body - 1, turn.start)  # the record is added to the last prompt
    candidate = Candidate(turn.start, turn.body, stop, removed, added, summary, receipt, changed, merges)
    return candidate if removed > added else None


def _receipt_tokens(view: ConversationView, start: int, stop: int, removed: int) -> int:
    """Return the expected number of tokens of a receipt for the messages `start` to `stop`.

    The receipt replaces `removed` tokens. On average, receipts have 12 tokens for each call.
    """
    calls = sum(len(tool_uses(message)) for message in view.messages[start:stop])
    return min(MIN_RECEIPT + calls * CALL_TOKENS, record_tokens(view.original(start, stop)), removed // 4)


def _archive_range(kind: ArchiveKind, part: Candidate, reason: str, gain: Gain | None) -> ArchiveRange:
    return ArchiveRange(kind, part.start, part.body, part.stop, reason, part.summary > 0, gain=gain, merges=part.merges)


def combined_gain(
    view: ConversationView,
    rules: ArchivalRules,
    prices: Prices,
    chosen: Sequence[Candidate],
    *,
    calls: int | None = None,
) -> Gain:
    """Return the gain of archiving all of `chosen` at once, over `calls` model calls or over the expected calls.

    The prompt cache becomes invalid from the first of these ranges on.
    """
    return gains_of_suffixes(view, rules, prices, chosen, calls=calls)[0]


def gains_of_suffixes(
    view: ConversationView,
    rules: ArchivalRules,
    prices: Prices,
    parts: Sequence[Candidate],
    *,
    calls: int | None = None,
) -> list[Gain]:
    """Return, for each position in `parts`, the combined gain of the parts from there on, in linear time."""
    first_uncached = first_uncached_message(view.messages)
    until = [0, *accumulate(view.tokens)]
    context = view.other_tokens + view.total_tokens
    calls = expected_calls(view.calls) if calls is None else calls
    listed = list_tokens(rules, view.archive_count)
    # The list of archives follows the last record, so it leaves its place when there are later records.
    listed_at = view.last_record + 1 if view.archive_count else len(view.messages)
    removed = added = uncached = 0
    summaries = 0.0
    gains: list[Gain] = []
    for count, part in enumerate(reversed(parts), 1):
        removed, added = removed + part.removed, added + part.added
        unsent = max(until[part.stop] - until[max(part.body, first_uncached)], 0)
        uncached += unsent
        # All summaries are requested in the same state, so a new unsent part changes the cost of those after it.
        priced = parts[-count:] if unsent else [part]
        summaries = (0.0 if unsent else summaries) + sum(
            summary_cost(each.removed, context - uncached, each.summary, prices, unsent=uncached) for each in priced
        )
        first_changed = min(part.changed, listed_at)
        invalidated = max(until[first_uncached] - until[first_changed], 0) - (removed - uncached)
        listed_after = list_tokens(rules, view.archive_count + count)
        change = Change(removed + listed, added + listed_after, max(invalidated, 0), uncached)
        gain = estimate_gain(change, calls, prices)
        gains.append(Gain(gain.saved, gain.cost + summaries))
    return gains[::-1]


def list_tokens(rules: ArchivalRules, archives: int) -> int:
    """Return the number of tokens of the list of `archives` archives, which follows their records."""
    if rules.placement != "tail" or not (entries := min(archives, rules.block_entries)):
        return 0
    return LIST_TOKENS + entries * ENTRY_TOKENS
