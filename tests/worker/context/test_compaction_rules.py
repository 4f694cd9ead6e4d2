"""Rules of compaction: when a conversation is compacted, and where it is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.agent.spec import CompactionSpec
from orch_protocol.core.archives import Collapse
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, text_of, tool_uses, user
from orch_worker.context.compaction_rules import plan_compaction, safe_cuts, summary_tokens, turn_cut
from orch_worker.conversation.framing import CLOSING, OPENING
from orch_worker.conversation.stubs import stub_text
from orch_worker.session.visible_messages import VisibleMessages

ANSWERED = [user("q"), assistant("a")]
PROJECT = user(f"{OPENING}\n\nIt is made of tin.\n\n{CLOSING}")


def call(*ids: str) -> Message:
    """Return a response with the calls `ids`."""
    return Message("assistant", tuple(ToolUse(id, "look", {}) for id in ids))


def result(*ids: str) -> Message:
    """Return the results of the calls `ids`."""
    return Message("user", tuple(ToolResult(id, (Text("seen"),)) for id in ids))


def view(*messages: Message) -> VisibleMessages[int]:
    """Return a view of `messages` with the entries e0, e1 and so on."""
    made: VisibleMessages[int] = VisibleMessages()
    for number, message in enumerate(messages):
        made.add(f"e{number}", message, number)
    return made


def steps(count: int, before: str = "c") -> list[Message]:
    """Return `count` calls with their results."""
    return [message for n in range(count) for message in (call(f"{before}{n}"), result(f"{before}{n}"))]


class TestRules:
    """The threshold of compaction."""

    @pytest.mark.parametrize(
        ("rules", "window", "at"),
        [
            (CompactionSpec(75), 200_000, 150_000),
            (CompactionSpec(90), 200_000, 180_000),
            (CompactionSpec(90, tokens=80_000), 200_000, 80_000),
            (CompactionSpec(90, tokens=80_000), 0, 80_000),
            (CompactionSpec(90, tokens=80_000), 32_000, 28_800),
            (CompactionSpec(90), 0, 0),
        ],
    )
    def test_threshold_is_the_smaller_of_window_share_and_token_limit(
        self, rules: CompactionSpec, window: int, at: int
    ) -> None:
        """Without a window and a token limit, the threshold is zero, and no conversation is compacted by size."""
        assert rules.compaction_threshold(window) == at


class TestCuts:
    """The positions at which a conversation may be cut."""

    def test_cut_never_separates_a_call_from_its_result(self) -> None:
        """Parallel calls stay together with all their results."""
        items = view(user("q"), call("a", "b"), result("a"), result("b"), assistant("so")).items
        assert safe_cuts(items) == [1, 4]

    def test_cut_lies_behind_the_project_description_and_more_messages(self) -> None:
        """A compaction that removes only fixed messages is not planned."""
        assert safe_cuts(view(PROJECT, *ANSWERED, *ANSWERED).items, context_messages=1) == [2, 3, 4]

    def test_cut_never_separates_a_prompt_from_its_archive_record(self) -> None:
        """The prompt and its record represent the same entries, so a cut does not separate them."""
        seen = view(*ANSWERED, *ANSWERED)
        stubs = (user("q"), assistant(stub_text("turn", "abcdef012345", "r")))
        seen.collapse(Collapse("abcdef012345", "turn", "t", "e0", "e1", stubs, (), ""), 9)
        assert safe_cuts(seen.items) == [2, 3]

    def test_open_call_of_a_dead_process_does_not_block_a_cut(self) -> None:
        """A call without a result counts as complete."""
        assert safe_cuts(view(user("q"), call("a"), user("again"), assistant("so")).items) == [1, 2, 3]

    @pytest.mark.parametrize(
        ("messages", "keep", "cut"),
        [
            ([*ANSWERED], 1, 0),
            ([*ANSWERED * 3], 1, 4),
            ([*ANSWERED * 2], 1, 2),
            ([user("q"), call("a"), result("a"), assistant("x"), *ANSWERED], 1, 4),
            ([user("q"), *steps(9)], 1, 0),
            ([*ANSWERED * 3], 2, 2),
            ([*ANSWERED * 3, user("new")], 1, 4),
            ([], 1, 0),
        ],
    )
    def test_last_turns_with_work_and_the_open_question_are_kept(
        self, messages: list[Message], keep: int, cut: int
    ) -> None:
        """The last `keep` turns with work stay, in addition to an unanswered question."""
        assert turn_cut(messages, keep) == cut


def plan(*messages: Message, tokens: int, rules: CompactionSpec | None = None, refused: bool = False) -> object:
    """Return the plan for messages of equal size and a window of 10,000 tokens."""
    seen = view(*messages)
    size = tokens // max(1, len(messages))
    found = plan_compaction(
        seen.items,
        lambda _: size,
        rules or CompactionSpec(),
        tokens=tokens,
        window=10_000,
        context_messages=seen.project_items,
        refusals=int(refused),
    )
    return (found.stop, found.within) if found is not None else None


class TestPlanned:
    """Planned compactions."""

    def test_no_compaction_below_the_threshold(self) -> None:
        """The number of messages does not matter."""
        assert plan(*ANSWERED * 20, tokens=8_999) is None
        assert plan(*ANSWERED * 20, tokens=9_000) == (38, False)

    def test_compaction_keeps_the_last_turns_and_the_open_question(self) -> None:
        """All earlier turns are removed."""
        assert plan(*ANSWERED * 4, user("new"), tokens=9_100) == (6, False)

    def test_conversation_under_six_messages_is_not_compacted(self) -> None:
        """Four messages are fewer than six."""
        assert plan(*ANSWERED * 2, tokens=9_100) is None

    def test_running_turn_is_cut_near_the_end_of_the_window(self) -> None:
        """A running turn is cut at 95 percent instead of 90, and a quarter of the threshold stays."""
        assert plan(user("q"), *steps(10), tokens=9_400) is None
        assert plan(user("q"), *steps(10), tokens=9_500) == (17, True)

    def test_refused_request_is_cut_by_share_of_the_estimate(self) -> None:
        """The estimate was wrong, so the cut is computed as a share of it."""
        assert plan(user("q"), *steps(10), tokens=3_000, refused=True) == (17, True)
        assert plan(*ANSWERED * 2, tokens=3_000, refused=True) == (2, False)

    def test_compaction_that_would_not_help_is_not_planned(self) -> None:
        """The largest message is the question, which must stay."""
        seen = view(*ANSWERED * 3, user("x" * 100))
        size = {"x": 9_000}
        cut = plan_compaction(
            seen.items,
            lambda message: size.get(text_of(message)[0], 100),
            CompactionSpec(),
            tokens=9_600,
            window=10_000,
        )
        assert cut is None

    def test_single_message_cannot_be_cut(self) -> None:
        """A cut needs a message before it."""
        assert plan(user("q"), tokens=20_000, refused=True) is None

    def test_summary_budget_is_a_tenth_of_the_window_within_bounds(self) -> None:
        """The minimum applies to small windows, and the maximum is 4,000 tokens."""
        assert [summary_tokens(at) for at in (100, 10_000, 180_000)] == [100, 1_000, 4_000]

    @given(st.lists(st.sampled_from(["ask", "say", "one", "two"]), max_size=40), st.integers(1, 5), st.booleans())
    def test_no_plan_separates_a_call_from_its_result(self, kinds: list[str], keep: int, refused: bool) -> None:
        """This is true for any conversation."""
        made: list[Message] = []
        for place, kind in enumerate(kinds):
            ids = {"one": [f"c{place}"], "two": [f"c{place}", f"d{place}"]}.get(kind, [])
            made += [user("q")] if kind == "ask" else [assistant("a")] if kind == "say" else [call(*ids), result(*ids)]
        for tokens in (9_000, 9_600, 30_000):
            found = plan(*made, tokens=tokens, rules=CompactionSpec(keep_turns=keep), refused=refused)
            if found is None:
                continue
            assert isinstance(found, tuple)
            stop = found[0]
            assert 0 < stop < len(made)
            assert not any(tool_uses(before) for before, _ in pairwise(made[stop - 1 : stop + 1]))
