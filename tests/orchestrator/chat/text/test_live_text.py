"""What is shown at a terminal: lines as they come, and nothing in them that it would obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.chat.text.live_text import LiveText
from orch.chat.text.styled_text import escape_control_characters, truncate

HOSTILE = ["\x1b[2J", "\x1b]0;t\x07", "\x9b31m", "\x9d0;t\x9c", "\u202e", "\u2066", "\r", "\x08", "\x00", "\x7f"]


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_written_out(text: str) -> None:
    """What clears, colours, names the window, rubs out or turns the direction is seen instead of obeyed."""
    sheet = LiveText()
    sheet.text(f"a{text}b\n")
    sheet.note(f"a{text}b")
    sheet.pieces([[("add", f"a{text}b")]])
    for line in sheet.take():
        shown = "".join(said for _, said in line)
        assert shown.isprintable()
        assert shown != f"a{text}b"


@given(st.lists(st.text(), max_size=8))
def test_text_in_pieces_is_the_text(pieces: list[str]) -> None:
    """However it arrives, all of it is shown, safe and in order, when control characters do not stand apart."""
    sheet = LiveText()
    for piece in pieces:
        sheet.text(piece)
    sheet.close()
    shown = "\n".join("".join(text for _, text in line) for line in sheet.take())
    assert shown.rstrip("\n") == "".join(map(escape_control_characters, pieces)).rstrip("\n")


def test_a_line_is_live_until_it_ends() -> None:
    """What has no end yet is not taken, but can be seen."""
    sheet = LiveText()
    sheet.text("one\ntw")
    assert (sheet.take(), sheet.live, sheet.pending) == ([[("", "one")]], [[("", "tw")]], False)
    sheet.text("o\tx")
    assert sheet.live == [[("", "two x")]]
    sheet.note("aside")
    assert sheet.take() == [[("note", "aside")]]
    sheet.close()
    assert (sheet.take(), sheet.live) == ([[("", "two\tx")]], [])


def test_a_long_line_scrolls_away_row_by_row() -> None:
    """Of a paragraph that does not end, no more than so many rows stay, and it is cut between words."""
    sheet = LiveText()
    sheet.text("some words " * 10 + "x" * 30)
    sheet.resize(20)
    sheet.scroll(2)
    gone = ["".join(text for _, text in line) for line in sheet.take()]
    assert all(0 < len(line) <= 20 for line in gone)
    assert gone[0] == "some words some"
    assert len(sheet.live[0][0][1]) <= 40


def test_a_line_of_pieces_is_cut_where_the_terminal_ends() -> None:
    """What does not fit is left out, which is seen."""
    assert truncate([("a", "12345"), ("b", "678")], 8) == [("a", "12345"), ("b", "678")]
    assert truncate([("a", "12345"), ("b", "678")], 7) == [("a", "12345"), ("b", "6…")]
    assert truncate([("a", "12345"), ("b", "678")], 5) == [("a", "12345"), ("b", "")]
    assert truncate([("a", "日本語")], 5) == [("a", "日本…")]
