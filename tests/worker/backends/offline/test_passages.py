"""Passages: what of a text is quoted together."""

from __future__ import annotations

import pytest

from orch_worker.backends.offline.passages import LineBlock, blocks, is_prose, is_secondary


def split(label: str, text: str, first: int = 1) -> list[LineBlock]:
    """Return the passages of `text`, whose first line has the number `first`."""
    return list(blocks(label, list(enumerate(text.split("\n"), first))))


def texts(label: str, text: str, first: int = 1) -> list[str]:
    """Return the passages of `text` as text."""
    return ["\n".join(block.lines) for block in split(label, text, first)]


class TestDocumentation:
    """Markdown and plain text."""

    def test_list_items_are_whole(self) -> None:
        """An item has its continuation lines and its nested text, and ends where the next one begins."""
        items = "- one\n  goes on\n- two\n  goes on\n  and on\n"
        assert texts("a.md", f"Before:\n{items}\nAfter.") == [
            "Before:",
            "- one\n  goes on",
            "- two\n  goes on\n  and on",
            "After.",
        ]

    def test_paragraphs_are_whole(self) -> None:
        """A paragraph of more lines than a block of code may have is one passage."""
        paragraph = "\n".join(f"line {number}" for number in range(20))
        assert texts("a.md", f"{paragraph}\n\nend") == [paragraph, "end"]

    def test_paragraphs_have_their_heading(self) -> None:
        """The heading above is known, and which passage is the first below it. A bare heading is a passage."""
        found = split("a.md", "# Pump\n\nOne.\n\nTwo.\n\n## Empty")
        assert [(block.number, block.lines, block.heading, block.opens) for block in found] == [
            (3, ["One."], "Pump", True),
            (5, ["Two."], "Pump", False),
            (7, ["# Empty"], "Empty", True),
        ]

    def test_rows_are_single(self) -> None:
        """Each row of a table is a passage, without the line below the header."""
        assert texts("a.md", "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |") == ["| a | b |", "| 1 | 2 |", "| 3 | 4 |"]

    def test_comments_in_samples_are_no_headings(self) -> None:
        """A fenced block is one passage, also when the text begins in the middle of one."""
        assert texts("a.md", "Run:\n\n```sh\n# once\n\nmake\n```\nDone.") == [
            "Run:",
            "```sh\n# once\nmake\n```",
            "Done.",
        ]
        assert [block.heading for block in split("a.md", "# once\nmake\n```\n\nDone.", first=30)] == ["", ""]


def test_definitions_begin_a_passage() -> None:
    """A function is quoted from its decorator on, up to a blank line."""
    code = "LIMIT = 7\n@tool\ndef one() -> None:\n    return\n\n\nclass Two:\n    x = 1\n    def three(self): ..."
    assert texts("a.py", code) == [
        "LIMIT = 7",
        "@tool\ndef one() -> None:\n    return",
        "class Two:\n    x = 1",
        "    def three(self): ...",
    ]


def test_rows_of_a_file_know_their_columns() -> None:
    """Lines of data are single passages; those of a table have the first line as heading."""
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
    """Documentation is told from code, and tests, examples and lists of changes from the rest."""
    assert (is_prose(path), is_secondary(path)) == (prose, secondary)
