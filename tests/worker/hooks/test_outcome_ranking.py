"""Ranking of choices by the outcomes of earlier turns."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.core.errors import StoreError
from orch_worker.hooks.outcome_ranking import MAX_BYTES, MAX_OUTCOMES, OutcomeLog, RecordedOutcome, question_terms, rank

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
    """Return the outcome of one turn that used `choice`."""
    return RecordedOutcome(NOW - days * DAY, about, (choice,), (choice,) if good else (), {choice: cost})


def order(known: list[RecordedOutcome], thrift: float = 0.0) -> list[str]:
    """Return the choices in the order of their rank."""
    return [each.choice for each in rank(CHOICES, known, ABOUT, NOW, cost_weight=thrift)]


@given(outcomes, st.sampled_from(CHOICES), st.booleans())
def test_success_never_lowers_and_failure_never_raises_a_choice(
    known: list[RecordedOutcome], choice: str, good: bool
) -> None:
    place, after = order(known).index(choice), order([*known, tried(choice, good)]).index(choice)
    assert after <= place if good else after >= place


@given(outcomes, st.sampled_from(CHOICES))
def test_enough_evidence_outweighs_any_prior(known: list[RecordedOutcome], choice: str) -> None:
    """After 120 failures the chance is at most one half, and after 120 successes it is higher."""
    for good in (False, True):
        found = rank(CHOICES, [*known, *[tried(choice, good)] * 120], ABOUT, NOW)
        chance = {each.choice: each.chance for each in found}[choice]
        assert (chance > 0.5) is good


def test_equal_choices_are_ordered_by_cost_with_thrift() -> None:
    """Without thrift, the cost has no influence."""
    known = [tried("a", True, cost=1.0), tried("b", True, cost=0.1), tried("c", True, cost=0.5)]
    assert order(known, thrift=0.3) == ["b", "c", "a"]
    assert order(known) == ["a", "b", "c"]


def test_expensive_success_beats_cheap_failure() -> None:
    known = [tried("a", True, cost=1.0)] * 9 + [tried("b", False, cost=0.01)] * 9 + [tried("c", False)] * 9
    assert order(known, thrift=0.3)[0] == "a"


def test_similar_and_recent_evidence_weighs_more() -> None:
    """A failure at a different question, or a year ago, weighs less than a failure at this question today."""
    elsewhere = tried("a", False, about=("train",))
    long_ago = tried("b", False, days=365)
    here = tried("c", False)
    assert order([elsewhere, long_ago, here])[-1] == "c"


def test_untried_choice_ranks_between_failures_and_successes() -> None:
    assert order([tried("a", False), *[tried("b", True)] * 5]) == ["b", "c", "a"]


def test_ranking_without_evidence_keeps_the_order() -> None:
    """Each choice has a chance of one half."""
    found = rank(("z", "a", "z"), [], ABOUT, NOW)
    assert [(each.choice, each.chance, each.cost, each.tried) for each in found] == [
        ("z", 0.5, None, 0.0),
        ("a", 0.5, None, 0.0),
    ]


def test_question_terms_are_stemmed_significant_words() -> None:
    """Forms of a word are one term, and stop words are no terms."""
    assert question_terms("Which pumps are there?") == question_terms("the pump")


class TestFile:
    """The file in which outcomes are stored."""

    def test_outcomes_are_shared_between_processes(self, tmp_path: Path) -> None:
        """The file is read again after another process has changed it."""
        one, other = OutcomeLog(tmp_path / "new" / "tools.jsonl"), OutcomeLog(tmp_path / "new" / "tools.jsonl")
        assert other.outcomes() == ()
        one.add(tried("a", True))
        assert other.outcomes() == (tried("a", True),)
        other.add(tried("b", False))
        assert one.outcomes() == (tried("a", True), tried("b", False))
        assert (tmp_path / "new" / "tools.jsonl").stat().st_mode & 0o077 == 0

    def test_truncated_line_hides_no_other(self, tmp_path: Path) -> None:
        """Unreadable lines are skipped."""
        path = tmp_path / "tools.jsonl"
        evidence = OutcomeLog(path)
        evidence.add(tried("a", True))
        path.write_bytes(path.read_bytes() + b'{"at":1,"ter\n\xff\xfe\n')
        evidence.add(tried("b", True))
        assert [each.tried for each in evidence.outcomes()] == [("a",), ("b",)]

    def test_full_file_drops_the_oldest_outcomes(self, tmp_path: Path) -> None:
        """The file stays below its maximum size and keeps the newest outcomes."""
        path = tmp_path / "tools.jsonl"
        path.write_bytes(b"\n" * (MAX_BYTES - 10))
        evidence = OutcomeLog(path)
        evidence.add(tried("a", True))
        assert path.stat().st_size < 200
        line = path.read_bytes()
        path.write_bytes(line * (MAX_BYTES // len(line)))
        evidence.add(tried("b", True))
        assert len(evidence.outcomes()) == MAX_OUTCOMES
        assert evidence.outcomes()[-1].tried == ("b",)

    def test_unwritable_outcome_file_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises((OSError, StoreError), match="file"):
            OutcomeLog(tmp_path / "file" / "tools.jsonl").add(tried("a", True))
