"""The archiving rules as pure functions: profiles, triggers, gate, turns, groups, roll-up, block of live subagents."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_shapes import SHAPES, Shape, work
from orch.archival.adapters import format_named
from orch.archival.plan.economics import Change, estimate_gain, expected_calls, summary_cost
from orch.archival.plan.plan import (
    Candidate,
    ConversationView,
    combined_gain,
    gains_of_suffixes,
    next_era,
    next_phases,
    turns_to_archive,
)
from orch.archival.plan.rollup import FAN_OUT, RecordMerge, RecordSize, era_tokens, possible_merges
from orch.archival.plan.triggers import TurnFacts, evaluate_trigger
from orch.config.archival_profiles import archival_rules
from orch_protocol.agent.config import ArchivalConfig, Profile, TriggerConfig
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import (
    Block,
    Image,
    Message,
    Opaque,
    StopReason,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    assistant,
    user,
)
from orch_worker.backends.prices import Prices
from orch_worker.conversation.live_subagents import LiveSubagent, live_block
from orch_worker.conversation.tokens import PLAIN, CharsPerToken, TokenEstimator
from orch_worker.conversation.turns import groups_of, responses, turns_of

PRICES = Prices()
TRIGGER = TriggerConfig()


def call(*ids: str) -> Message:
    """Return a response with calls."""
    return Message("assistant", tuple(ToolUse(id, "tool", {}) for id in ids))


def result(*ids: str) -> Message:
    """Return the results of calls."""
    return Message("user", tuple(ToolResult(id, (Text("ok"),)) for id in ids))


def view(messages: list[Message], sizes: list[int] | None = None, **more: Any) -> ConversationView:
    """Return `messages` as input for the rules, with `sizes` tokens each."""
    sizes = sizes or [1000] * len(messages)
    return ConversationView(
        messages, sizes, sizes, more.pop("levels", {}), more.pop("calls", responses(messages)), **more
    )


ids = st.sampled_from(["a", "b", "c"])
blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, st.text(max_size=20)),
    st.builds(Thinking, st.text(max_size=5)),
    st.builds(ToolUse, ids, st.text(max_size=5), st.just({"k": [1, None, {"deep": "x"}]})),
    st.builds(ToolResult, ids, st.lists(st.builds(Text, st.text(max_size=9)), max_size=2).map(tuple)),
    st.builds(
        Opaque, st.just("p"), st.one_of(st.none(), st.integers(), st.dictionaries(st.text(max_size=3), st.none()))
    ),
    st.just(Image("image/png", "")),
)
odd_messages = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant", "system"]), st.lists(blocks, max_size=3).map(tuple)),
    max_size=12,
)


@given(odd_messages, st.sampled_from(["seed", "economy", "balanced", "roomy"]), st.booleans())
def test_archival_rules_accept_any_conversation(messages: list[Message], profile: Profile, summaries: bool) -> None:
    """The rules never raise, and each range is within the conversation."""
    rules = archival_rules(ArchivalConfig(profile=profile, high_tokens=5, low_tokens=1, rollup_tokens=3))
    estimator = TokenEstimator(CharsPerToken(4, 4, 3, 2, 1))
    seen = view(messages, [estimator.message(message) for message in messages], summaries=summaries)
    found = turns_to_archive(seen, rules, TRIGGER, PRICES) + next_phases(seen, rules, PRICES)
    era = next_era(seen, rules, PRICES)
    for collapse in [*found, *([era] if era else [])]:
        assert 0 <= collapse.start <= collapse.body <= collapse.stop <= len(messages)
        assert collapse.reason


@given(
    st.builds(
        TurnFacts,
        *[st.integers(-5, 10_000)] * 3,
        max_turns=st.booleans(),
        unfinished=st.booleans(),
        depth=st.integers(-3, 9),
    ),
    st.builds(TriggerConfig, st.booleans(), *[st.integers(0, 9_000)] * 2, st.integers(0, 5)),
)
def test_trigger_gives_a_reason_for_any_facts(facts: TurnFacts, trigger: TriggerConfig) -> None:
    """Turns at the depth cap and unfinished turns are never archived."""
    verdict = evaluate_trigger(facts, trigger)
    assert verdict.reason
    assert not (verdict.archive and (facts.unfinished or facts.depth >= trigger.depth_cap))


@given(st.builds(Change, *[st.integers(-100, 10**7)] * 4), st.integers(-5, 10**6))
def test_gate_accepts_any_change(change: Change, calls: int) -> None:
    """Archiving pays exactly when the savings exceed the costs."""
    gain = estimate_gain(change, calls, PRICES)
    assert gain.pays == (gain.net > 0)


@pytest.mark.parametrize(
    ("change", "calls", "pays"),
    [
        (Change(removed=5000, added=200), 8, True),
        (Change(removed=300, added=200), 8, False),
        (Change(removed=5000, added=200, invalidated=100_000), 8, False),
        (Change(removed=5000, added=200, invalidated=100_000), 500, True),
        (Change(removed=1000, added=200, uncached=600), 8, True),
    ],
)
def test_gate_weighs_savings_against_rewriting_and_record(change: Change, calls: int, pays: bool) -> None:
    """The savings over the expected calls must exceed the cost of the new cache entries and the record."""
    assert estimate_gain(change, calls, PRICES).pays is pays


def test_expected_calls_equal_the_calls_so_far() -> None:
    """The minimum is eight."""
    assert [expected_calls(so_far) for so_far in (0, 7, 8, 200)] == [8, 8, 8, 200]


def test_summary_request_uses_the_cheaper_context() -> None:
    """The cost of the input is the lower one of the uncached turn and the cached conversation."""
    assert summary_cost(1_000, 500_000, 100, PRICES) == 1_000 + 200 + 500
    assert summary_cost(50_000, 60_000, 100, PRICES) == 6_000 + 200 + 500
    assert summary_cost(50_000, 60_000, 0, PRICES) == 0


@pytest.mark.parametrize(
    ("profile", "high", "low"),
    [("economy", 20_000, 8_000), ("balanced", 24_000, 8_000), ("roomy", 60_000, 20_000)],
)
def test_profiles_define_water_levels_phases_and_gate(profile: Profile, high: int, low: int) -> None:
    """The seed profile has no phases, no gate and no merging."""
    rules = archival_rules(ArchivalConfig(profile=profile))
    assert (rules.high_tokens, rules.low_tokens, rules.phase, rules.gate) == (high, low, True, True)
    seed = archival_rules(ArchivalConfig(profile="seed"))
    assert (seed.phase, seed.gate, seed.rollup_tokens) == (False, False, 0)


def test_settings_override_the_profile() -> None:
    """A setting for the high water alone also determines the low water."""
    rules = archival_rules(ArchivalConfig(phase=False, gate=False, high_tokens=100, low_tokens=90, rollup_tokens=7))
    assert (rules.phase, rules.gate, rules.high_tokens, rules.low_tokens, rules.rollup_tokens) == (
        False,
        False,
        100,
        90,
        7,
    )
    assert archival_rules(ArchivalConfig(high_tokens=10)).low_tokens == 5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"high_tokens": 100, "low_tokens": 101},
            "low_tokens = 101 is greater than archival.high_tokens, which is 100",
        ),
        ({"profile": "economy", "low_tokens": 30_000}, "which the profile 'economy' has 20000"),
    ],
)
def test_low_water_above_high_water_is_refused(given: dict[str, Any], words: str) -> None:
    """The check applies to a low water above the profile's high water, too."""
    with pytest.raises(ConfigError, match=words):
        archival_rules(ArchivalConfig(**given))


