"""How many tokens something is: by kind and length, and by what was reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.messages import (
    Image,
    Message,
    Opaque,
    Reply,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
    assistant,
    user,
)
from orch_protocol.session.entries import Custom, MessageEntry, TurnEndEntry
from orch_worker.backends.model_families import CLAUDE, GPT, ratios_named, ratios_of
from orch_worker.conversation.tokens import MOST_FACTOR, PLAIN, PRIOR, UNSEEN, CharsPerToken, TokenEstimator, strings
from orch_worker.session.session import UnknownEntry

CLASSES = CharsPerToken(prose=5.0, code=4.0, data=3.0, figures=2.0, wide=1.0)


class TestText:
    """The size of text."""

    @pytest.mark.parametrize(
        ("text", "ratio"),
        [
            ("The quick brown fox jumps over the lazy dog and runs away from it all. " * 9, 5.0),
            ("def f(x):\n    return self.g(x) + x[0] * 2  # why\n" * 12, 4.0),
            ("„Gut“ – sagte ‚er‘ … und ging; «bald», oder: nicht!? " * 12, 4.0),
            ('{"name":"x","list":["a","b"],"more":{"k":"v"}},' * 12, 3.0),
            ("2024-05-15 15:00:01.123 4711 ffab12cd34 99.5 12 \n" * 12, 2.0),
            ("世界和平" * 100, 1.0),
        ],
    )
    def test_kinds_of_text_weigh_differently(self, text: str, ratio: float) -> None:
        """Sentences, code, data, figures and scripts without spaces are told apart."""
        assert TokenEstimator(CLASSES).text(text) == pytest.approx(len(text) / ratio, abs=2)

    def test_long_text_is_sized_by_samples(self) -> None:
        """A text's size scales with its length, whatever part is looked at."""
        one = TokenEstimator(CLASSES).text("plain words all along the way " * 200)
        assert TokenEstimator(CLASSES).text("plain words all along the way " * 2000) == pytest.approx(
            10 * one, rel=0.01
        )

    @pytest.mark.parametrize(("length", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2)])
    def test_plainly_four_characters_are_a_token(self, length: int, tokens: int) -> None:
        """A part of one counts whole."""
        assert TokenEstimator().text("x" * length) == tokens


class TestMessages:
    """The size of messages."""

    @pytest.mark.parametrize(
        ("block", "least"),
        [
            (Text("x" * 400), 100),
            (Thinking("x" * 400), 100),
            (Image("image/png", "x" * 100_000), 1600),
            (ToolUse("c", "t", {"deep": [{"er": "x" * 400}]}), 100),
            (ToolResult("c", (Text("x" * 200), Text("y" * 200))), 100),
            (Opaque("p", {"a": ["x" * 400]}), 100),
        ],
    )
    def test_every_block_counts(self, block: Any, least: int) -> None:
        """Text, thinking, calls, results and blocks of a provider's own; images a fixed number."""
        assert least <= TokenEstimator(PLAIN).message(Message("user", (block,))) <= least + 10

    def test_what_stands_around_counts(self) -> None:
        """Each message, call and result takes some tokens whatever is in it."""
        around = TokenEstimator(CharsPerToken(4, 4, 4, 4, 4, message=3, call=20, result=10))
        plain = TokenEstimator(PLAIN)
        both = Message("user", (ToolUse("c", "name", {}), ToolResult("c", (Text("x" * 40),))))
        assert around.message(both) == plain.message(both) + 33

    def test_strings_are_everything_in_order(self) -> None:
        """Names and values of nested data come out in order."""
        assert list(strings({"a": ["b", 1, None, {"c": True}], "d": "e"})) == ["a", "b", "1", "c", "True", "d", "e"]

    def test_families_of_models(self) -> None:
        """By any of the names that tell; an unknown one gets what the caller says."""
        assert ratios_named("anthropic:Claude-Sonnet-5-5") is ratios_named("anthropic-messages") is CLAUDE
        assert ratios_named("openai:gpt-6-luna") is GPT
        assert (ratios_named("acme:large"), ratios_named("acme:large", GPT)) == (PLAIN, GPT)

    def test_ratios_of_a_backend(self) -> None:
        """A model of whatever name is taken for one of the usual ones; what is no model counts plainly."""
        assert ratios_of(BackendSpec("scripted", options={"items": []})) is PLAIN
        assert ratios_of(BackendSpec("moonshot", "kimi-k3", {"api": "chat"})) is GPT
        assert ratios_of(BackendSpec("anthropic", "claude-x", {"api": "messages"})) is CLAUDE


