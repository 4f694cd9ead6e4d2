"""What is to leave a conversation next, and why: finished turns, the past of a running one, stubs too many. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.archives import ArchiveKind
from orch_protocol.core.messages import Message, StopReason
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.conversation.turns import TurnSpan, groups_of, is_answered, is_unfinished, turns_of

from ...config.archival_profiles import Rules
from .economics import Change, Gain, Prices, estimate_gain, expected_calls, summary_cost
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
"""Stop reasons of a turn that somebody may want to go on with."""


class ConversationView(Struct):
    """A conversation as the rules see it.

    `tokens` is a size for each message, `own` the same without the stubs in it. `levels` has the places of messages
    that stand for archives. `calls` is how many model calls there were, archived ones too; `listed` how many archives
    the block of live subagents names; `beside` the tokens of a request that are not messages.
    """

    messages: Sequence[Message]
    tokens: Sequence[int]
    own: Sequence[int]
    levels: dict[int, int]
    calls: int
    listed: int = 0
    beside: int = 0
    summaries: bool = False
    stop_reason: StopReason | None = None

    @property
    def live(self) -> int:
        """Tokens of all messages together."""
        return sum(self.tokens)

    def archived(self, turn: TurnSpan) -> bool:
        """Whether `turn` is a stub already."""
        return turn.stop - turn.body == 1 and turn.body in self.levels


class ArchiveRange(Struct, frozen=True):
    """Messages `start` to `stop` are to be archived; those before `body` are what was asked.

    With `summarise` a model is to be asked for a summary. `level` is an era's, 0 otherwise. With `merges` the record of
    a phase replaces those of the turn's earlier phases.
    """

    kind: ArchiveKind
    start: int
    body: int
    stop: int
    reason: str
    summarise: bool = False
    level: int = 0
    gain: Gain | None = None
    merges: bool = False


class _Part(Struct, frozen=True):
    """A part of a turn that could go: messages `start` to `stop`, `removed` tokens, with `added` in their place.

    With `merges` the records of the turn's earlier phases go too.
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
    rules: Rules,
    trigger: TriggerConfig,
    prices: Prices,
    estimator: TokenEstimator,
    *,
    depth: int = 0,
) -> list[ArchiveRange]:
    """Return the finished turns that are to be archived, in order. Never raises on odd conversations."""
    found = [turn for turn in turns_of(view.messages) if _is_over(view, turn)] if rules.turns else []
    if not rules.gate:
        return _triggered(view, found, trigger, estimator, depth)
    if depth >= trigger.depth_cap:
        return []
    candidates = [candidate for candidate in (_candidate(view, turn, rules) for turn in found) if candidate]
    if not candidates:
        return []
    if view.live > rules.high:
        return [
            _archive_range("turn", each, f"{view.live} tokens are live, the most is {rules.high}", None)
            for each in candidates
        ]
    gains = [_gain(view, rules, prices, candidates[place:]) for place in range(len(candidates))]
    best = max(range(len(gains)), key=lambda place: gains[place].net)
    if not gains[best].pays:
        return []
    reason = f"saves {gains[best].saved:.0f} for {gains[best].cost:.0f}"
    return [_archive_range("turn", each, reason, gains[best]) for each in candidates[best:]]


def all_archivable_turns(
    view: ConversationView, rules: Rules, trigger: TriggerConfig, *, depth: int = 0
) -> list[ArchiveRange]:
    """Return the finished turns that would become smaller, in order: somebody wants them archived now."""
    if depth >= trigger.depth_cap:
        return []
    parts = (_candidate(view, turn, rules) for turn in turns_of(view.messages) if _is_over(view, turn))
    return [_archive_range("turn", part, "it was asked for", None) for part in parts if part is not None]


def next_era(view: ConversationView, rules: Rules, prices: Prices) -> ArchiveRange | None:
    """Return which records to merge next, with the small turns between them; None while they fit their budget.

    A merge that frees nothing, or does not pay yet, is skipped for the next choice.
    """
    run: list[tuple[TurnSpan, RecordSize]] = []
    for turn in turns_of(view.messages):
        small = _is_over(view, turn) and not _candidate(view, turn, rules)
        if not view.archived(turn) and not small:
            break
        level = view.levels.get(turn.stop - 1, 0)
        run.append((turn, RecordSize(sum(view.tokens[turn.start : turn.stop]), level)))
    total = sum(stub.tokens for _, stub in run)
    for merge in possible_merges([stub for _, stub in run], rules.rollup):
        start, stop = run[merge.start][0].start, run[merge.stop - 1][0].stop
        removed = sum(view.tokens[start:stop])
        change = Change(removed, HEAD_TOKENS + era_tokens(rules.rollup), sum(view.tokens[stop:]))
        gain = estimate_gain(change, expected_calls(view.calls), prices)
        if removed > change.added and (gain.pays or not rules.gate or total > 2 * rules.rollup):
            reason = f"stubs of {total} tokens, the budget is {rules.rollup}"
            return ArchiveRange("era", start, start, stop, reason, level=merge.level, gain=gain)
    return None


