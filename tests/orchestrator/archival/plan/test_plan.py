"""The rules by themselves: profiles, triggers, gate, turns, groups, roll-up, block. Data in, data out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_shapes import SHAPES, Shape, work
from orch.archival.adapters import format_named
from orch.archival.plan.economics import Change, Prices, estimate_gain, expected_calls, summary_cost
from orch.archival.plan.plan import ConversationView, next_era, next_phases, turns_to_archive
from orch.archival.plan.rollup import FAN_OUT, RecordMerge, RecordSize, era_tokens, preferred_merge
from orch.archival.plan.triggers import TurnFacts, evaluate_trigger
from orch.config.archival_profiles import rules_of
from orch_protocol.agent.config import ArchivalConfig, Profile, TriggerConfig
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import (
    Block,
    Image,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    assistant,
    user,
)
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
    """Return `messages` as the rules see them, `sizes` tokens each."""
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


@settings(deadline=None)
@given(odd_messages, st.sampled_from(["seed", "economy", "balanced", "roomy"]), st.booleans())
def test_rules_never_raise(messages: list[Message], profile: Profile, summaries: bool) -> None:
    """However odd a conversation, the rules answer, and what they name lies inside it, in order."""
    rules = rules_of(ArchivalConfig(profile=profile, high_tokens=5, low_tokens=1, rollup_tokens=3))
    estimator = TokenEstimator(CharsPerToken(4, 4, 3, 2, 1))
    seen = view(messages, [estimator.message(message) for message in messages], summaries=summaries)
    found = turns_to_archive(seen, rules, TRIGGER, PRICES, estimator) + next_phases(seen, rules, PRICES)
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
def test_trigger_always_gives_a_reason(facts: TurnFacts, trigger: TriggerConfig) -> None:
    """Any facts get a verdict with a reason; at the cap, as a holder or unfinished it is always no."""
    verdict = evaluate_trigger(facts, trigger)
    assert verdict.reason
    assert not (verdict.archive and (facts.unfinished or facts.depth >= trigger.depth_cap))
    assert not evaluate_trigger(TurnFacts(3, tool_calls=99, holder=True), trigger).archive


@given(st.builds(Change, *[st.integers(-100, 10**7)] * 7), st.integers(-5, 10**6))
def test_gate_never_raises(change: Change, calls: int) -> None:
    """Any change has a gain, and pays exactly when it saves more than it costs."""
    gain = estimate_gain(change, calls, PRICES)
    assert gain.pays == (gain.net > 0)


@pytest.mark.parametrize(
    ("change", "calls", "pays"),
    [
        (Change(removed=5000, added=200), 8, True),
        (Change(removed=300, added=200), 8, False),
        (Change(removed=5000, added=200, behind=100_000), 8, False),
        (Change(removed=5000, added=200, behind=100_000), 500, True),
        (Change(removed=2000, added=200, summary=220, context=9_000), 8, False),
        (Change(removed=20_000, added=200, summary=220, context=30_000), 8, True),
        (Change(removed=1000, added=200, uncached=600), 8, True),
        (Change(removed=600, added=100, tail=77), 8, False),
    ],
)
def test_gate(change: Change, calls: int, pays: bool) -> None:
    """What goes must be worth, over the calls to come, more than what is written anew, said, and carried along."""
    assert estimate_gain(change, calls, PRICES).pays is pays


def test_as_many_calls_are_expected_as_there_were() -> None:
    """At the beginning eight calls are expected, later as many as so far."""
    assert [expected_calls(so_far) for so_far in (0, 7, 8, 200)] == [8, 8, 8, 200]


def test_summary_is_asked_for_where_it_is_cheapest() -> None:
    """A long context is not read again for a short turn, nor a long turn beside a short context."""
    assert summary_cost(1_000, 500_000, 100, PRICES) == 1_000 + 500
    assert summary_cost(50_000, 60_000, 100, PRICES) == 6_000 + 500
    assert summary_cost(50_000, 60_000, 0, PRICES) == 0


@pytest.mark.parametrize(
    ("profile", "high", "low"),
    [("economy", 20_000, 8_000), ("balanced", 40_000, 15_000), ("roomy", 60_000, 20_000)],
)
def test_profiles(profile: Profile, high: int, low: int) -> None:
    """A profile is its two waters, with phases and the gate; the seed's has neither."""
    rules = rules_of(ArchivalConfig(profile=profile))
    assert (rules.high, rules.low, rules.phase, rules.gate) == (high, low, True, True)
    seed = rules_of(ArchivalConfig(profile="seed"))
    assert (seed.phase, seed.gate, seed.rollup) == (False, False, 0)


