"""Plans what to archive next, with the reason. No I/O.

Candidates are finished turns, past phases of a running turn, and excess records.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.archives import ArchiveKind
from orch_protocol.core.messages import Message, StopReason
from orch_worker.backends.prices import Prices
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.conversation.turns import TurnSpan, groups_of, is_answered, is_unfinished, turns_of

from ...config.archival_profiles import ArchivalRules
from .economics import Change, Gain, estimate_gain, expected_calls, summary_cost
from .rollup import RecordSize, era_tokens, phase_budget, possible_merges
from .triggers import evaluate_trigger, facts_of

__all__ = [
    "MIN_TOKENS_FOR_SUMMARY",
    "RECEIPT_TOKENS",
    "SUMMARY_TOKENS",
    "ArchiveRange",
    "ConversationView",
    "all_archivable_turns",
    "bounded_tokens",
    "due_upgrades",
    "first_uncached_message",
    "is_over_bound",
    "next_era",
    "next_phases",
    "next_range_over_bound",
    "turns_to_archive",
]

HEAD_TOKENS: Final = 25
ERA_PROMPT_TOKENS: Final = 15
RECEIPT_TOKENS: Final = 220
SUMMARY_TOKENS: Final = 220
MIN_TOKENS_FOR_SUMMARY: Final = 1500
BLOCK_TOKENS: Final = 45
ENTRY_TOKENS: Final = 32
URGENT_RATIO: Final = 1.5
UNFINISHED_STOP_REASONS: Final = frozenset({"error", "cancelled", "timeout", "budget", "aborted"})
"""Stop reasons of turns that the user may want to continue."""


class ConversationView(Struct):
    """A conversation in the form that the rules use.

    `tokens` contains the size of each message, and `own_tokens` the size without records of archives. `levels` maps the
    position of each record to the level of the record. `calls` is the number of model calls so far, including calls in
    archived turns. `archive_count` is the number of archives in the live-subagents block. `other_tokens` is the number
    of tokens of a request that are not in messages.
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

    @property
    def total_tokens(self) -> int:
        """The total number of tokens of all messages."""
        return sum(self.tokens)

    def is_archived(self, turn: TurnSpan) -> bool:
        """Whether `turn` is already archived."""
        return turn.stop - turn.body == 1 and turn.body in self.levels


