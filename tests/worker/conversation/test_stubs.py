"""What a conversation shows: messages, stubs in place of what was archived, and better stubs when their time comes."""

from __future__ import annotations

from typing import Any

import pytest

from orch_protocol.core.archives import ArchiveKind, Collapse, RecordUpgrade
from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Message, Text, assistant, text_of, user
from orch_worker.conversation.stubs import stub_text, stubs_in
from orch_worker.session.visible_messages import NOTHING, VisibleMessage, VisibleMessages

A, B, C = "aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"


def view(*texts: str) -> VisibleMessages[int]:
    """Return a view of messages that say `texts`, the entries e0, e1 and so on."""
    made: VisibleMessages[int] = VisibleMessages()
    for number, text in enumerate(texts):
        made.add(f"e{number}", user(text), number)
    return made


def collapse(holder: str, first: int, last: int, *said: Message, kind: ArchiveKind = "turn") -> Collapse:
    """Return the archiving of the entries `first` to `last`, for which messages that say `said` stand."""
    return Collapse(holder, kind, f"about {holder[0]}", f"e{first}", f"e{last}", said or (stub(holder),), (), "")


def stub(holder: str, text: str = "a receipt", kind: ArchiveKind = "turn") -> Message:
    """Return what stands for an archive."""
    return assistant(stub_text(kind, holder, text))


def shown(view: VisibleMessages[int]) -> list[str]:
    """Return the last line of each message."""
    return [text_of(message).rpartition("\n")[2] for message in view]


class TestCompact:
    """A summary takes the place of the beginning."""

    def test_what_is_kept_stays_behind_the_summary(self) -> None:
        """The summary stands for the messages before the first kept one, and can be archived as these."""
        seen = view("a", "b", "c")
        seen.compact("so far", seen.kept("e2"), "k", lambda _: 7)
        assert shown(seen) == ["so far", "c"]
        assert (seen.items[0].first, seen.items[0].last, seen.items[0].note) == ("e0", "e1", 7)
        assert seen.part("e0", "e1") == (0, 1)

    def test_without_a_first_kept_one_nothing_is_kept(self) -> None:
        """An entry that is not shown keeps nothing: the summary stands for everything."""
        seen = view("a", "b")
        seen.compact("so far", seen.kept("k"), "k", lambda _: 7)
        assert shown(seen) == ["so far"]

    def test_of_an_empty_conversation(self) -> None:
        """A summary of nothing stands for itself."""
        seen: VisibleMessages[int] = VisibleMessages()
        seen.compact("so far", seen.kept("k"), "k", lambda _: 0)
        assert (shown(seen), seen.items[0].first) == (["so far"], "k")


class TestCollapse:
    """A part gives way to what stands for it."""

    def test_the_part_goes_and_the_rest_stays(self) -> None:
        """In its place, under its entries."""
        it = view("a", "b", "c", "d")
        it.collapse(collapse(A, 1, 2, user("b"), stub(A)), 9)
        assert shown(it) == ["a", "b", "a receipt", "d"]
        assert [(item.first, item.last, item.note) for item in it.items[1:3]] == [("e1", "e2", 9)] * 2
        assert it.holders() == [(A, "about a")]

    def test_what_was_archived_can_be_archived_again(self) -> None:
        """With what is around it; all that stands for a part goes with it."""
        it = view("a", "b", "c", "d")
        it.collapse(collapse(A, 0, 1, user("a"), stub(A)), 9)
        it.collapse(collapse(B, 0, 2), 9)
        assert shown(it) == ["a receipt", "d"]
        assert it.holders() == [(B, "about b")]

    @pytest.mark.parametrize(("first", "last"), [(1, 0), (0, 9), (9, 1), (9, 9)])
    def test_what_is_no_part_is_refused(self, first: int, last: int) -> None:
        """And nothing has changed."""
        it = view("a", "b")
        with pytest.raises(StoreError, match="not any more, a part"):
            it.collapse(collapse(A, first, last), 9)
        assert shown(it) == ["a", "b"]
        assert it.holders() == []

    def test_what_is_inside_an_archive_is_no_part(self) -> None:
        """It left the conversation with it."""
        it = view("a", "b", "c")
        it.collapse(collapse(A, 0, 2), 9)
        with pytest.raises(StoreError):
            it.collapse(collapse(B, 1, 1), 9)

    def test_a_copy_goes_its_own_way(self) -> None:
        """In everything."""
        it = view("a", "b")
        it.collapse(collapse(A, 0, 0), 9)
        it.upgrade(RecordUpgrade(A, stub_text("turn", A, "late"), at_once=False))
        copy = it.copy()
        copy.collapse(collapse(B, 0, 1), 9)
        assert shown(it) == ["a receipt", "b"]
        assert it.late.keys() == {A}


