"""Splitting a text into passages, which are quoted as a whole."""

from __future__ import annotations

import pytest

from orch_worker.backends.offline.passages import LineBlock, blocks, is_prose, is_secondary


def split(label: str, text: str, first: int = 1) -> list[LineBlock]:
    """Return the passages of `text`, whose first line has the number `first`."""
    return list(blocks(label, list(enumerate(text.split("\n"), first))))


def texts(label: str, text: str, first: int = 1) -> list[str]:
    """Return the texts of the passages of `text`."""
    return ["\n".join(block.lines) for block in split(label, text, first)]


class TestDocumentation:
    """Markdown and plain text."""

    def test_list_items_are_whole(self) -> None:
        """A list item with its continuation lines is one passage."""
        items = "- one\n  goes on\n- two\n  goes on\n  and on\n"
        assert texts("a.md", f"Before:\n{items}\nAfter.") == [
            "Before:",
            "- one\n  goes on",
            "- two\n  goes on\n  and on",
            "After.",
        ]

    def test_paragraphs_are_whole(self) -> None:
        """A paragraph of 20 lines is one passage."""
        paragraph = "\n".join(f"line {number}" for number in range(20))
        assert texts("a.md", f"{paragraph}\n\nend") == [paragraph, "end"]

    def test_paragraphs_have_their_heading(self) -> None:
        """A passage has the heading above it and states whether it is the first; a heading alone is a passage."""
        found = split("a.md", "# Pump\n\nOne.\n\nTwo.\n\n## Empty")
        assert [(block.number, block.lines, block.heading, block.opens) for block in found] == [
            (3, ["One."], "Pump", True),
            (5, ["Two."], "Pump", False),
            (7, ["# Empty"], "Empty", True),
        ]

    def test_each_table_row_is_a_passage(self) -> None:
        """Each row of a table is a passage, and the line below the header is omitted."""
        assert texts("a.md", "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |") == ["| a | b |", "| 1 | 2 |", "| 3 | 4 |"]

    def test_comments_in_code_blocks_are_no_headings(self) -> None:
        """A fenced code block is one passage, also if the text begins inside a block."""
        assert texts("a.md", "Run:\n\n```sh\n# once\n\nmake\n```\nDone.") == [
            "Run:",
            "```sh\n# once\nmake\n```",
            "Done.",
        ]
        assert [block.heading for block in split("a.md", "# once\nmake\n```\n\nDone.", first=30)] == ["", ""]


def test_definitions_begin_a_passage() -> None:
    """A passage of code begins at the decorator of a function and ends at a blank line."""
    code = "LIMIT = 7\n@tool\ndef one() -> None:\n    return\n\n\nclass Two:\n    x = 1\n    def three(self): ..."
    assert texts("a.py", code) == [
        "LIMIT = 7",
        "@tool\ndef one() -> None:\n    return",
        "class Two:\n    x = 1",
        "    def three(self): ...",
    ]


def test_each_row_of_a_data_file_is_a_passage() -> None:
    """Each line of data is a passage, and a line of a CSV file has the first line as its heading."""
    assert [block.heading for block in split("a.csv", "id,name\n1,x")] == ["id,name", "id,name"]
    assert texts("a.log", "first\n\nsecond") == ["first", "second"]


@pytest.mark.parametrize(
    ("path", "prose", "secondary"),
    [
        ("README.md", True, False),
        ("docs/guide.rst", True, False),
        ("LICENSE", True, False),
        ("Makefile", True, False),
        ("src/contest.py", False, False),
        ("src/tests/data.py", False, True),
        ("test_pump.py", False, True),
        ("web/pump.test.ts", False, True),
        ("examples/a/README.md", True, True),
        ("CHANGELOG.md", True, True),
    ],
)
def test_kinds_of_files(path: str, prose: bool, secondary: bool) -> None:
    """`is_prose` recognizes documentation; `is_secondary` recognizes tests, examples and change logs."""
    assert (is_prose(path), is_secondary(path)) == (prose, secondary)
