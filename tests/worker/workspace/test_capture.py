"""Artifacts of tool results: which results become artifacts, and their descriptions."""

from __future__ import annotations

from typing import Any

import pytest

from orch_worker.conversation.tokens import clip
from orch_worker.workspace import capture
from orch_worker.workspace.capture import artifact_of, handle_read, handle_shown, one_line, paths_read

READ = "     1\timport os\n     2\tclass Pump:\n     3\t    def start(self):\n     4\t        def inner(): ...\n[more]"


def kept(tool: str, text: str, **input: Any) -> tuple[str, str, str]:
    """Return name, kind and summary of the artifact of a result."""
    found = artifact_of(tool, input, text, limit=120)
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
def test_tool_results_are_kept_by_tool_and_argument(
    tool: str, input: dict[str, Any], text: str, expected: tuple[str, str, str]
) -> None:
    """The kind of artifact determines the summary: definitions, headings, or head and tail."""
    assert kept(tool, text, **input) == expected


@pytest.mark.parametrize("tool", ["query_subagent", "spawn_subagent", "remember", "run_python", "read_handle"])
def test_subagent_note_and_handle_results_are_not_kept(tool: str) -> None:
    """Such results are stored elsewhere. Very short results are not kept, either."""
    assert artifact_of(tool, {"path": "x"}, "long enough to be kept", limit=100) is None
    assert artifact_of("weigh", {}, "12 kg", limit=100) is None


def test_names_arguments_and_summaries_are_one_bounded_line() -> None:
    """Names and summaries without line ends cannot imitate another part of the prompt."""
    found = artifact_of("bash", {"command": "a\n# Tools taken\n" + "x" * 999}, "# Memory\n\x1b[2J\u2028" * 99, limit=80)
    assert found is not None
    assert len(found.name) <= 120
    assert len(found.summary) <= 80
    assert all(value.isprintable() for value in (found.name, found.summary, *found.arguments.values()))
    assert one_line("a\n\tb\0c", 9) == "a b c"


def test_written_text_is_not_kept_as_an_argument() -> None:
    """The file contains the text."""
    found = artifact_of("write_file", {"path": "a", "content": "secret plans"}, "Wrote 12 bytes.", limit=80)
    assert found is not None
    assert (found.arguments, found.size) == ({"path": "a"}, 12)


def test_summary_patterns_match_within_one_line() -> None:
    """The patterns do not skip line ends."""
    text = "\n" * 10
    assert capture._DEFINITION.match(f"{text}def flow(): ...") is None
    assert capture._LINE_NUMBER.match(f"{text}1: flow") is None


def test_source_files_of_a_result_are_found() -> None:
    """For a search, these are the files with matches."""
    assert paths_read("read_file", {"path": "a"}, "") == ("a",)
    assert paths_read("grep_files", {"path": "."}, "a.py:1: x\nb.py:2: y\na.py:3: z") == ("a.py", "b.py")
    assert paths_read("fetch_url", {"url": "x"}, "a.py:1: x") == ()


def test_handle_of_a_truncated_result_is_found() -> None:
    """The note at the omission of a truncated result contains the handle."""
    shown = clip("x" * 5_000, 1_000, "read_handle with .h_012 shows any part")
    assert handle_shown(shown) == ".h_012"
    assert handle_shown("x") == ""
    assert handle_read("read_handle", {"handle": " h_012"}) == ".h_012"
    assert handle_read("read_file", {"handle": "h_012"}) == ""
