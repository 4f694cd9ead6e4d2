"""What an agent says as a terminal shows it: markup becomes styles, and what was shown is never changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.chat.text import styled_text
from orch.chat.text.live_text import LiveText
from orch.chat.text.markdown import Markdown, render_inline
from orch.chat.text.styled_text import Piece, display_width

ANSWER = """\
# Pumps

Read **all of `it`**, *please*: [here](https://e.org/a).

- [x] one
  1. two
> never

```python
# not a heading: **bold**
```
| valve | bar |
|:--|--:|
| 1 | **12** |
| 日本 | 3 |
2 * 3 * 4 stays, snake_case_name too
---
"""


def lines(text: str, width: int = 60) -> list[list[Piece]]:
    """Return the lines of an answer that comes at once."""
    sheet = LiveText(Markdown())
    sheet.resize(width)
    sheet.text(text)
    sheet.over()
    return sheet.take()


def plain(shown: list[list[Piece]]) -> list[str]:
    """Return them without their styles."""
    return ["".join(text for _, text in line) for line in shown]


def test_an_answer_is_shown_without_its_markup() -> None:
    """Headings, emphasis, links, items, quotes, code and tables, each in its style."""
    shown = lines(ANSWER)
    assert plain(shown) == [
        "Pumps",
        "",
        "Read all of it, please: here (https://e.org/a).",
        "",
        "• ☑ one",
        "  1. two",
        "│ never",
        "",
        "```python",
        "# not a heading: **bold**",
        "```",
        "valve │ bar",
        "──────┼────",
        "1     │  12",
        "日本  │   3",
        "2 * 3 * 4 stays, snake_case_name too",
        "─" * 40,
    ]
    assert shown[0] == [("heading", "Pumps")]
    assert ("strong", "all of ") in shown[2]
    assert ("strong,code", "it") in shown[2]
    assert ("em", "please") in shown[2]
    assert ("link", "here") in shown[2]
    assert shown[6] == [("note", "│ "), ("quote", "never")]
    assert shown[9] == [("code", "# not a heading: **bold**")]
    assert ("strong", "valve") in shown[11]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=60), st.integers(0, 7))
def test_it_is_the_same_however_it_comes(sizes: list[int], shows: int) -> None:
    """Cut anywhere, and looked at in between: what was taken is the beginning of what is taken in the end."""
    sheet, left, taken = LiveText(Markdown()), ANSWER, []
    sheet.resize(60)
    for number, size in enumerate(sizes):
        sheet.text(left[:size])
        left = left[size:]
        if number % (shows + 1) == 0:
            sheet.scroll(6)
            assert all(sum(display_width(text) for _, text in line) <= 60 for line in sheet.live)
            taken += sheet.take()
    sheet.text(left)
    sheet.over()
    assert taken + sheet.take() == lines(ANSWER)


@given(st.text(alphabet="ab日 *_`#|>-~[]()\\\n\t1.", max_size=200), st.integers(1, 30))
def test_whatever_is_said_has_room_and_loses_no_letter(text: str, width: int) -> None:
    """Of half markup, of tables that are none, in a window as narrow as can be."""
    shown = lines(text, width)
    said = [letter for letter in text if letter in "ab日"]
    assert [letter for letter in "".join(plain(shown)) if letter in "ab日"] == said or "|" in text or "](" in text
    sheet = LiveText(Markdown())
    sheet.resize(width)
    sheet.text(text)
    sheet.scroll(2)
    sheet.over()


def test_words_are_wrapped_and_items_hang() -> None:
    """A paragraph at its spaces, wide characters anywhere, and the rest of an item below its beginning."""
    assert plain(lines("- one two three four", 12)) == ["• one two", "  three four"]
    assert plain(lines("日本語日本語", 5)) == ["日本", "語日", "本語"]
    assert plain(lines("> a quote of words", 9)) == ["│ a quote", "│ of", "│ words"]
    assert plain(lines("x" * 25, 10)) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_long_paragraph_leaves_in_parts_that_are_whole() -> None:
    """Between words, and where no emphasis is open; the rest of an item stays below its beginning."""
    sheet = LiveText(Markdown())
    sheet.resize(20)
    sheet.text("- " + "some **bold words here** " * 8)
    sheet.scroll(3)
    gone = sheet.take()
    assert all("*" not in line for line in plain(gone))
    assert [line[:2] for line in plain(gone)] == ["• ", *["  "] * (len(gone) - 1)]
    assert sum(1 for _ in sheet.live) <= 3
    assert plain(sheet.live)[0].startswith("  ")


def test_notes_part_nothing_that_is_being_said() -> None:
    """They stand before a line under way, before a table that has no end yet, and in code the code goes on."""
    sheet = LiveText(Markdown())
    sheet.text("```\ncode\nhalf")
    sheet.note("aside")
    sheet.text(" line\n```\n|a|b|\n|-|-|\n")
    sheet.note("another")
    sheet.over()
    assert plain(sheet.take()) == ["```", "code", "aside", "half line", "```", "another", "a │ b", "──┼──"]


def test_what_is_said_next_begins_anew() -> None:
    """Code that was never closed ends with the response that it is in."""
    sheet = LiveText(Markdown())
    sheet.text("```\ncode")
    sheet.over()
    sheet.text("**bold**")
    sheet.over()
    assert sheet.take()[-1] == [("strong", "bold")]


def test_a_table_has_the_room_there_is() -> None:
    """Cells are wrapped; where even that is too narrow each row is a list."""
    text = "| name | what it is |\n|---|---|\n| valve | opens when it is told to |\n"
    assert plain(lines(text, 20)) == [
        "name  │ what it is",
        "──────┼─────────────",
        "valve │ opens when",
        "      │ it is told",
        "      │ to",
    ] or all(display_width(line) <= 20 for line in plain(lines(text, 20)))
    narrow = plain(lines(text, 8))
    assert narrow[0].startswith("name:")
    assert all(display_width(line) <= 8 for line in narrow)
    assert plain(lines("| a | b |\nno table\n")) == ["| a | b |", "no table"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("*.py and *.md", "*.py and *.md"),
        ("a_b_c __init__ x", "a_b_c init x"),
        (r"\*not\* this", "*not* this"),
        ("``a`b`` c", "a`b c"),
        ("**open", "**open"),
        ("![alt](u.png)", "alt (u.png)"),
        ("<https://e.org> [https://e.org](https://e.org)", "<https://e.org> https://e.org"),
        ("f(x)[0](y)", "f(x)0 (y)"),
    ],
)
def test_markers_without_a_partner_stay(text: str, said: str) -> None:
    """And what is escaped, or inside a word, is no marker."""
    assert "".join(each for _, each in render_inline(text)) == said


def test_a_line_without_end_is_no_paragraph() -> None:
    """A megabyte on one line is shown in a moment, half markup or not; also when the prompt is drawn before any of it
    has gone."""
    texts = ("*a " * 400_000, "`" * 9_000, "[a](" * 4_000, "日" * 9_000, "| " * 9_000, "word " * 3_000, "` " * 30_000)
    for text in texts:
        sheet = LiveText(Markdown())
        sheet.text(text)
        assert sheet.live
        sheet.scroll(6)
        assert len(sheet.live) <= 6
        sheet.over()
        assert sheet.take()


def test_a_quote_within_many_leaves_room_for_what_it_says() -> None:
    """Each of its rows stands behind a few bars, and not behind as many as there are marks."""
    for text in (">" * 50_000 + " said", "> " * 300 + "said"):
        shown = lines(text)
        assert max(sum(display_width(said) for _, said in line) for line in shown) <= 80
        assert "said" in "".join(plain(shown))


def test_a_table_is_waited_for_until_it_is_as_long_as_an_answer() -> None:
    """What goes beyond is shown as it is written."""
    row = f"| {'a ' * 1500}|\n"
    sheet = LiveText(Markdown())
    sheet.text(f"{row}|---|\n{row * 40}")
    assert len(sheet.live) < 10
    assert sheet.take()


def test_how_wide_a_character_is_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all of a long line is wide, that was most of its time."""
    looked_up: list[str] = []
    monkeypatch.setattr("prompt_toolkit.utils.get_cwidth", lambda text: looked_up.append(text) or 2)
    styled_text._columns.cache_clear()
    try:
        shown = lines("漢字" * 5_000)
    finally:
        styled_text._columns.cache_clear()
    assert "".join(plain(shown)) == "漢字" * 5_000
    assert all(len(line) == 30 for line in plain(shown)[:-1])
    assert sorted(looked_up) == sorted("漢字")