def test_settings_override_the_profile() -> None:
    """What is set counts before what the profile says; a high water alone brings the low one along."""
    rules = rules_of(ArchivalConfig(phase=False, gate=False, high_tokens=100, low_tokens=90, rollup_tokens=7))
    assert (rules.phase, rules.gate, rules.high, rules.low, rules.rollup) == (False, False, 100, 90, 7)
    assert rules_of(ArchivalConfig(high_tokens=10)).low == 5


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
def test_a_low_water_above_the_high_is_refused(given: dict[str, Any], words: str) -> None:
    """Nothing could be done about it: the high one may be the profile's."""
    with pytest.raises(ConfigError, match=words):
        rules_of(ArchivalConfig(**given))


def test_turns_begin_with_prompts() -> None:
    """A turn is from prompt to prompt; several in a row are one; results ask nothing; a head belongs to none."""
    system = Message("system", (Text("be good"),))
    messages = [system, user("a"), user("b"), call("x"), result("x"), assistant("c"), user("d"), assistant("e")]
    assert [(turn.start, turn.body, turn.stop) for turn in turns_of(messages)] == [(1, 3, 6), (6, 7, 8)]
    assert [(turn.start, turn.body) for turn in turns_of([assistant("first"), user("x")])] == [(0, 0), (1, 2)]
    assert turns_of([]) == turns_of([system]) == []


def test_cuts_part_no_call_from_its_result() -> None:
    """A group ends when all results are there and the model goes on; the last one is never cut off."""
    messages = [user("q"), call("a", "b"), result("a"), result("b"), call("c"), result("c")]
    assert groups_of(messages, 1, len(messages)) == [4]
    assert groups_of([user("q"), call("a"), call("b"), result("a"), result("b"), call("c")], 1, 6) == [5]


def test_parallel_items_are_one_response() -> None:
    """Assistant messages in a row are one model call."""
    assert responses([user("q"), call("a"), call("b"), result("a"), result("b"), assistant("done")]) == 2


def test_running_turn_is_never_archived() -> None:
    """As long as results are the last word, the turn runs; the answer, or the next prompt, ends it."""
    rules = rules_of(ArchivalConfig())
    running = [user("q"), call("a"), result("a")]
    sizes = [100, 100, 9000]
    assert turns_to_archive(view(running, sizes), rules, TRIGGER, PRICES, TokenEstimator()) == []
    over = [*running, assistant("done")]
    assert len(turns_to_archive(view(over, [*sizes, 50]), rules, TRIGGER, PRICES, TokenEstimator())) == 1
    cut = [*running, call("b"), user("stop")]
    assert len(turns_to_archive(view(cut, [*sizes, 50, 10]), rules, TRIGGER, PRICES, TokenEstimator())) == 1


def test_small_turns_wait_for_each_other() -> None:
    """A turn too small to pay by itself goes along with later ones once they pay together."""
    rules = rules_of(ArchivalConfig(block_entries=0))
    turn = [user("q"), call("a"), result("a"), assistant("done")]
    small = [50, 50, 480, 40]
    alone = turns_to_archive(view(turn, small, calls=2), rules, TRIGGER, PRICES, TokenEstimator())
    later = turns_to_archive(view(turn * 3, small * 3, calls=300), rules, TRIGGER, PRICES, TokenEstimator())
    assert (len(alone), len(later)) == (0, 3) or len(alone) == 1


def test_pressure_archives_what_would_not_pay() -> None:
    """Past the high water finished turns go, whatever is behind them."""
    rules = rules_of(ArchivalConfig(high_tokens=50_000))
    messages = [user("q"), call("a"), result("a"), assistant("done"), user("now")]
    messages += [call("b"), result("b"), call("c"), result("c")]
    light = view(messages, [10, 10, 3000, 10, 10, 10, 40_000, 10, 10], calls=1)
    heavy = view(messages, [10, 10, 3000, 10, 10, 10, 60_000, 10, 10], calls=1)
    assert turns_to_archive(light, rules, TRIGGER, PRICES, TokenEstimator()) == []
    assert len(turns_to_archive(heavy, rules, TRIGGER, PRICES, TokenEstimator())) == 1


