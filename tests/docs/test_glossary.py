"""docs/glossary.md: terms in alphabetical order, one sentence each."""

from __future__ import annotations

import re

from source_tree import ROOT

TERM = re.compile(r"\*\*([a-z][a-z -]+)\*\*: (.+)\.")


def paragraphs() -> list[str]:
    """Return the paragraphs below the heading of the glossary."""
    return (ROOT / "docs" / "glossary.md").read_text().strip().split("\n\n")[1:]


def test_every_paragraph_is_a_term_with_one_sentence() -> None:
    """A paragraph is a term in bold, a colon, and one sentence."""
    assert [text for text in paragraphs() if not TERM.fullmatch(text) or ". " in text] == []


def test_terms_are_sorted_and_unique() -> None:
    """Terms stand in alphabetical order, each once."""
    terms = re.findall(r"^\*\*(.+?)\*\*", "\n".join(paragraphs()), re.MULTILINE)
    assert len(terms) >= 60
    assert terms == sorted(set(terms))
