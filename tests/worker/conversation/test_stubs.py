"""The visible conversation: messages, records in place of archived messages, and upgrades of records."""

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
    """Return a view of messages with `texts` and the entries e0, e1 and so on."""
    made: VisibleMessages[int] = VisibleMessages()
    for number, text in enumerate(texts):
        made.add(f"e{number}", user(text), number)
    return made


def collapse(holder: str, first: int, last: int, *said: Message, kind: ArchiveKind = "turn") -> Collapse:
    """Return a collapse of the entries `first` to `last` that is shown as `said`, by default as a record."""
    return Collapse(holder, kind, f"about {holder[0]}", f"e{first}", f"e{last}", said or (stub(holder),), (), "")


def stub(holder: str, text: str = "a receipt", kind: ArchiveKind = "turn") -> Message:
    """Return the record of an archive."""
    return assistant(stub_text(kind, holder, text))


def shown(view: VisibleMessages[int]) -> list[str]:
    """Return the last line of each message."""
    return [text_of(message).rpartition("\n")[2] for message in view]


class TestCompact:
    """A compaction summary replaces the beginning of a conversation."""

    def test_kept_messages_follow_the_compaction_summary(self) -> None:
        """The summary replaces the messages before them and can be archived."""
        seen = view("a", "b", "c")
        seen.compact("so far", seen.items_before("e2"), "k", lambda _: 7)
        assert shown(seen) == ["so far", "c"]
        assert (seen.items[0].first, seen.items[0].last, seen.items[0].note) == ("e0", "e1", 7)
        assert seen.part("e0", "e1") == (0, 1)

    def test_compaction_without_a_kept_message_replaces_everything(self) -> None:
        """If the kept entry is not visible, the summary replaces all messages."""
        seen = view("a", "b")
        seen.compact("so far", seen.items_before("k"), "k", lambda _: 7)
        assert shown(seen) == ["so far"]

    def test_compaction_of_an_empty_conversation_adds_a_summary(self) -> None:
        """The summary has the entry of the compaction itself."""
        seen: VisibleMessages[int] = VisibleMessages()
        seen.compact("so far", seen.items_before("k"), "k", lambda _: 0)
        assert (shown(seen), seen.items[0].first) == (["so far"], "k")


class TestCollapse:
    """A record replaces a span of messages."""

    def test_collapse_replaces_a_span_by_its_record(self) -> None:
        """The record has the place and the entries of the span."""
        it = view("a", "b", "c", "d")
        it.collapse(collapse(A, 1, 2, user("b"), stub(A)), 9)
        assert shown(it) == ["a", "b", "a receipt", "d"]
        assert [(item.first, item.last, item.note) for item in it.items[1:3]] == [("e1", "e2", 9)] * 2
        assert it.holders() == [(A, "about a")]

    def test_archived_span_can_be_archived_again(self) -> None:
        """The new archive may include neighbors. All records of the span are replaced."""
        it = view("a", "b", "c", "d")
        it.collapse(collapse(A, 0, 1, user("a"), stub(A)), 9)
        it.collapse(collapse(B, 0, 2), 9)
        assert shown(it) == ["a receipt", "d"]
        assert it.holders() == [(B, "about b")]

    @pytest.mark.parametrize(("first", "last"), [(1, 0), (0, 9), (9, 1), (9, 9)])
    def test_invalid_span_is_refused_without_changes(self, first: int, last: int) -> None:
        """A span that is not part of the conversation raises StoreError."""
        it = view("a", "b")
        with pytest.raises(StoreError, match="no longer, a part"):
            it.collapse(collapse(A, first, last), 9)
        assert shown(it) == ["a", "b"]
        assert it.holders() == []

    def test_span_inside_an_archive_is_refused(self) -> None:
        """Messages inside an archive are no longer part of the conversation."""
        it = view("a", "b", "c")
        it.collapse(collapse(A, 0, 2), 9)
        with pytest.raises(StoreError):
            it.collapse(collapse(B, 1, 1), 9)

    def test_copied_conversation_is_independent(self) -> None:
        """Neither a collapse nor an upgrade of the copy changes the original."""
        it = view("a", "b")
        it.collapse(collapse(A, 0, 0), 9)
        it.upgrade(RecordUpgrade(A, stub_text("turn", A, "late"), at_once=False))
        copy = it.copy()
        copy.collapse(collapse(B, 0, 1), 9)
        assert shown(it) == ["a receipt", "b"]
        assert it.pending_records.keys() == {A}