def next_phases(view: ConversationView, rules: Rules, prices: Prices) -> list[ArchiveRange]:
    """Return which past of turns that are not archived is to be: oldest first, from above the high water to the low.

    Each part ends where a call has its results, and the latest results stay. Empty below the high water, and when it
    would not pay.
    """
    live = view.live
    if not rules.phase or live <= rules.high:
        return []
    chosen: list[_Part] = []
    for turn in turns_of(view.messages):
        excess = live - sum(part.removed - part.added for part in chosen) - rules.low
        if excess <= 0:
            break
        if not view.archived(turn) and (part := _part(view, turn, rules, excess)):
            chosen.append(part)
    if not chosen:
        return []
    gain = _gain(view, rules, prices, chosen)
    removed = sum(part.removed for part in chosen)
    if removed < (rules.high - rules.low) // 4 or (rules.gate and not gain.pays and live <= URGENT_RATIO * rules.high):
        return []
    reason = f"{live} tokens are live, the most is {rules.high}"
    return [_archive_range("phase", part, reason, gain) for part in chosen]


def bounded_tokens(view: ConversationView) -> int:
    """Return the tokens that the profile bounds: all but the head, the current turn's prompts and its last step."""
    turns = turns_of(view.messages)
    if not turns:
        return 0
    last, total = turns[-1], sum(view.tokens[turns[0].start :])
    if view.archived(last):
        return total
    ends = groups_of(view.messages, last.body, last.stop)
    step = ends[-1] if ends else last.body
    return total - sum(view.own[last.start : last.body]) - sum(view.tokens[step : last.stop])


def is_over_bound(view: ConversationView, rules: Rules) -> bool:
    """Return whether `view` holds more than the low water plus the record budget, for a profile that bounds it."""
    return rules.bounded and bounded_tokens(view) > rules.low + rules.rollup


def next_range_over_bound(view: ConversationView, rules: Rules) -> ArchiveRange | None:
    """Return what leaves next, whether it pays or not, to bring `view` down to the low water.

    First the oldest steps of the current turn, then the oldest finished turns, merged into one era. None if nothing
    would become smaller.
    """
    turns = turns_of(view.messages)
    excess = bounded_tokens(view) - rules.low
    reason = f"{excess + rules.low} tokens are left, the bound is {rules.low + rules.rollup}"
    if not turns or excess <= 0:
        return None
    if not view.archived(turns[-1]) and (part := _part(view, turns[-1], rules, excess)):
        return _archive_range("phase", part, reason, None)
    finished = [turn for turn in turns if view.archived(turn) or _is_over(view, turn)]
    # The latest finished turn stays if merging the others is enough.
    return _oldest(view, rules, finished[:-1], excess, reason) or _oldest(view, rules, finished, excess, reason)


def _oldest(
    view: ConversationView, rules: Rules, finished: Sequence[TurnSpan], excess: int, reason: str
) -> ArchiveRange | None:
    """Return the merge of the oldest of `finished` that frees `excess` tokens, or of all; None if it frees nothing."""
    added, removed, level, stop = HEAD_TOKENS + ERA_PROMPT_TOKENS + era_tokens(rules.rollup), 0, 0, 0
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
    """Return from where on `messages` were in no request yet, so that nothing is cached: the last response."""
    fresh = len(messages)
    while fresh and messages[fresh - 1].role != "assistant":
        fresh -= 1
    return max(fresh - 1, 0)


def due_upgrades(places: Sequence[int], tokens: Sequence[int], broken: int, prices: Prices) -> list[int]:
    """Return which of the stubs at `places`, in order, get their late summary now. `tokens` are the messages' sizes.

    Those from `broken` on, where the cached prefix ends anyway, and those so close before it that what lies between is
    written anew for less than the summary was made for. The others wait for the prefix to break further up.
    """
    worth = SUMMARY_TOKENS * prices.output
    return [place for place in places if sum(tokens[place:broken]) * (prices.write - prices.read) <= worth]


