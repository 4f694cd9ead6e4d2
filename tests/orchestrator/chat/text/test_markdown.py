"""Markdown in a terminal: markup becomes styles, and lines that were shown do not change."""

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
    """Return the lines of an answer that arrives in one piece."""
    output = LiveText(Markdown())
    output.resize(width)
    output.text(text)
    output.finish()
    return output.take()


def plain(shown: list[list[Piece]]) -> list[str]:
    """Return the lines without styles."""
    return ["".join(text for _, text in line) for line in shown]


def test_markdown_is_rendered() -> None:
    """The answer has headings, emphasis, links, lists, quotes, code and tables."""
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
def test_rendering_is_independent_of_the_pieces(sizes: list[int], shows: int) -> None:
    """The lines are the same for any division of the text, also if rows scroll during the stream."""
    output, left, taken = LiveText(Markdown()), ANSWER, []
    output.resize(60)
    for number, size in enumerate(sizes):
        output.text(left[:size])
        left = left[size:]
        if number % (shows + 1) == 0:
            output.scroll(6)
            assert all(sum(display_width(text) for _, text in line) <= 60 for line in output.live)
            taken += output.take()
    output.text(left)
    output.finish()
    assert taken + output.take() == lines(ANSWER)


@given(st.text(alphabet="ab日 *_`#|>-~[]()\\\n\t1.", max_size=200), st.integers(1, 30))
def test_any_text_is_rendered_without_losing_letters(text: str, width: int) -> None:
    """Incomplete markup and tables are rendered at any width."""
    shown = lines(text, width)
    listed = [letter for letter in text if letter in "ab日"]
    assert [letter for letter in "".join(plain(shown)) if letter in "ab日"] == listed or "|" in text or "](" in text
    output = LiveText(Markdown())
    output.resize(width)
    output.text(text)
    output.scroll(2)
    output.finish()


def test_paragraphs_wrap_and_list_items_are_indented() -> None:
    """Paragraphs break at spaces, wide characters break anywhere, and the next rows of a list item are indented."""
    assert plain(lines("- one two three four", 12)) == ["• one two", "  three four"]
    assert plain(lines("日本語日本語", 5)) == ["日本", "語日", "本語"]
    assert plain(lines("> a quote of words", 9)) == ["│ a quote", "│ of", "│ words"]
    assert plain(lines("x" * 25, 10)) == ["x" * 10, "x" * 10, "x" * 5]


def test_long_paragraph_is_emitted_in_parts() -> None:
    """The parts end between words and outside of emphasis."""
    output = LiveText(Markdown())
    output.resize(20)
    output.text("- " + "some **bold words here** " * 8)
    output.scroll(3)
    gone = output.take()
    assert all("*" not in line for line in plain(gone))
    assert [line[:2] for line in plain(gone)] == ["• ", *["  "] * (len(gone) - 1)]
    assert sum(1 for _ in output.live) <= 3
    assert plain(output.live)[0].startswith("  ")


def test_notices_do_not_break_lines_tables_or_code() -> None:
    """A notice is printed before an incomplete line or table."""
    output = LiveText(Markdown())
    output.text("```\ncode\nhalf")
    output.note("aside")
    output.text(" line\n```\n|a|b|\n|-|-|\n")
    output.note("another")
    output.finish()
    assert plain(output.take()) == ["```", "code", "aside", "half line", "```", "another", "a │ b", "──┼──"]


def test_unclosed_code_ends_with_its_response() -> None:
    """The next response is rendered as Markdown again."""
    output = LiveText(Markdown())
    output.text("```\ncode")
    output.finish()
    output.text("**bold**")
    output.finish()
    assert output.take()[-1] == [("strong", "bold")]


def test_table_fits_the_width() -> None:
    """Cells wrap. In a very narrow terminal each row is a list."""
    text = "| name | what it is |\n|---|---|\n| valve | opens when it is told to |\n"
    assert [line.rstrip() for line in plain(lines(text, 20))] == [
        "name  │ what it is",
        "──────┼─────────────",
        "valve │ opens when",
        "      │ it is told",
        "      │ to",
    ]
    assert all(display_width(line) <= 20 for line in plain(lines(text, 20)))
    narrow = plain(lines(text, 8))
    assert narrow[0].startswith("name:")
    assert all(display_width(line) <= 8 for line in narrow)
    assert plain(lines("| a | b |\nno table\n")) == ["| a | b |", "no table"]


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_unmatched_and_escaped_markers_are_text(text: str, expected: str) -> None:
    """Markers inside a word, escaped markers and markers without an end are text."""
    assert "".join(each for _, each in render_inline(text)) == expected


def test_megabyte_line_is_rendered_in_bounded_time() -> None:
    """Long lines with incomplete markup are rendered, also if the live rows are read before they scroll."""
    texts = ("*a " * 400_000, "`" * 9_000, "[a](" * 4_000, "日" * 9_000, "| " * 9_000, "word " * 3_000, "` " * 30_000)
    for text in texts:
        output = LiveText(Markdown())
        output.text(text)
        assert output.live
        output.scroll(6)
        assert len(output.live) <= 6
        output.finish()
        assert output.take()


def test_deeply_nested_quote_leaves_room_for_text() -> None:
    """The number of bars in front of a quote is limited."""
    for text in (">" * 50_000 + " said", "> " * 300 + "said"):
        shown = lines(text)
        assert max(sum(display_width(each_text) for _, each_text in line) for line in shown) <= 80
        assert "said" in "".join(plain(shown))


def test_table_is_buffered_up_to_the_size_of_an_answer() -> None:
    """A larger table is shown as text while it arrives."""
    row = f"| {'a ' * 1500}|\n"
    output = LiveText(Markdown())
    output.text(f"{row}|---|\n{row * 40}")
    assert len(output.live) < 10
    assert output.take()


def test_character_width_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width of each character is looked up once, because the lookup takes most of the time of a long line."""
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
