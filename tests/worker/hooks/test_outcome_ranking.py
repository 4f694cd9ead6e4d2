"""What was tried and how it went changes what is tried next."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.core.errors import StoreError
from orch_worker.hooks.outcome_ranking import KEPT, MOST_BYTES, OutcomeLog, RecordedOutcome, question_terms, rank

NOW = 1_800_000_000.0
DAY = 86400.0
CHOICES = ("a", "b", "c")
ABOUT = ("pump", "valve")

outcomes = st.lists(
    st.builds(
        lambda days, terms, tried, good, cost: RecordedOutcome(
            NOW - days * DAY, tuple(terms), tuple(tried), tuple(set(tried) & set(good)), dict.fromkeys(tried, cost)
        ),
        st.floats(0, 90),
        st.sets(st.sampled_from(["pump", "valve", "train", "bus"])),
        st.sets(st.sampled_from(CHOICES), min_size=1),
        st.sets(st.sampled_from(CHOICES)),
        st.floats(0, 10),
    ),
    max_size=30,
)


def tried(
    choice: str, good: bool, cost: float = 0.0, about: tuple[str, ...] = ABOUT, days: float = 0.0
) -> RecordedOutcome:
    """Return what came of one turn with `choice`."""
    return RecordedOutcome(NOW - days * DAY, about, (choice,), (choice,) if good else (), {choice: cost})


def order(known: list[RecordedOutcome], thrift: float = 0.0) -> list[str]:
    """Return the choices as they are ranked."""
    return [each.choice for each in rank(CHOICES, known, ABOUT, NOW, thrift=thrift)]


@given(outcomes, st.sampled_from(CHOICES), st.booleans())
def test_evidence_changes_the_ranking_the_way_it_points(known: list[RecordedOutcome], choice: str, good: bool) -> None:
    """One more success never moves a choice back, one more failure never forward, whatever is known already."""
    place, after = order(known).index(choice), order([*known, tried(choice, good)]).index(choice)
    assert after <= place if good else after >= place


@given(outcomes, st.sampled_from(CHOICES))
def test_enough_evidence_outweighs_whatever_was_known(known: list[RecordedOutcome], choice: str) -> None:
    """Whatever is known, so many failures put the chance below even, and so many successes above."""
    for good in (False, True):
        found = rank(CHOICES, [*known, *[tried(choice, good)] * 120], ABOUT, NOW)
        chance = {each.choice: each.chance for each in found}[choice]
        assert (chance > 0.5) is good


def test_of_equals_the_cheaper_one_is_first_when_thrift_counts() -> None:
    """Cost decides between those that do equally well, and only when it is to."""
    known = [tried("a", True, cost=1.0), tried("b", True, cost=0.1), tried("c", True, cost=0.5)]
    assert order(known, thrift=0.3) == ["b", "c", "a"]
    assert order(known) == ["a", "b", "c"]


def test_a_dear_choice_that_does_well_comes_before_a_cheap_one_that_fails() -> None:
    """Thrift is weighed against the chance of doing well."""
    known = [tried("a", True, cost=1.0)] * 9 + [tried("b", False, cost=0.01)] * 9 + [tried("c", False)] * 9
    assert order(known, thrift=0.3)[0] == "a"


def test_what_is_like_the_question_and_what_is_new_counts_more() -> None:
    """Failures at other questions, or long ago, weigh less than those at this one today."""
    elsewhere = tried("a", False, about=("train",))
    long_ago = tried("b", False, days=365)
    here = tried("c", False)
    assert order([elsewhere, long_ago, here])[-1] == "c"


def test_what_was_never_tried_is_worth_a_try() -> None:
    """It comes before what failed and after what did well for long."""
    assert order([tried("a", False), *[tried("b", True)] * 5]) == ["b", "c", "a"]


def test_nothing_known_leaves_the_order() -> None:
    """Without evidence the choices stay as they were given, each with even chances."""
    found = rank(("z", "a", "z"), [], ABOUT, NOW)
    assert [(each.choice, each.chance, each.cost, each.tried) for each in found] == [
        ("z", 0.5, None, 0.0),
        ("a", 0.5, None, 0.0),
    ]


def test_a_subject_is_the_words_that_matter() -> None:
    """Forms of a word are one term, small words none."""
    assert question_terms("Which pumps are there?") == question_terms("the pump")


class TestFile:
    """Evidence that is kept."""

    def test_what_one_process_adds_another_one_sees(self, tmp_path: Path) -> None:
        """The file is read again when it has changed."""
        one, other = OutcomeLog(tmp_path / "new" / "tools.jsonl"), OutcomeLog(tmp_path / "new" / "tools.jsonl")
        assert other.outcomes() == ()
        one.add(tried("a", True))
        assert other.outcomes() == (tried("a", True),)
        other.add(tried("b", False))
        assert one.outcomes() == (tried("a", True), tried("b", False))
        assert (tmp_path / "new" / "tools.jsonl").stat().st_mode & 0o077 == 0

    def test_a_line_that_was_cut_off_hides_no_other(self, tmp_path: Path) -> None:
        """What cannot be read is left out, and what follows it is there."""
        path = tmp_path / "tools.jsonl"
        evidence = OutcomeLog(path)
        evidence.add(tried("a", True))
        path.write_bytes(path.read_bytes() + b'{"at":1,"ter\n\xff\xfe\n')
        evidence.add(tried("b", True))
        assert [each.tried for each in evidence.outcomes()] == [("a",), ("b",)]

    def test_the_oldest_leave_a_file_that_is_full(self, tmp_path: Path) -> None:
        """It stays below its size, and keeps what came last."""
        path = tmp_path / "tools.jsonl"
        path.write_bytes(b"\n" * (MOST_BYTES - 10))
        evidence = OutcomeLog(path)
        evidence.add(tried("a", True))
        assert path.stat().st_size < 200
        line = path.read_bytes()
        path.write_bytes(line * (MOST_BYTES // len(line)))
        evidence.add(tried("b", True))
        assert len(evidence.outcomes()) == KEPT
        assert evidence.outcomes()[-1].tried == ("b",)

    def test_a_file_that_cannot_be_written_is_an_error(self, tmp_path: Path) -> None:
        """Who adds to it is told."""
        (tmp_path / "file").write_text("")
        with pytest.raises((OSError, StoreError), match="file"):
            OutcomeLog(tmp_path / "file" / "tools.jsonl").add(tried("a", True))