def test_phases_go_down_to_the_low_water() -> None:
    """Past the high water the oldest groups go, until what stays is about the low water; below it nothing does."""
    rules = rules_of(ArchivalConfig(high_tokens=10_000, low_tokens=4_000, gate=False))
    steps = [message for number in range(12) for message in (call(f"c{number}"), result(f"c{number}"))]
    messages = [user("q"), *steps]
    sizes = [100] + [100, 900] * 12
    cut = next_phases(view(messages, sizes), rules, PRICES)[0]
    assert (cut.kind, cut.start, cut.body) == ("phase", 0, 1)
    assert 3_000 <= sum(sizes[cut.stop :]) <= 4_100
    assert next_phases(view(messages[:15], sizes[:15]), rules, PRICES) == []


def test_depth_cap_bounds_every_profile() -> None:
    """At the cap nothing is archived."""
    for profile in ("seed", "economy"):
        rules = rules_of(ArchivalConfig(profile=profile))  # type: ignore[arg-type]
        turn = view([user("q"), *[call("a"), result("a")] * 6, assistant("done")])
        assert turns_to_archive(turn, rules, TRIGGER, PRICES, TokenEstimator(), depth=2)
        assert turns_to_archive(turn, rules, TRIGGER, PRICES, TokenEstimator(), depth=3) == []


# Roll-up.


def test_stubs_within_budget_stay() -> None:
    """Nothing merges while stubs fit, without a budget, or when there is only one."""
    stubs = [RecordSize(100)] * 10
    assert preferred_merge(stubs, 1000) is None
    assert preferred_merge(stubs, 0) is None
    assert preferred_merge([RecordSize(5000)], 1000) is None


def test_oldest_stubs_merge_and_the_latest_stays() -> None:
    """Past the budget the oldest merge until half of it is used; the latest is never among them."""
    merge = preferred_merge([RecordSize(100)] * 11, 1000)
    assert merge == RecordMerge(0, 6, 1)
    huge = preferred_merge([RecordSize(100), RecordSize(100), RecordSize(100_000)], 1000)
    assert huge == RecordMerge(0, 2, 1)


def test_eras_merge_like_a_log() -> None:
    """Any number of turns stays within the budget, at a depth that grows with its logarithm."""
    budget = 6_000
    stubs: list[RecordSize] = []
    spans = [0]
    for _ in range(10_000):
        stubs.append(RecordSize(400))
        while merge := preferred_merge(stubs, budget):
            stubs[merge.start : merge.stop] = [RecordSize(min(25 + era_tokens(budget), 300), merge.level)]
        spans.append(sum(stub.tokens for stub in stubs))
    assert max(spans) <= budget
    assert 3 <= max(stub.level for stub in stubs) <= 12
    assert [stub.level for stub in stubs] == sorted((stub.level for stub in stubs), reverse=True)


@given(st.lists(st.builds(RecordSize, st.integers(1, 5000), st.integers(0, 4)), max_size=40), st.integers(0, 5000))
def test_merging_always_ends(stubs: list[RecordSize], budget: int) -> None:
    """Whatever the stubs, each merge takes at least two, and after at most as many merges as stubs it is over."""
    for _ in range(len(stubs) + 1):
        merge = preferred_merge(stubs, budget)
        if merge is None:
            break
        assert merge.stop - merge.start >= 2
        assert merge.level > max(stub.level for stub in stubs[merge.start : merge.stop]) - FAN_OUT
        stubs[merge.start : merge.stop] = [RecordSize(era_tokens(budget), merge.level)]
    else:
        pytest.fail("merging goes on")


# Block.


def test_block_lists_the_latest_and_counts_the_rest() -> None:
    """The latest are listed by id and task, on one line each; the others are counted and can be found."""
    live = [LiveSubagent(f"id{number}", f"Archive: task\n{number}") for number in range(6)]
    text = live_block(live, 2)
    assert text.startswith("# Live Subagents\n")
    assert "- id: id4 | task: Archive: task 4\n- id: id5 | task: Archive: task 5\nand 4 more" in text
    assert "id3" not in text
    assert "more" not in live_block(live, 6)


def test_no_archives_no_block() -> None:
    """Without archives, or without room, there is no block at all."""
    assert live_block([], 4) == live_block([LiveSubagent("a", "b")], 0) == ""


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_sizes_hardly_depend_on_the_shape(shape: Shape) -> None:
    """The same conversation weighs the same in every shape."""
    read = format_named(shape.name).read
    sizes = [
        TokenEstimator(PLAIN).messages(map(read, work(shape, 1))),
        TokenEstimator(PLAIN).messages(map(format_named("openai").read, work(SHAPES[1], 1))),
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)
