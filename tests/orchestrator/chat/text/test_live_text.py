"""Streamed text as lines of a terminal, with escaped control characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.chat.text.live_text import LiveText
from orch.chat.text.styled_text import escape_control_characters, truncate

HOSTILE = ["\x1b[2J", "\x1b]0;t\x07", "\x9b31m", "\x9d0;t\x9c", "\u202e", "\u2066", "\r", "\x08", "\x00", "\x7f"]


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_written_out(text: str) -> None:
    """Characters that a terminal obeys, such as escape sequences and direction marks, are replaced by visible text."""
    output = LiveText()
    output.text(f"a{text}b\n")
    output.note(f"a{text}b")
    output.pieces([[("add", f"a{text}b")]])
    for line in output.take():
        shown = "".join(expected for _, expected in line)
        assert shown.isprintable()
        assert shown != f"a{text}b"


@given(st.lists(st.text(), max_size=8))
def test_streamed_text_equals_the_whole_text(pieces: list[str]) -> None:
    """The lines are the escaped text, however the text is divided into pieces."""
    output = LiveText()
    for piece in pieces:
        output.text(piece)
    output.close()
    shown = "\n".join("".join(text for _, text in line) for line in output.take())
    assert shown.rstrip("\n") == "".join(map(escape_control_characters, pieces)).rstrip("\n")


def test_incomplete_line_is_shown_as_live() -> None:
    """A line without an end is shown as live, but not taken until it ends."""
    output = LiveText()
    output.text("one\ntw")
    assert (output.take(), output.live, output.pending) == ([[("", "one")]], [[("", "tw")]], False)
    output.text("o\tx")
    assert output.live == [[("", "two x")]]
    output.note("aside")
    assert output.take() == [[("note", "aside")]]
    output.close()
    assert (output.take(), output.live) == ([[("", "two\tx")]], [])


def test_long_live_line_scrolls_row_by_row() -> None:
    """At most the requested number of rows stays live. Rows are broken between words."""
    output = LiveText()
    output.text("some words " * 10 + "x" * 30)
    output.resize(20)
    output.scroll(2)
    gone = ["".join(text for _, text in line) for line in output.take()]
    assert all(0 < len(line) <= 20 for line in gone)
    assert gone[0] == "some words some"
    assert len(output.live[0][0][1]) <= 40


def test_styled_line_is_cut_at_the_terminal_width() -> None:
    """A cut line ends with an ellipsis."""
    assert truncate([("a", "12345"), ("b", "678")], 8) == [("a", "12345"), ("b", "678")]
    assert truncate([("a", "12345"), ("b", "678")], 7) == [("a", "12345"), ("b", "6…")]
    assert truncate([("a", "12345"), ("b", "678")], 5) == [("a", "12345"), ("b", "")]
    assert truncate([("a", "日本語")], 5) == [("a", "日本…")]