class ArchiveRange(Struct, frozen=True):
    """A range to archive, which contains the messages `start` to `stop`. The messages before `body` are prompts.

    If `summarize` is True, a model is asked for a summary. `level` is the level of an era, 0 for other kinds. If
    `merges` is True, the record of a phase replaces the records of the turn's earlier phases.
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


class _Candidate(Struct, frozen=True):
    """A candidate for archiving, which contains the messages `start` to `stop`.

    `removed` is the number of tokens that archiving removes, and `added` the number of inserted tokens. If `merges` is
    True, the range includes the records of the turn's earlier phases.
    """

    start: int
    body: int
    stop: int
    removed: int
    added: int
    summary: int
    merges: bool = False


def turns_to_archive(
    view: ConversationView,
    rules: ArchivalRules,
    trigger: TriggerConfig,
    prices: Prices,
    estimator: TokenEstimator,
    *,
    depth: int = 0,
) -> list[ArchiveRange]:
    """Return the finished turns that should be archived, in order. Never raises."""
    finished = [turn for turn in turns_of(view.messages) if _is_finished(view, turn)] if rules.turns else []
    if not rules.gate:
        return _turns_over_threshold(view, finished, trigger, estimator, depth)
    if depth >= trigger.depth_cap:
        return []
    candidates = [candidate for candidate in (_turn_candidate(view, turn, rules) for turn in finished) if candidate]
    if not candidates:
        return []
    if view.total_tokens > rules.high_tokens:
        return [
            _archive_range(
                "turn", each, f"{view.total_tokens} tokens are live, the maximum is {rules.high_tokens}", None
            )
            for each in candidates
        ]
    gains = [_combined_gain(view, rules, prices, candidates[index:]) for index in range(len(candidates))]
    best = max(range(len(gains)), key=lambda index: gains[index].net)
    if not gains[best].pays:
        return []
    reason = f"saves {gains[best].saved:.0f} for {gains[best].cost:.0f}"
    return [_archive_range("turn", each, reason, gains[best]) for each in candidates[best:]]


def all_archivable_turns(
    view: ConversationView, rules: ArchivalRules, trigger: TriggerConfig, *, depth: int = 0
) -> list[ArchiveRange]:
    """Return all finished turns that become smaller by archiving, in order. Used for explicit requests."""
    if depth >= trigger.depth_cap:
        return []
    parts = (_turn_candidate(view, turn, rules) for turn in turns_of(view.messages) if _is_finished(view, turn))
    return [_archive_range("turn", part, "it was requested", None) for part in parts if part is not None]


def next_era(view: ConversationView, rules: ArchivalRules, prices: Prices) -> ArchiveRange | None:
    """Return the next records to merge, with the small turns between them. Return None if the records fit their budget.

    Skip merges that save nothing, and merges that do not pay yet.
    """
    mergeable: list[tuple[TurnSpan, RecordSize]] = []
    for turn in turns_of(view.messages):
        is_small = _is_finished(view, turn) and not _turn_candidate(view, turn, rules)
        if not view.is_archived(turn) and not is_small:
            break
        level = view.levels.get(turn.stop - 1, 0)
        mergeable.append((turn, RecordSize(sum(view.tokens[turn.start : turn.stop]), level)))
    total = sum(record.tokens for _, record in mergeable)
    for merge in possible_merges([record for _, record in mergeable], rules.rollup_tokens):
        start, stop = mergeable[merge.start][0].start, mergeable[merge.stop - 1][0].stop
        removed = sum(view.tokens[start:stop])
        change = Change(removed, HEAD_TOKENS + era_tokens(rules.rollup_tokens), sum(view.tokens[stop:]))
        gain = estimate_gain(change, expected_calls(view.calls), prices)
        if removed > change.added and (gain.pays or not rules.gate or total > 2 * rules.rollup_tokens):
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
    chosen: list[_Candidate] = []
    for turn in turns_of(view.messages):
        excess = live - sum(part.removed - part.added for part in chosen) - rules.low_tokens
        if excess <= 0:
            break
        if not view.is_archived(turn) and (part := _phase_candidate(view, turn, rules, excess)):
            chosen.append(part)
    if not chosen:
        return []
    gain = _combined_gain(view, rules, prices, chosen)
    removed = sum(part.removed for part in chosen)
    if removed < (rules.high_tokens - rules.low_tokens) // 4 or (
        rules.gate and not gain.pays and live <= URGENT_RATIO * rules.high_tokens
    ):
        return []
    reason = f"{live} tokens are live, the maximum is {rules.high_tokens}"
    return [_archive_range("phase", part, reason, gain) for part in chosen]


def bounded_tokens(view: ConversationView) -> int:
    """Return the number of tokens that the limit of the profile applies to.

    The limit does not apply to the head of the conversation, to the prompts of the current turn, and to the last step
    of the current turn.
    """
    turns = turns_of(view.messages)
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


def next_range_over_bound(view: ConversationView, rules: ArchivalRules) -> ArchiveRange | None:
    """Return the next range to archive to bring `view` below the low-water mark, even if archiving it does not pay.

    The oldest steps of the current turn come first, then the oldest finished turns as one era. Return None if no range
    would become smaller.
    """
    turns = turns_of(view.messages)
    excess = bounded_tokens(view) - rules.low_tokens
    reason = f"{excess + rules.low_tokens} tokens are left, the limit is {rules.low_tokens + rules.rollup_tokens}"
    if not turns or excess <= 0:
        return None
    if not view.is_archived(turns[-1]) and (part := _phase_candidate(view, turns[-1], rules, excess)):
        return _archive_range("phase", part, reason, None)
    finished = [turn for turn in turns if view.is_archived(turn) or _is_finished(view, turn)]
    # If a merge of the other turns is enough, the latest finished turn stays.
    return _merge_oldest_turns(view, rules, finished[:-1], excess, reason) or _merge_oldest_turns(
        view, rules, finished, excess, reason
    )


def _merge_oldest_turns(
    view: ConversationView, rules: ArchivalRules, finished: Sequence[TurnSpan], excess: int, reason: str
) -> ArchiveRange | None:
    """Return a merge of the oldest turns in `finished` that frees at least `excess` tokens.

    If all turns together free less, return the merge of all turns. Return None if the merge frees nothing.
    """
    added, removed, level, stop = HEAD_TOKENS + ERA_PROMPT_TOKENS + era_tokens(rules.rollup_tokens), 0, 0, 0
    for turn in finished:
        removed += sum(view.tokens[turn.start : turn.stop])
        level, stop = max(level, view.levels.get(turn.stop - 1, 0)), turn.stop
        if removed - added >= excess:
            break
    if removed <= added:
        return None
    start = finished[0].start
    return ArchiveRange("era", start, start, stop, reason, level=level + 1)


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


def _is_finished(view: ConversationView, turn: TurnSpan) -> bool:
    """Return whether `turn` has ended without open tool calls and is not archived yet."""
    if turn.body == turn.stop or view.is_archived(turn):
        return False
    if turn.stop < len(view.messages):
        return True  # another turn has begun, so a call without a result is no longer running
    if view.stop_reason in UNFINISHED_STOP_REASONS:
        return False
    part = view.messages[turn.start : turn.stop]
    return not is_unfinished(part) and (view.stop_reason is not None or is_answered(part))


def _turns_over_threshold(
    view: ConversationView, turns: Sequence[TurnSpan], trigger: TriggerConfig, estimator: TokenEstimator, depth: int
) -> list[ArchiveRange]:
    ranges = []
    for turn in turns:
        part = view.messages[turn.start : turn.stop]
        is_last = turn.stop == len(view.messages)
        facts = facts_of(part, estimator, stop_reason=view.stop_reason if is_last else None, depth=depth)
        verdict = evaluate_trigger(facts, trigger)
        if verdict.archive:
            ranges.append(ArchiveRange("turn", turn.start, turn.body, turn.stop, verdict.reason, view.summaries))
    return ranges


def _turn_candidate(view: ConversationView, turn: TurnSpan, rules: ArchivalRules) -> _Candidate | None:
    """Return `turn` as a candidate for archiving. Return None if the turn would not become smaller."""
    prompt_tokens = sum(view.tokens[turn.start : turn.body])
    kept_tokens = sum(min(size, rules.prompt_tokens) for size in view.own_tokens[turn.start : turn.body])
    work_tokens = sum(view.tokens[turn.body : turn.stop])
    answer = (
        min(view.tokens[turn.stop - 1], rules.answer_tokens) if is_answered(view.messages[turn.body : turn.stop]) else 0
    )
    summary = SUMMARY_TOKENS if view.summaries and work_tokens > MIN_TOKENS_FOR_SUMMARY else 0
    added = HEAD_TOKENS + answer + (summary or min(RECEIPT_TOKENS, work_tokens // 4))
    removed = prompt_tokens - kept_tokens + work_tokens
    return _Candidate(turn.start, turn.body, turn.stop, removed, added, summary) if removed > added else None


def _phase_candidate(view: ConversationView, turn: TurnSpan, rules: ArchivalRules, excess: int) -> _Candidate | None:
    """Return the oldest complete groups of `turn` with at least `excess` tokens, or all groups.

    Return None if archiving these groups saves nothing.
    """
    group_ends = groups_of(view.messages, turn.body, turn.stop)
    if not group_ends:
        return None
    sizes = accumulate(view.tokens[turn.body : turn.stop])
    min_stop = turn.body + next((index + 1 for index, size in enumerate(sizes) if size >= excess), turn.stop)
    stop = next((end for end in group_ends if end >= min_stop), group_ends[-1])
    removed = sum(view.tokens[turn.body : stop])
    summary = SUMMARY_TOKENS if view.summaries and removed > MIN_TOKENS_FOR_SUMMARY else 0
    added = HEAD_TOKENS + (summary or min(RECEIPT_TOKENS, removed // 4))
    record_tokens = sum(view.tokens[turn.start : turn.body]) - sum(view.own_tokens[turn.start : turn.body])
    merges = 0 < phase_budget(rules.rollup_tokens) < record_tokens
    candidate = _Candidate(
        turn.start, turn.body, stop, removed + (record_tokens if merges else 0), added, summary, merges
    )
    return candidate if removed > added else None


def _archive_range(kind: ArchiveKind, part: _Candidate, reason: str, gain: Gain | None) -> ArchiveRange:
    return ArchiveRange(kind, part.start, part.body, part.stop, reason, part.summary > 0, gain=gain, merges=part.merges)


def _combined_gain(view: ConversationView, rules: ArchivalRules, prices: Prices, chosen: Sequence[_Candidate]) -> Gain:
    """Return the gain of archiving all of `chosen` at once.

    The prompt cache becomes invalid from the first of these ranges on.
    """
    removed, added = sum(each.removed for each in chosen), sum(each.added for each in chosen)
    first_uncached = first_uncached_message(view.messages)
    uncached = sum(sum(view.tokens[max(each.body, first_uncached) : each.stop]) for each in chosen)
    invalidated = sum(view.tokens[chosen[0].body : first_uncached]) - (removed - uncached)
    change = Change(removed, added, max(invalidated, 0), uncached, _added_block_tokens(view, rules, len(chosen)))
    calls, context = expected_calls(view.calls), view.other_tokens + view.total_tokens
    gain = estimate_gain(change, calls, prices)
    summaries = sum(summary_cost(each.removed, context, each.summary, prices) for each in chosen)
    return Gain(gain.saved, gain.cost + summaries)


def _added_block_tokens(view: ConversationView, rules: ArchivalRules, new_archives: int) -> int:
    """Return the number of tokens that additional archives add to the live-subagents block.

    `new_archives` is the number of these archives.
    """
    if rules.placement != "tail":
        return 0
    entries_before, entries_after = (
        min(count, rules.block_entries) for count in (view.archive_count, view.archive_count + new_archives)
    )
    return (entries_after - entries_before) * ENTRY_TOKENS + (
        BLOCK_TOKENS if entries_after and not entries_before else 0
    )