def _is_over(view: ConversationView, turn: TurnSpan) -> bool:
    """Return whether `turn` has ended with nothing open, and is not archived yet."""
    if turn.body == turn.stop or view.archived(turn):
        return False
    if turn.stop < len(view.messages):
        return True  # something else was asked since: a call without result is not running any more
    if view.stop_reason in UNFINISHED_STOP_REASONS:
        return False
    part = view.messages[turn.start : turn.stop]
    return not is_unfinished(part) and (view.stop_reason is not None or is_answered(part))


def _triggered(
    view: ConversationView, turns: Sequence[TurnSpan], trigger: TriggerConfig, estimator: TokenEstimator, depth: int
) -> list[ArchiveRange]:
    found = []
    for turn in turns:
        part = view.messages[turn.start : turn.stop]
        last = turn.stop == len(view.messages)
        facts = facts_of(part, estimator, stop_reason=view.stop_reason if last else None, depth=depth)
        verdict = evaluate_trigger(facts, trigger)
        if verdict.archive:
            found.append(ArchiveRange("turn", turn.start, turn.body, turn.stop, verdict.reason, view.summaries))
    return found


def _candidate(view: ConversationView, turn: TurnSpan, rules: Rules) -> _Part | None:
    """Return what archiving `turn` would change; None when nothing would become smaller."""
    asked = sum(view.tokens[turn.start : turn.body])
    kept = sum(min(size, rules.prompt) for size in view.own[turn.start : turn.body])
    done = sum(view.tokens[turn.body : turn.stop])
    answer = min(view.tokens[turn.stop - 1], rules.answer) if is_answered(view.messages[turn.body : turn.stop]) else 0
    summary = SUMMARY_TOKENS if view.summaries and done > MIN_TOKENS_FOR_SUMMARY else 0
    added = HEAD_TOKENS + answer + (summary or min(RECEIPT_TOKENS, done // 4))
    removed = asked - kept + done
    return _Part(turn.start, turn.body, turn.stop, removed, added, summary) if removed > added else None


def _part(view: ConversationView, turn: TurnSpan, rules: Rules, excess: int) -> _Part | None:
    """Return the oldest complete groups of `turn` that are `excess` tokens together, or all; None if that is little."""
    ends = groups_of(view.messages, turn.body, turn.stop)
    if not ends:
        return None
    sizes = accumulate(view.tokens[turn.body : turn.stop])
    reached = turn.body + next((place + 1 for place, size in enumerate(sizes) if size >= excess), turn.stop)
    stop = next((end for end in ends if end >= reached), ends[-1])
    removed = sum(view.tokens[turn.body : stop])
    summary = SUMMARY_TOKENS if view.summaries and removed > MIN_TOKENS_FOR_SUMMARY else 0
    added = HEAD_TOKENS + (summary or min(RECEIPT_TOKENS, removed // 4))
    records = sum(view.tokens[turn.start : turn.body]) - sum(view.own[turn.start : turn.body])
    merges = 0 < phase_budget(rules.rollup) < records
    part = _Part(turn.start, turn.body, stop, removed + (records if merges else 0), added, summary, merges)
    return part if removed > added else None


def _archive_range(kind: ArchiveKind, part: _Part, reason: str, gain: Gain | None) -> ArchiveRange:
    return ArchiveRange(kind, part.start, part.body, part.stop, reason, part.summary > 0, gain=gain, merges=part.merges)


def _gain(view: ConversationView, rules: Rules, prices: Prices, chosen: Sequence[_Part]) -> Gain:
    """Return the gain of archiving all of `chosen` at once, which breaks the cached prefix at the first of them."""
    removed, added = sum(each.removed for each in chosen), sum(each.added for each in chosen)
    fresh = first_uncached_message(view.messages)
    uncached = sum(sum(view.tokens[max(each.body, fresh) : each.stop]) for each in chosen)
    behind = sum(view.tokens[chosen[0].body : fresh]) - (removed - uncached)
    change = Change(removed, added, max(behind, 0), uncached, _entries(view, rules, len(chosen)))
    calls, context = expected_calls(view.calls), view.beside + view.live
    gain = estimate_gain(change, calls, prices)
    summaries = sum(summary_cost(each.removed, context, each.summary, prices) for each in chosen)
    return Gain(gain.saved, gain.cost + summaries)


def _entries(view: ConversationView, rules: Rules, more: int) -> int:
    """Return by how much the block of live subagents grows with `more` archives, in tokens."""
    if not rules.tail_block:
        return 0
    before, after = (min(count, rules.block_entries) for count in (view.listed, view.listed + more))
    return (after - before) * ENTRY_TOKENS + (BLOCK_TOKENS if after and not before else 0)
