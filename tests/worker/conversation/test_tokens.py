"""Token estimates: by kind and length of a text, and corrected by reported usage."""

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
from orch_worker.conversation.tokens import (
    MAX_FACTOR,
    PLAIN,
    PRIOR,
    PROVIDER_OVERHEAD_TOKENS,
    CharsPerToken,
    TokenEstimator,
    strings,
)
from orch_worker.session.entry_codec import UnknownEntry
from pictures import png

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
    def test_token_ratio_depends_on_the_kind_of_text(self, text: str, ratio: float) -> None:
        """The kinds are prose, code, data, figures and scripts without spaces."""
        assert TokenEstimator(CLASSES).text(text) == pytest.approx(len(text) / ratio, abs=2)

    def test_long_text_is_estimated_by_samples(self) -> None:
        """The estimate scales with the length."""
        one = TokenEstimator(CLASSES).text("plain words all along the way " * 200)
        assert TokenEstimator(CLASSES).text("plain words all along the way " * 2000) == pytest.approx(
            10 * one, rel=0.01
        )

    @pytest.mark.parametrize(("length", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2)])
    def test_default_ratio_is_four_characters_per_token(self, length: int, tokens: int) -> None:
        """The result is rounded up."""
        assert TokenEstimator().text("x" * length) == tokens


class TestMessages:
    """The size of messages."""

    @pytest.mark.parametrize(
        ("block", "minimum"),
        [
            (Text("x" * 400), 100),
            (Thinking("x" * 400), 100),
            (Image("image/png", "x" * 100_000), 1600),
            (ToolUse("c", "t", {"deep": [{"er": "x" * 400}]}), 100),
            (ToolResult("c", (Text("x" * 200), Text("y" * 200))), 100),
            (Opaque("p", {"a": ["x" * 400]}), 100),
        ],
    )
    def test_every_block_counts_towards_the_estimate(self, block: Any, minimum: int) -> None:
        """Blocks are text, thinking, calls, results and opaque blocks. Images of unknown size have a fixed size."""
        assert minimum <= TokenEstimator(PLAIN).message(Message("user", (block,))) <= minimum + 10

    @pytest.mark.parametrize(
        ("width", "height", "tokens"),
        [(1, 1, 1), (300, 250, 100), (1000, 1000, 1334), (4000, 400, 328), (4000, 4000, 1600)],
    )
    def test_images_count_by_their_size(self, width: int, height: int, tokens: int) -> None:
        """A token covers 750 pixels, after a large image is reduced to at most 1568 pixels."""
        assert TokenEstimator(PLAIN).message(user([Image.from_bytes(png(width, height))])) == tokens

    def test_messages_calls_and_results_have_a_fixed_overhead(self) -> None:
        """The overhead is added to the size of their content."""
        around = TokenEstimator(CharsPerToken(4, 4, 4, 4, 4, message=3, call=20, result=10))
        plain = TokenEstimator(PLAIN)
        both = Message("user", (ToolUse("c", "name", {}), ToolResult("c", (Text("x" * 40),))))
        assert around.message(both) == plain.message(both) + 33

    def test_strings_of_nested_data_are_found_in_order(self) -> None:
        """Keys and values of nested data are in their original order."""
        assert list(strings({"a": ["b", 1, None, {"c": True}], "d": "e"})) == ["a", "b", "1", "c", "True", "d", "e"]

    def test_model_family_is_found_by_name(self) -> None:
        """An unknown name has the default of the caller."""
        assert ratios_named("anthropic:Claude-Sonnet-5-5") is ratios_named("anthropic-messages") is CLAUDE
        assert ratios_named("openai:gpt-6-luna") is GPT
        assert (ratios_named("acme:large"), ratios_named("acme:large", GPT)) == (PLAIN, GPT)

    def test_unknown_backend_models_use_default_ratios(self) -> None:
        """Backends without a model count four characters per token."""
        assert ratios_of(BackendSpec("scripted", options={"items": []})) is PLAIN
        assert ratios_of(BackendSpec("moonshot", "kimi-k3", {"api": "chat"})) is GPT
        assert ratios_of(BackendSpec("anthropic", "claude-x", {"api": "messages"})) is CLAUDE