def test_turns_begin_with_prompts() -> None:
    """Adjacent prompts begin one turn. Results and system messages begin none."""
    system = Message("system", (Text("be good"),))
    messages = [system, user("a"), user("b"), call("x"), result("x"), assistant("c"), user("d"), assistant("e")]
    assert [(turn.start, turn.body, turn.stop) for turn in turns_of(messages)] == [(1, 3, 6), (6, 7, 8)]
    assert [(turn.start, turn.body) for turn in turns_of([assistant("first"), user("x")])] == [(0, 0), (1, 2)]
    assert turns_of([]) == turns_of([system]) == []


def test_phases_never_separate_a_call_from_its_result() -> None:
    """A phase ends only where all calls have results. The last group of a turn stays."""
    messages = [user("q"), call("a", "b"), result("a"), result("b"), call("c"), result("c")]
    assert groups_of(messages, 1, len(messages)) == [4]
    assert groups_of([user("q"), call("a"), call("b"), result("a"), result("b"), call("c")], 1, 6) == [5]


def test_adjacent_assistant_messages_are_one_response() -> None:
    """Adjacent assistant messages count as one model call."""
    assert responses([user("q"), call("a"), call("b"), result("a"), result("b"), assistant("done")]) == 2


def test_running_turn_is_never_archived() -> None:
    """A turn can be archived after its reply or after the next prompt."""
    rules = archival_rules(ArchivalConfig())
    running = [user("q"), call("a"), result("a")]
    sizes = [100, 100, 9000]
    assert turns_to_archive(view(running, sizes), rules, TRIGGER, PRICES) == []
    over = [*running, assistant("done")]
    assert len(turns_to_archive(view(over, [*sizes, 50]), rules, TRIGGER, PRICES)) == 1
    cut = [*running, call("b"), user("stop")]
    assert len(turns_to_archive(view(cut, [*sizes, 50, 10]), rules, TRIGGER, PRICES)) == 1