class TestUpgrade:
    """A stub that reads better."""

    def test_at_once(self) -> None:
        """It stands there from now on."""
        it = view("a", "b")
        it.collapse(collapse(A, 0, 0), 9)
        it.upgrade(RecordUpgrade(A, stub_text("turn", A, "a summary")))
        assert shown(it) == ["a summary", "b"]

    def test_late_it_waits_for_a_collapse_at_or_before_it(self) -> None:
        """One behind it leaves it waiting: what is cached of it stays good."""
        it = view("a", "b", "c")
        it.collapse(collapse(A, 0, 0), 9)
        it.collapse(collapse(B, 1, 1), 9)
        it.upgrade(RecordUpgrade(B, stub_text("turn", B, "a summary"), at_once=False))
        assert shown(it) == ["a receipt", "a receipt", "c"]
        it.collapse(collapse(C, 2, 2), 9)
        assert shown(it) == ["a receipt", "a receipt", "a receipt"]
        it.collapse(collapse("dddddddddddd", 0, 0), 9)
        assert shown(it) == ["a receipt", "a summary", "a receipt"]
        assert it.late == {}

    def test_a_late_one_that_is_used_at_once_waits_no_more(self) -> None:
        """Nor does the one before it come back."""
        it = view("a")
        it.collapse(collapse(A, 0, 0), 9)
        it.upgrade(RecordUpgrade(A, stub_text("turn", A, "late"), at_once=False))
        it.upgrade(RecordUpgrade(A, stub_text("turn", A, "at once")))
        assert (shown(it), it.late) == (["at once"], {})

    def test_a_stub_that_is_gone_needs_none(self) -> None:
        """Nor one that names another archive."""
        it = view("a", "b")
        it.collapse(collapse(A, 0, 0), 9)
        it.upgrade(RecordUpgrade(A, stub_text("turn", B, "wrong")))
        it.collapse(collapse(B, 0, 1), 9)
        it.upgrade(RecordUpgrade(A, stub_text("turn", A, "a summary")))
        assert shown(it) == ["a receipt"]

    def test_what_came_while_a_collapse_was_worked_out_is_kept(self) -> None:
        """The prompt of a long turn gets the stub of a second phase, and its first one stays as it reads by now."""
        it = view("a", "b", "c")
        first = Message("user", (Text("a"), Text(stub_text("phase", A, "a receipt"))))
        it.collapse(collapse(A, 0, 1, first, kind="phase"), 9)
        it.upgrade(RecordUpgrade(A, stub_text("phase", A, "a summary")))
        both = Message("user", (*first.content, Text(stub_text("phase", B, "a receipt"))))
        it.collapse(Collapse(B, "phase", "t", "e0", "e2", (both,), (), ""), 9)
        assert stubs_in(it.items[0].message) == {
            A: stub_text("phase", A, "a summary"),
            B: stub_text("phase", B, "a receipt"),
        }
        assert it.holders() == [(A, "about a"), (B, "t")]


class TestLost:
    """What is known of an entry is that it was there."""

    def test_it_bounds_a_part_and_says_nothing(self) -> None:
        """So what began or ended with it still left the conversation."""
        it: VisibleMessages[int] = VisibleMessages()
        it.lose("e0", 0)
        it.add("e1", user("b"), 1)
        assert list(it) == [NOTHING, user("b")]
        it.collapse(collapse(A, 0, 1), 9)
        assert shown(it) == ["a receipt"]


class Watched(list[VisibleMessage[int]]):
    """Items that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += isinstance(place, int)
        return super().__getitem__(place)


def test_parts_of_a_long_conversation_that_are_archived_at_once_are_found_where_they_are() -> None:
    """Each follows the one before it: the messages behind are not gone through for each of them."""
    turns = 2_000
    seen = view(*("said" for _ in range(4 * turns)))
    seen.items = watched = Watched(seen.items)
    for turn in range(turns):
        holder = f"a{turn:011x}"
        seen.collapse(collapse(holder, 4 * turn + 1, 4 * turn + 3, user("asked"), stub(holder)), turn)
    assert len(seen.items) == 3 * turns
    assert watched.looks < 30 * turns