class TestReports:
    """Usage that providers report corrects the estimate."""

    def test_reported_growth_calibrates_the_factor(self) -> None:
        """Only the growth between requests counts, so their fixed part has no effect. Implausible reports are
        ignored."""
        estimator = TokenEstimator(PLAIN)
        found = [(10_000, 52_000), (20_000, 72_000), (20_000, 72_000), (5000, 1500), (15_000, 21_500), (30_000, 0)]
        for raw, reported in found:
            estimator.observe(raw, reported)
        assert estimator.factor == pytest.approx((40_000 + PRIOR) / (20_000 + PRIOR))
        assert estimator.text("x" * 40_000) == pytest.approx(10_000 * estimator.factor, abs=1)

    def test_small_growth_barely_changes_the_factor(self) -> None:
        """Small growth says little, even if it is far from the estimate."""
        estimator = TokenEstimator(PLAIN)
        estimator.observe(10, 1000)
        estimator.observe(100, 1300)
        assert 1.0 < estimator.factor < 1.15

    def test_implausible_growth_is_ignored(self) -> None:
        """A retried request is billed twice and says nothing about text size."""
        estimator = TokenEstimator(PLAIN)
        for raw, reported in [(10_000, 10_000), (12_000, 24_000), (14_000, 14_000), (24_000, 24_000)]:
            estimator.observe(raw, reported)
        assert estimator.factor == 1.0

    def test_calibration_factor_is_bounded(self) -> None:
        """The maximum applies to a given factor, too."""
        estimator = TokenEstimator(PLAIN, factor=100.0)
        assert estimator.factor == MAX_FACTOR

    def test_calibration_can_start_from_a_given_factor(self) -> None:
        """The given factor loses its effect with later reports."""
        estimator = TokenEstimator(PLAIN, factor=2.0)
        assert estimator.text("x" * 400) == 200
        for raw in range(0, 1_000_000, 10_000):
            estimator.observe(raw, raw)
        assert estimator.factor == pytest.approx(1.0, abs=0.01)

    def test_estimate_is_the_last_report_plus_new_messages(self) -> None:
        """Only new messages are estimated."""
        estimator = TokenEstimator(PLAIN)
        assert estimator.request(1000.0) == 1000
        estimator.observe(1000.0, 9000)
        assert (estimator.request(1000.0), estimator.request(1400.0)) == (9000, 9400)
        assert (estimator.request(200.0), estimator.request(-99_999.0)) == (8200, 0)

    def test_report_far_below_the_estimate_is_not_believed(self) -> None:
        """A server that leaves out cached tokens does not make requests look small."""
        estimator = TokenEstimator(PLAIN)
        assert not estimator.observe(10_000, 100)
        assert estimator.request(10_000) == 10_000
        assert estimator.observe(10_000, 8_000)
        assert not estimator.observe(12_000, 100)
        assert (estimator.request(12_000), estimator.factor) == (10_000, 1.0)

    def test_constant_report_does_not_outlive_a_removal(self) -> None:
        """A shorter request is never estimated at nothing, although the last report was too small for its request."""
        estimator = TokenEstimator(PLAIN)
        assert estimator.observe(10_000, 3_000)
        assert estimator.request(2_000) == 500

    def test_refusal_corrects_reports_that_were_too_small(self) -> None:
        """The size that a refusal proves replaces the reports. Later reports far below it are not believed."""
        estimator = TokenEstimator(PLAIN)
        estimator.observe(10_000, 5_000)
        estimator.refused(18_000, 18_000)
        assert (estimator.request(18_000), estimator.request(9_000)) == (18_000, 9_000)
        assert not estimator.observe(9_000, 4_500)
        assert estimator.request(9_000) == 9_000
        assert estimator.observe(9_000, 8_000)

    def test_refusal_below_the_estimate_changes_nothing(self) -> None:
        """The estimate already says that the request is too long."""
        estimator = TokenEstimator(PLAIN)
        estimator.observe(10_000, 12_000)
        estimator.refused(12_000, 13_000)
        assert (estimator.request(12_000), estimator.factor) == (14_000, 1.0)

    def test_growth_after_a_removal_is_not_used(self) -> None:
        """The next report is the new base."""
        estimator = TokenEstimator(PLAIN)
        estimator.observe(10_000, 10_000)
        estimator.changed()
        estimator.observe(11_000, 14_000)
        assert estimator.factor == 1.0
        assert estimator.request(11_000) == 14_000