def test_small_turns_are_archived_together_once_it_pays() -> None:
    """Turns that do not pay one at a time are archived together."""
    rules = archival_rules(ArchivalConfig(block_entries=0))
    turn = [user("q"), call("a"), result("a"), assistant("done")]
    small = [50, 50, 480, 40]
    alone = turns_to_archive(view(turn, small, calls=2), rules, TRIGGER, PRICES)
    later = turns_to_archive(view(turn * 3, small * 3, calls=300, saved=2_000), rules, TRIGGER, PRICES)
    assert (len(alone), len(later)) == (0, 3) or len(alone) == 1


@given(
    st.lists(st.tuples(st.integers(1, 3_000), st.integers(1, 400), st.booleans()), min_size=1, max_size=8),
    st.integers(0, 3),
    st.sampled_from([None, 1]),
)
def test_gain_of_the_last_turns_does_not_depend_on_the_turns_before(
    turns: list[tuple[int, int, bool]], last: int, calls: int | None
) -> None:
    """All gains are computed in one pass. Each is the gain of these turns alone, also if the last was not sent yet."""
    messages = [message for _ in turns for message in (user("q"), call("a"), result("a"), assistant("done"))]
    seen = view(
        [*messages, *[user("q")] * last], [size for work, _, _ in turns for size in (9, 5, work, 7)] + [8] * last
    )
    parts = [
        Candidate(at, at + 1, at + 4, work + 12, added, 220 * summary, 30, at + 1)
        for at, (work, added, summary) in zip(range(0, len(messages), 4), turns, strict=True)
    ]
    rules = archival_rules(ArchivalConfig())
    gains = gains_of_suffixes(seen, rules, PRICES, parts, calls=calls)
    for index, gain in enumerate(gains):
        alone = combined_gain(seen, rules, PRICES, parts[index:], calls=calls)
        assert (gain.saved, gain.cost) == pytest.approx((alone.saved, alone.cost))


def test_pressure_archives_turns_that_would_not_pay() -> None:
    """Above the high water, turns are archived even if the gate estimates no gain, from what archiving has saved."""
    rules = archival_rules(ArchivalConfig(high_tokens=50_000))
    messages = [user("q"), call("a"), result("a"), assistant("done"), user("now")]
    messages += [call("b"), result("b"), call("c"), result("c")]
    light = view(messages, [10, 10, 3000, 10, 10, 10, 40_000, 10, 10], calls=1)
    heavy = view(messages, [10, 10, 3000, 10, 10, 10, 60_000, 10, 10], calls=1, saved=100_000)
    assert turns_to_archive(light, rules, TRIGGER, PRICES) == []
    assert len(turns_to_archive(heavy, rules, TRIGGER, PRICES)) == 1


