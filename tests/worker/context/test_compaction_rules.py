"""Whether a conversation is to be compacted, and where it is cut."""

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
    """Return a response that makes the calls `ids`."""
    return Message("assistant", tuple(ToolUse(id, "look", {}) for id in ids))


def result(*ids: str) -> Message:
    """Return the results of the calls `ids`."""
    return Message("user", tuple(ToolResult(id, (Text("seen"),)) for id in ids))


def view(*messages: Message) -> VisibleMessages[int]:
    """Return a view of `messages`, the entries e0, e1 and so on."""
    made: VisibleMessages[int] = VisibleMessages()
    for number, message in enumerate(messages):
        made.add(f"e{number}", message, number)
    return made


def steps(count: int, before: str = "c") -> list[Message]:
    """Return `count` calls with their results."""
    return [message for n in range(count) for message in (call(f"{before}{n}"), result(f"{before}{n}"))]


class TestRules:
    """From when on a conversation is compacted."""

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
    def test_at_a_share_of_the_window_or_a_number_of_tokens(self, rules: CompactionSpec, window: int, at: int) -> None:
        """Whichever is less; never when neither is known."""
        assert rules.at(window) == at


class TestCuts:
    """Where a conversation may be cut."""

    def test_never_between_a_call_and_its_result(self) -> None:
        """Calls made at once, results that come one by one: the cut is before or behind all of them."""
        items = view(user("q"), call("a", "b"), result("a"), result("b"), assistant("so")).items
        assert safe_cuts(items) == [1, 4]

    def test_behind_what_is_told_of_the_project_and_something_more(self) -> None:
        """Nothing is compacted that stays anyway."""
        assert safe_cuts(view(PROJECT, *ANSWERED, *ANSWERED).items, told=1) == [2, 3, 4]

    def test_not_between_a_prompt_and_the_archive_that_stands_behind_it(self) -> None:
        """Both stand for the same entries."""
        seen = view(*ANSWERED, *ANSWERED)
        stubs = (user("q"), assistant(stub_text("turn", "abcdef012345", "r")))
        seen.collapse(Collapse("abcdef012345", "turn", "t", "e0", "e1", stubs, (), ""), 9)
        assert safe_cuts(seen.items) == [2, 3]

    def test_a_call_without_a_result_holds_nothing_up(self) -> None:
        """One that a death left open is answered by nobody."""
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
    def test_the_last_turns_stay(self, messages: list[Message], keep: int, cut: int) -> None:
        """So many in which something was done, and the question that was just asked."""
        assert turn_cut(messages, keep) == cut


def plan(*messages: Message, tokens: int, rules: CompactionSpec | None = None, refused: bool = False) -> object:
    """Return what is planned where each message is as large as the next, and the window is 10,000."""
    seen = view(*messages)
    size = tokens // max(1, len(messages))
    found = plan_compaction(
        seen.items,
        lambda _: size,
        rules or CompactionSpec(),
        tokens=tokens,
        window=10_000,
        told=seen.told,
        refused=refused,
    )
    return (found.stop, found.within) if found is not None else None


class TestPlanned:
    """What gives way."""

    def test_nothing_below_the_threshold(self) -> None:
        """However long the conversation is."""
        assert plan(*ANSWERED * 20, tokens=8_999) is None
        assert plan(*ANSWERED * 20, tokens=9_000) == (38, False)

    def test_all_turns_but_the_last(self) -> None:
        """And what was just asked."""
        assert plan(*ANSWERED * 4, user("new"), tokens=9_100) == (6, False)

    def test_a_short_conversation_is_left_alone(self) -> None:
        """Four messages are fewer than six."""
        assert plan(*ANSWERED * 2, tokens=9_100) is None

    def test_a_running_turn_is_cut_when_the_window_is_nearly_full(self) -> None:
        """At 90 percent it is left alone, at 95 it is not: its last steps stay, a quarter of the threshold."""
        assert plan(user("q"), *steps(10), tokens=9_400) is None
        assert plan(user("q"), *steps(10), tokens=9_500) == (17, True)

    def test_a_request_that_was_refused_is_cut_whatever_was_thought_of_it(self) -> None:
        """The estimate was wrong: what goes is reckoned by share."""
        assert plan(user("q"), *steps(10), tokens=3_000, refused=True) == (17, True)
        assert plan(*ANSWERED * 2, tokens=3_000, refused=True) == (2, False)

    def test_what_would_not_help_is_not_done(self) -> None:
        """One message that is larger than all others together cannot leave: it is what is asked."""
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

    def test_a_single_message_cannot_be_cut(self) -> None:
        """There is nothing before it."""
        assert plan(user("q"), tokens=20_000, refused=True) is None

    def test_a_summary_has_room_for_a_tenth(self) -> None:
        """Within bounds, whatever the window is."""
        assert [summary_tokens(at) for at in (100, 10_000, 180_000)] == [100, 1_000, 4_000]

    @given(st.lists(st.sampled_from(["ask", "say", "one", "two"]), max_size=40), st.integers(1, 5), st.booleans())
    def test_no_cut_ever_parts_a_call_from_its_result(self, kinds: list[str], keep: int, refused: bool) -> None:
        """Whatever was said."""
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
