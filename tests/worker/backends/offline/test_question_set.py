"""The offline backend finds the right file for 30 questions about this repository and the standard library."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from agent_doubles import Talk
from orch_worker.backends.offline.extractive import ExtractiveBackend
from orch_worker.tools.dispatch.presets import load

REPOSITORY: Final = Path(__file__).parents[4]
QUESTIONS: Final[list[dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("offline_questions.toml").read_text(encoding="utf-8")
)["questions"]
RIGHT: Final = 27
_WHERE: Final = re.compile(r"^(\S+?)(?::\d+)?\n> ", re.MULTILINE)


def folder_of(question: dict[str, Any]) -> Path:
    """Return the folder that the question is about."""
    package = question.get("folder", ".")
    return REPOSITORY if package == "." else Path(str(importlib.import_module(package).__file__)).parent


async def answer(folder: Path, question: str) -> str:
    """Return the answer of an agent in `folder` that can list, search and read files."""
    return (
        await Talk(ExtractiveBackend(), *load(("list_files", "grep_files", "read_file")), cwd=folder).ask(question)
    ).text


async def test_right_file_is_quoted_first() -> None:
    """For at least `RIGHT` of 30 questions, the first quotation is from an expected file. At most three are given."""
    assert len(QUESTIONS) == 30
    wrong = []
    for question in QUESTIONS:
        text = await answer(folder_of(question), question["ask"])
        assert len(_WHERE.findall(text)) <= 3, question
        first = _WHERE.search(text)
        if first is None or first[1] not in question["files"]:
            wrong.append(f"{question['ask']} {first and first[1]} instead of {question['files']}")
    assert len(QUESTIONS) - len(wrong) >= RIGHT, "\n".join(wrong)


@pytest.mark.parametrize(
    ("question", "where", "line"),
    [
        ("What does the README say this project is?", "README.md", ""),
        ("How are the tests run?", "Makefile", "test:"),
        ("Which errors are defined here?", "protocol/orch_protocol/core/errors.py", "class "),
    ],
)
async def test_questions_of_the_demo_about_this_repository(question: str, where: str, line: str) -> None:
    """The first quotation is from the file that contains the answer."""
    text = await answer(REPOSITORY, question)
    assert text.split("\n\n")[1].startswith(where)
    assert f"\n> {line}" in text
    if where == "README.md":
        readme = (REPOSITORY / where).read_text(encoding="utf-8").split("\n\n")
        assert text.split("\n\n")[1].split("\n")[1] == f"> {readme[1].splitlines()[0]}"


async def test_row_of_a_table_is_quoted_alone() -> None:
    """The first quotation for a question about one row of a CSV file begins with that row."""
    text = await answer(REPOSITORY / "examples/bug_hunt/project", "Which instrument has station 17 had since 2026-3-9?")
    assert text.split("\n\n")[1].startswith("data/calibration.csv:8\n> 17,2026-3-9,TG-4471-B,")
