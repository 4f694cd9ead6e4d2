"""docs/reference/glossary.md: sorted terms, each explained in one sentence."""

from __future__ import annotations

import re

from source_tree import ROOT

TERM = re.compile(r"\*\*([a-z][a-z -]+)\*\*: (.+)\.")


def paragraphs() -> list[str]:
    """Return the paragraphs below the heading of the glossary."""
    return (ROOT / "docs" / "reference" / "glossary.md").read_text().strip().split("\n\n")[1:]


def test_every_paragraph_is_a_term_with_one_sentence() -> None:
    """Each paragraph is a term in bold, a colon and one sentence."""
    assert [text for text in paragraphs() if not TERM.fullmatch(text) or ". " in text] == []


def test_terms_are_sorted_and_unique() -> None:
    """The terms of the glossary are in alphabetical order, without duplicates."""
    terms = re.findall(r"^\*\*(.+?)\*\*", "\n".join(paragraphs()), re.MULTILINE)
    assert len(terms) >= 60
    assert terms == sorted(set(terms))