def test_phases_reduce_the_turn_to_the_low_water() -> None:
    """The oldest groups leave first, until the conversation is at the low water."""
    rules = archival_rules(ArchivalConfig(high_tokens=10_000, low_tokens=4_000, gate=False))
    steps = [message for number in range(12) for message in (call(f"c{number}"), result(f"c{number}"))]
    messages = [user("q"), *steps]
    sizes = [100] + [100, 900] * 12
    cut = next_phases(view(messages, sizes), rules, PRICES)[0]
    assert (cut.kind, cut.start, cut.body) == ("phase", 0, 1)
    assert 3_000 <= sum(sizes[cut.stop :]) <= 4_100
    assert next_phases(view(messages[:15], sizes[:15]), rules, PRICES) == []


def test_depth_cap_bounds_every_profile() -> None:
    """At the depth cap, no profile archives a turn."""
    for profile in ("seed", "economy"):
        rules = archival_rules(ArchivalConfig(profile=profile))  # type: ignore[arg-type]
        turn = view([user("q"), *[call("a"), result("a")] * 6, assistant("done")])
        assert turns_to_archive(turn, rules, TRIGGER, PRICES, depth=2)
        assert turns_to_archive(turn, rules, TRIGGER, PRICES, depth=3) == []


SMALL_TURN = [user("q"), call("a"), result("a"), assistant("done")]


@pytest.mark.parametrize("profile", ["economy", "balanced", "roomy", "seed"])
@pytest.mark.parametrize(
    ("trigger", "stop_reason", "archived"),
    [
        ({"tool_call_threshold": 1}, None, True),
        ({"tool_call_threshold": 2}, None, False),
        ({"token_threshold": 40}, None, True),
        ({"token_threshold": 41}, None, False),
        ({"on_max_turns": True}, "max_turns", True),
        ({"on_max_turns": False}, "max_turns", False),
        ({"on_max_turns": True, "tool_call_threshold": 9}, None, False),
        ({"tool_call_threshold": 1, "depth_cap": 0}, None, False),
    ],
)
def test_configured_trigger_acts_in_every_profile(
    profile: Profile, trigger: dict[str, Any], stop_reason: StopReason | None, archived: bool
) -> None:
    """A configured condition archives a turn whose archive does not pay; the others have no effect on this turn."""
    rules = archival_rules(ArchivalConfig(profile=profile))
    small = view(SMALL_TURN, [10] * 4, stop_reason=stop_reason)
    found = turns_to_archive(small, rules, TriggerConfig(**trigger), PRICES)
    assert [(each.start, each.stop) for each in found] == [(0, 4)] * archived


def test_trigger_counts_the_archived_phases_of_a_turn() -> None:
    """Calls and tokens that left the conversation with a phase count as well."""
    rules = archival_rules(ArchivalConfig())
    cut = view(SMALL_TURN, [10] * 4, archived_calls={0: 4}, original_tokens=[970, 10, 10, 10])
    for trigger in (TriggerConfig(tool_call_threshold=5), TriggerConfig(token_threshold=1000)):
        assert turns_to_archive(cut, rules, trigger, PRICES)
    for trigger in (TriggerConfig(tool_call_threshold=6), TriggerConfig(token_threshold=1001)):
        assert turns_to_archive(cut, rules, trigger, PRICES) == []


def test_trigger_adds_to_the_turns_that_pay() -> None:
    """A large turn is archived because it pays, a small one because of its calls. Both are in order."""
    large = [user("q"), call("b"), result("b"), assistant("done")]
    both = view([*SMALL_TURN, *large], [10, 10, 10, 10, 10, 10, 9000, 10], calls=20)
    found = turns_to_archive(both, archival_rules(ArchivalConfig()), TriggerConfig(tool_call_threshold=1), PRICES)
    assert [each.start for each in found] == [0, 4]
    found = turns_to_archive(both, archival_rules(ArchivalConfig()), TriggerConfig(token_threshold=10**6), PRICES)
    assert [each.start for each in found] == [4]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"turns": False, "trigger": TriggerConfig(token_threshold=9)},
            "token_threshold = 9 .* archival.turns = false",
        ),
        ({"turns": False, "trigger": TriggerConfig(on_max_turns=True)}, "on_max_turns = true has no effect"),
        (
            {"trigger": TriggerConfig(tool_call_threshold=1, depth_cap=0)},
            "tool_call_threshold = 1 .* archival.trigger.depth_cap = 0 .* Set it to 1",
        ),
    ],
)
def test_trigger_without_effect_is_refused(given: dict[str, Any], words: str) -> None:
    """The error names the setting that disables the trigger."""
    with pytest.raises(ConfigError, match=words):
        archival_rules(ArchivalConfig(**given))