class TestReports:
    """What providers report corrects the estimate."""

    def test_growth_gives_the_factor(self) -> None:
        """What does not change from request to request falls out; odd reports are ignored."""
        estimator = TokenEstimator(PLAIN)
        told = [(10_000, 52_000), (20_000, 72_000), (20_000, 72_000), (5000, 500), (15_000, 20_500), (30_000, 0)]
        for raw, reported in told:
            estimator.observe(raw, reported)
        assert estimator.factor == pytest.approx((40_000 + PRIOR) / (20_000 + PRIOR))
        assert estimator.text("x" * 40_000) == pytest.approx(10_000 * estimator.factor, abs=1)

    def test_a_few_lines_do_not_overrule_the_ratios(self) -> None:
        """Small growth says little, also when it is far off."""
        estimator = TokenEstimator(PLAIN)
        estimator.observe(10, 1000)
        estimator.observe(100, 1300)
        assert 1.0 < estimator.factor < 1.15

    def test_what_no_ratio_explains_is_not_believed(self) -> None:
        """A request that was made twice is billed twice; that tells nothing of the size of text."""
        estimator = TokenEstimator(PLAIN)
        for raw, reported in [(10_000, 10_000), (12_000, 24_000), (14_000, 14_000), (24_000, 24_000)]:
            estimator.observe(raw, reported)
        assert estimator.factor == 1.0

    def test_the_factor_is_bounded(self) -> None:
        """Whatever is reported for however long."""
        estimator = TokenEstimator(PLAIN, factor=100.0)
        assert estimator.factor == MOST_FACTOR

    def test_what_another_one_learned_is_where_it_begins(self) -> None:
        """A factor handed on holds until there is more to go by."""
        estimator = TokenEstimator(PLAIN, factor=2.0)
        assert estimator.text("x" * 400) == 200
        for raw in range(0, 1_000_000, 10_000):
            estimator.observe(raw, raw)
        assert estimator.factor == pytest.approx(1.0, abs=0.01)

    def test_a_request_is_what_the_last_one_was_and_more(self) -> None:
        """What is never seen of a request is in the report; only what came since is estimated."""
        estimator = TokenEstimator(PLAIN)
        assert estimator.request(1000.0) == 1000
        estimator.observe(1000.0, 9000)
        assert (estimator.request(1000.0), estimator.request(1400.0)) == (9000, 9400)
        assert (estimator.request(200.0), estimator.request(-99_999.0)) == (8200, 0)

    def test_growth_over_a_change_is_not_counted(self) -> None:
        """When a part was taken out, the report is where to begin again."""
        estimator = TokenEstimator(PLAIN)
        estimator.observe(10_000, 10_000)
        estimator.changed()
        estimator.observe(11_000, 14_000)
        assert estimator.factor == 1.0
        assert estimator.request(11_000) == 14_000


def transcript(*steps: tuple[str, int] | Any) -> list[Any]:
    """Return entries: a text and what its response is reported to have taken, or an entry of another kind."""
    entries: list[Any] = []
    for number, step in enumerate(steps):
        common = {"id": str(number), "parent_id": str(number - 1) if number else None, "timestamp": ""}
        if not isinstance(step, tuple):
            entries.append(step(**common))
            continue
        text, told = step
        message = assistant(text) if told else user(text)
        entries.append(MessageEntry(**common, message=message, turn="q", usage=Usage(told, 5, 0, 0) if told else None))
    return entries


def learned(entries: Sequence[object]) -> float:
    estimator = TokenEstimator(PLAIN)
    estimator.learn(entries)
    return estimator.factor


class TestTranscripts:
    """What was learned is learned again from the transcript."""

    def test_a_new_process_knows_what_the_last_one_did(self) -> None:
        """The same reports, read back, give the same factor."""
        long, answer = "x" * 40_000, "y" * 4000
        entries = transcript((long, 0), (answer, 21_000), (long, 0), (answer, 43_000), (long, 0), ("z", 65_000))
        live = TokenEstimator(PLAIN)
        for raw, told in ((10_000, 21_000), (21_000, 43_000), (32_000, 65_000)):
            live.observe(raw, told)
        assert learned(entries) == pytest.approx(live.factor)
        assert live.factor > 1.8

    def test_cached_tokens_count(self) -> None:
        """A request is all that was in it, wherever it was read from."""
        entries = transcript(("x" * 40_000, 0), ("y", 0), ("x" * 40_000, 0), ("y", 0))
        for place, usage in ((1, Usage(100, 5, 0, 9_900)), (3, Usage(1000, 5, 19_000, 10_000))):
            common = {"id": str(place), "parent_id": str(place - 1), "timestamp": ""}
            entries[place] = MessageEntry(**common, message=assistant("y"), turn="q", usage=usage)
        assert learned(entries) == pytest.approx((20_000 + PRIOR) / (10_000 + PRIOR), rel=0.001)

    @pytest.mark.parametrize(
        ("between", "counts"),
        [
            (lambda **common: TurnEndEntry(turn="q", reply=Reply("a", "q", "t"), **common), True),
            (lambda **common: Custom(custom_type="x", **common), True),
            (lambda **common: UnknownEntry(common["id"], common["parent_id"], "archive"), False),
            (lambda **common: Custom(custom_type="x", **(common | {"parent_id": "0"})), False),
        ],
    )
    def test_growth_over_something_else_is_not_counted(self, between: Any, counts: bool) -> None:
        """Where the conversation was cut, branched off or changed in a way unknown, its growth tells nothing."""
        entries = transcript(("x" * 4000, 0), ("y", 1000), between, ("x" * 40_000, 0), ("y", 21_000))
        assert (learned(entries) > 1.5) is counts

    def test_what_tools_used_is_no_size_of_a_request(self) -> None:
        """Usage beside results is of other models."""
        entries = transcript(("x" * 4000, 0), ("y", 1000), ("x" * 40_000, 0), ("y", 11_000))
        common = {"id": "2", "parent_id": "1", "timestamp": ""}
        entries[2] = MessageEntry(**common, message=user("x" * 40_000), turn="q", usage=Usage(900_000, 5))
        assert learned(entries) == pytest.approx(1.0, rel=0.001)


class TestMost:
    """Estimates on the safe side, for what has to be paid."""

    def test_what_was_never_reported_is_doubted(self) -> None:
        """It may be half as much again, and there is what providers add of their own."""
        assert TokenEstimator().most_of_request(1_000) == 1_500 + UNSEEN

    def test_what_was_reported_is_known(self) -> None:
        """Only what came since is doubted, or what was taken away: that may have been less."""
        estimator = TokenEstimator()
        estimator.observe(1_000, 1_200)
        assert estimator.most_of_request(1_000) == 1_200
        assert estimator.most_of_request(1_100) == 1_350
        assert estimator.most_of_request(700) == 1_000
