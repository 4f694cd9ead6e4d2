"""Search terms of a question, and ranking of the passages that answer it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_worker.backends.offline.bm25 import SourceText, count, paths_of, rank, terms_of


def searched(text: str) -> list[str]:
    """Return the terms of `text` that are used for a search."""
    return [term.text for term in terms_of(text) if term.usable]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("What does the README promise?", ["readme", "promise"]),
        ("Where is the limit defined?", ["limit"]),
        ("max_concurrent", ["max_concurrent"]),
        ("How do ToolResults work?", ["toolresults"]),
        ("Channel.overdue", ["channel.overdue", "channel", "overdue"]),
        ("read src/app.py", ["src/app.py"]),
        ("spawning queries", ["spawn", "quer"]),
        ("the id of it", ["id"]),
        ("What is in this project?", []),
        ("", []),
        ("設定の", ["設定", "定の"]),
        ("a 1 %", []),
    ],
)
def test_terms_drop_stop_words_and_keep_compound_names(text: str, terms: list[str]) -> None:
    """Terms are stemmed, and Chinese and Japanese text is split into pairs of characters."""
    assert searched(text) == terms


def test_parts_of_identifiers_weigh_less() -> None:
    """The parts of a compound name are terms with a lower weight than the whole name."""
    weights = {term.text: term.weight for term in terms_of("maxConcurrent HTTPServer")}
    assert weights["maxconcurrent"] > weights["concurrent"]
    assert {"max", "http", "server"} <= set(weights)


def test_terms_are_bounded() -> None:
    """A very long question has 16 terms."""
    assert len(terms_of(" ".join(f"word{number}x" for number in range(100_000)))) == 16


@pytest.mark.parametrize(
    ("word", "text", "times"),
    [("id", "id, user_id, idle, ID3 and void", 2), ("promise", "promised promises", 2), ("設定", "設定と設定", 2)],
)
def test_short_terms_match_whole_words(word: str, text: str, times: int) -> None:
    """Terms of up to three letters match between word boundaries only; longer terms match anywhere."""
    (term,) = terms_of(word)
    assert count(term, text.lower()) == times


def test_file_paths_are_recognized() -> None:
    """`paths_of` finds names with a folder or a file extension, but not abbreviations and numbers."""
    assert paths_of("Read src/app.py, ./x/y and README.md. Not e or 3.14.") == (
        "src/app.py",
        "./x/y",
        "README.md",
    )


@given(st.text(max_size=200))
def test_any_text_yields_valid_terms(text: str) -> None:
    """Each term of any text is found in its own text."""
    for term in terms_of(text):
        assert term.text
        assert count(term, term.text) >= 1


class TestRank:
    def test_rare_terms_count_more(self) -> None:
        """The passage with the rare term is ranked before the passages with the common term."""
        sources = [SourceText(f"{n}.txt", "common words here", (1,)) for n in range(9)]
        sources.append(SourceText("rare.txt", "\n\nrare words here", (1, 2, 3)))
        assert rank(sources, terms_of("common rare"))[0].where == "rare.txt:3"

    def test_lines_that_are_not_adjacent_form_separate_passages(self) -> None:
        found = rank([SourceText("a.txt", "needle one\nneedle two", (3, 90))], terms_of("needle"))
        assert sorted(passage.where for passage in found) == ["a.txt:3", "a.txt:90"]

    def test_passages_are_small(self) -> None:
        """A passage has at most ten lines, and a long line is cut to the part around the term."""
        (passage,) = rank([SourceText("a", f"{'x' * 5000} needle {'y' * 5000}", (1,))], terms_of("needle"))
        assert "needle" in passage.text
        assert len(passage.text) < 400
        many = rank([SourceText("a", "needle\n" * 100)], terms_of("needle"))
        assert all(len(passage.text.split("\n")) <= 10 for passage in many)

    def test_file_named_by_a_term_is_quoted_from_its_beginning(self) -> None:
        """A file whose name matches a term is quoted from its first paragraph, without the heading."""
        readme = SourceText("README.md", "# Pump\n\nIt pumps.\n\nFar away.", (1, 2, 3, 4, 5))
        found = rank([readme, SourceText("b.txt", "see the readme", (1,))], terms_of("readme"), total=50)
        assert found[0].where == "README.md:3"
        assert "README.md:1" not in [passage.where for passage in found]

    def test_nothing_to_rank(self) -> None:
        """Without sources, terms or matches there are no passages."""
        assert (
            rank([], terms_of("x"))
            == rank([SourceText("a", "b")], ())
            == rank([SourceText("a", "b")], terms_of("zz"))
            == []
        )
        assert rank([SourceText("a", "")], terms_of("zz")) == []