# Merging of records.


def test_records_within_budget_are_not_merged() -> None:
    """No records merge without a budget, and a single record never merges."""
    stubs = [RecordSize(100)] * 10
    assert not list(possible_merges(stubs, 1000))
    assert not list(possible_merges(stubs, 0))
    assert not list(possible_merges([RecordSize(5000)], 1000))


def test_oldest_records_merge_until_half_the_budget() -> None:
    """The latest record never merges."""
    merge = next(possible_merges([RecordSize(100)] * 11, 1000))
    assert merge == RecordMerge(0, 6, 1)
    huge = next(possible_merges([RecordSize(100), RecordSize(100), RecordSize(100_000)], 1000))
    assert huge == RecordMerge(0, 2, 1)


def test_eras_merge_logarithmically() -> None:
    """After 10,000 turns, the records are within the budget and have at most 20 levels."""
    budget = 6_000
    stubs: list[RecordSize] = []
    original: list[int] = []
    spans = [0]
    for _ in range(10_000):
        stubs.append(RecordSize(400))
        original.append(9_000)
        while merge := next(possible_merges(stubs, budget), None):
            part = slice(merge.start, merge.stop)
            total = sum(original[part])
            stubs[part] = [RecordSize(25 + era_tokens(budget, total), merge.level)]
            original[part] = [total]
        spans.append(sum(stub.tokens for stub in stubs))
    assert max(spans) <= budget
    assert 3 <= max(stub.level for stub in stubs) <= 20
    assert [stub.level for stub in stubs] == sorted((stub.level for stub in stubs), reverse=True)


@given(st.lists(st.builds(RecordSize, st.integers(1, 5000), st.integers(0, 4)), max_size=40), st.integers(0, 5000))
def test_merging_terminates(stubs: list[RecordSize], budget: int) -> None:
    """Each merge takes at least two records and creates a higher level."""
    for _ in range(len(stubs) + 1):
        merge = next(possible_merges(stubs, budget), None)
        if merge is None:
            break
        assert merge.stop - merge.start >= 2
        assert merge.level > max(stub.level for stub in stubs[merge.start : merge.stop]) - FAN_OUT
        stubs[merge.start : merge.stop] = [RecordSize(era_tokens(budget, 10_000), merge.level)]
    else:
        pytest.fail("merging goes on")


# The block of live subagents.


def test_block_lists_the_latest_archives_and_counts_the_rest() -> None:
    """Each archive has one line with its id and task."""
    live = [LiveSubagent(f"id{number}", f"Archive: task\n{number}") for number in range(6)]
    text = live_block(live, 2)
    assert text.startswith("# Live Subagents\n")
    assert "- id: id4 | task: Archive: task 4\n- id: id5 | task: Archive: task 5\nand 4 more" in text
    assert "id3" not in text
    assert "more" not in live_block(live, 6)


def test_no_archives_no_block() -> None:
    """The block is empty without archives and with a limit of zero."""
    assert live_block([], 4) == live_block([LiveSubagent("a", "b")], 0) == ""


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_estimated_size_barely_depends_on_the_message_format(shape: Shape) -> None:
    """The same conversation has the same estimated size in every message format."""
    read = format_named(shape.name).read
    sizes = [
        TokenEstimator(PLAIN).messages(map(read, work(shape, 1))),
        TokenEstimator(PLAIN).messages(map(format_named("openai").read, work(SHAPES[1], 1))),
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)