def transcript(*steps: tuple[str, int] | Any) -> list[Any]:
    """Return entries from steps: a text with its reported input tokens, or a constructor of another entry."""
    entries: list[Any] = []
    for number, step in enumerate(steps):
        common = {"id": str(number), "parent_id": str(number - 1) if number else None, "timestamp": ""}
        if not isinstance(step, tuple):
            entries.append(step(**common))
            continue
        text, found = step
        message = assistant(text) if found else user(text)
        entries.append(
            MessageEntry(**common, message=message, turn="q", usage=Usage(found, 5, 0, 0) if found else None)
        )
    return entries


def learned(entries: Sequence[object]) -> float:
    estimator = TokenEstimator(PLAIN)
    estimator.learn(entries)
    return estimator.factor


class TestTranscripts:
    """Calibration from the entries of a transcript."""

    def test_calibration_is_restored_from_a_transcript(self) -> None:
        """The same reports give the same factor."""
        long, answer = "x" * 40_000, "y" * 4000
        entries = transcript((long, 0), (answer, 21_000), (long, 0), (answer, 43_000), (long, 0), ("z", 65_000))
        live = TokenEstimator(PLAIN)
        for raw, text in ((10_000, 21_000), (21_000, 43_000), (32_000, 65_000)):
            live.observe(raw, text)
        assert learned(entries) == pytest.approx(live.factor)
        assert live.factor > 1.8

    def test_cached_tokens_count_towards_the_request_size(self) -> None:
        """Cache reads and cache writes count like uncached input."""
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
    def test_growth_across_branches_and_unknown_changes_is_not_used(self, between: Any, counts: bool) -> None:
        """Growth does not count if the conversation was cut or branched, or changed by an unknown entry."""
        entries = transcript(("x" * 4000, 0), ("y", 1000), between, ("x" * 40_000, 0), ("y", 21_000))
        assert (learned(entries) > 1.5) is counts

    def test_usage_of_tools_is_not_a_request_size(self) -> None:
        """Usage next to results belongs to other models."""
        entries = transcript(("x" * 4000, 0), ("y", 1000), ("x" * 40_000, 0), ("y", 11_000))
        common = {"id": "2", "parent_id": "1", "timestamp": ""}
        entries[2] = MessageEntry(**common, message=user("x" * 40_000), turn="q", usage=Usage(900_000, 5))
        assert learned(entries) == pytest.approx(1.0, rel=0.001)


class TestMost:
    """Upper bounds, which budgets need."""

    def test_upper_bound_of_an_unreported_request_adds_half(self) -> None:
        """The bound includes the provider's own overhead."""
        assert TokenEstimator().max_request_tokens(1_000) == 1_500 + PROVIDER_OVERHEAD_TOKENS

    def test_upper_bound_after_a_report_doubts_only_changes(self) -> None:
        """New and removed messages are uncertain, but the reported part is not."""
        estimator = TokenEstimator()
        estimator.observe(1_000, 1_200)
        assert estimator.max_request_tokens(1_000) == 1_200
        assert estimator.max_request_tokens(1_100) == 1_350
        assert estimator.max_request_tokens(700) == 1_000
