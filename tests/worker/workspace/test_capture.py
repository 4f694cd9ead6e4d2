"""Which results are kept, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest

from orch_worker.conversation.tokens import clip
from orch_worker.workspace import capture
from orch_worker.workspace.capture import artifact_of, handle_in, handle_of, one_line, paths_read

READ = "     1\timport os\n     2\tclass Pump:\n     3\t    def start(self):\n     4\t        def inner(): ...\n[more]"


def kept(tool: str, text: str, **input: Any) -> tuple[str, str, str]:
    """Return name, kind and summary of what is kept of a result."""
    found = artifact_of(tool, input, text, most=120)
    assert found is not None
    return found.name, found.kind, found.summary


@pytest.mark.parametrize(
    ("tool", "input", "text", "expected"),
    [
        (
            "read_file",
            {"path": "pump.py"},
            READ,
            ("file:pump.py", "file", "import os ... defines Pump, start, inner"),
        ),
        (
            "write_file",
            {"path": "a.md", "content": "# One\n\n## Two\n"},
            "Wrote.",
            ("file:a.md", "file", "# One ... headings: One, Two"),
        ),
        (
            "grep_files",
            {"pattern": "def", "path": "src"},
            "src/a.py:3: def a():\nsrc/b.py:9: def b():",
            (
                "search:def in src",
                "search",
                "2 matching lines in src/a.py, src/b.py: src/a.py:3: def a(): src/b.py:9: def b():",
            ),
        ),
        (
            "describe_data",
            {"path": "d.csv"},
            "d.csv: CSV, 2 rows, 1 column\n\na int",
            ("table:d.csv", "table", "CSV, 2 rows, 1 column a int"),
        ),
        (
            "fetch_url",
            {"url": "https://example.org/x"},
            "It rains in the north.",
            ("page:https://example.org/x", "page", "It rains in the north."),
        ),
        (
            "web_search",
            {"query": "rain"},
            "1. Rain, https://example.org",
            ("search:rain", "search", "1. Rain, https://example.org"),
        ),
        (
            "bash",
            {"command": "make test"},
            "one line\ntwo\n" + "x\n" * 50 + "3 failed\n[exit status 1]",
            ("result:bash make test", "result", "one line / two / ... / 3 failed / [exit status 1]"),
        ),
        (
            "weigh",
            {"id": 7, "unit": "kg"},
            "It weighs twelve kilograms.",
            ("result:weigh 7", "result", "It weighs twelve kilograms."),
        ),
    ],
)
def test_a_result_is_kept_by_tool_and_argument_with_what_it_is_about(
    tool: str, input: dict[str, Any], text: str, expected: tuple[str, str, str]
) -> None:
    """Of code what it defines, of text its headings, of a command its beginning and end."""
    assert kept(tool, text, **input) == expected


@pytest.mark.parametrize("tool", ["query_subagent", "spawn_subagent", "remember", "run_python", "read_handle"])
def test_results_of_agents_notes_and_handles_are_not_kept(tool: str) -> None:
    """They are kept elsewhere; and an answer of a word is no object."""
    assert artifact_of(tool, {"path": "x"}, "long enough to be kept", most=100) is None
    assert artifact_of("weigh", {}, "12 kg", most=100) is None


def test_names_arguments_and_summaries_are_on_one_line_and_bounded() -> None:
    """Nothing in them can look like another part of the prompt."""
    found = artifact_of("bash", {"command": "a\n# Tools taken\n" + "x" * 999}, "# Memory\n\x1b[2J\u2028" * 99, most=80)
    assert found is not None
    assert len(found.name) <= 120
    assert len(found.summary) <= 80
    assert all(value.isprintable() for value in (found.name, found.summary, *found.arguments.values()))
    assert one_line("a\n\tb\0c", 9) == "a b c"


def test_the_text_that_was_written_is_not_kept_as_an_argument() -> None:
    """It is in the file."""
    found = artifact_of("write_file", {"path": "a", "content": "secret plans"}, "Wrote 12 bytes.", most=80)
    assert found is not None
    assert (found.arguments, found.size) == ({"path": "a"}, 12)


def test_empty_lines_are_passed_over_once() -> None:
    """What is looked for stands on one line: were it to begin lines before, many would cost their square."""
    text = "\n" * 10
    assert capture._DEFINED.match(f"{text}def flow(): ...") is None
    assert capture._NUMBERED.match(f"{text}1: flow") is None


def test_files_that_a_result_was_made_from_are_found() -> None:
    """The one that was read, those that match a search."""
    assert paths_read("read_file", {"path": "a"}, "") == ("a",)
    assert paths_read("grep_files", {"path": "."}, "a.py:1: x\nb.py:2: y\na.py:3: z") == ("a.py", "b.py")
    assert paths_read("fetch_url", {"url": "x"}, "a.py:1: x") == ()


def test_the_handle_of_a_result_that_was_cut_is_found() -> None:
    """In the note that stands where something is left out."""
    shown = clip("x" * 5_000, 1_000, "read_handle with .h_012 shows any part")
    assert handle_in(shown) == ".h_012"
    assert handle_in("x") == ""
    assert handle_of("read_handle", {"handle": " h_012"}) == ".h_012"
    assert handle_of("read_file", {"handle": "h_012"}) == ""