class TestUpgrade:
    """A better text replaces the text of a record."""

    def test_upgrade_replaces_a_record_at_once(self) -> None:
        """The conversation shows the new text."""
        it = view("a", "b")
        it.collapse(collapse(A, 0, 0), 9)
        it.upgrade(RecordUpgrade(A, stub_text("turn", A, "a summary")))
        assert shown(it) == ["a summary", "b"]

    def test_late_upgrade_waits_for_a_collapse_at_or_before_its_record(self) -> None:
        """A later collapse does not apply it, so the cached prefix stays valid."""
        it = view("a", "b", "c")
        it.collapse(collapse(A, 0, 0), 9)
        it.collapse(collapse(B, 1, 1), 9)
        it.upgrade(RecordUpgrade(B, stub_text("turn", B, "a summary"), at_once=False))
        assert shown(it) == ["a receipt", "a receipt", "c"]
        it.collapse(collapse(C, 2, 2), 9)
        assert shown(it) == ["a receipt", "a receipt", "a receipt"]
        it.collapse(collapse("dddddddddddd", 0, 0), 9)
        assert shown(it) == ["a receipt", "a summary", "a receipt"]
        assert it.pending_records == {}

    def test_late_upgrade_applied_directly_waits_no_more(self) -> None:
        """The waiting upgrade is dropped."""
        it = view("a")
        it.collapse(collapse(A, 0, 0), 9)
        it.upgrade(RecordUpgrade(A, stub_text("turn", A, "late"), at_once=False))
        it.upgrade(RecordUpgrade(A, stub_text("turn", A, "at once")))
        assert (shown(it), it.pending_records) == (["at once"], {})

    def test_upgrade_of_a_missing_record_is_ignored(self) -> None:
        """An upgrade whose text belongs to another archive is ignored, too."""
        it = view("a", "b")
        it.collapse(collapse(A, 0, 0), 9)
        it.upgrade(RecordUpgrade(A, stub_text("turn", B, "wrong")))
        it.collapse(collapse(B, 0, 1), 9)
        it.upgrade(RecordUpgrade(A, stub_text("turn", A, "a summary")))
        assert shown(it) == ["a receipt"]

    def test_upgrade_during_a_collapse_is_kept(self) -> None:
        """A prompt with records of two phases keeps the current text of the first."""
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
    """An entry that was lost through damage."""

    def test_lost_entry_can_bound_a_span_and_adds_no_text(self) -> None:
        """The entry is shown as an empty placeholder."""
        it: VisibleMessages[int] = VisibleMessages()
        it.add_placeholder("e0", 0)
        it.add("e1", user("b"), 1)
        assert list(it) == [NOTHING, user("b")]
        it.collapse(collapse(A, 0, 1), 9)
        assert shown(it) == ["a receipt"]


class Watched(list[VisibleMessage[int]]):
    """A list that counts how often its items are read."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += isinstance(place, int)
        return super().__getitem__(place)


def test_consecutive_collapses_do_not_scan_the_whole_conversation() -> None:
    """Each search starts where the previous one ended."""
    turns = 2_000
    seen = view(*("said" for _ in range(4 * turns)))
    seen.items = watched = Watched(seen.items)
    for turn in range(turns):
        holder = f"a{turn:011x}"
        seen.collapse(collapse(holder, 4 * turn + 1, 4 * turn + 3, user("asked"), stub(holder)), turn)
    assert len(seen.items) == 3 * turns
    assert watched.looks < 30 * turns
