"""The offline backend finds the right file: 30 questions over this repository and the standard library."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from orch_worker.backends.offline.extractive import ExtractiveBackend
from orch_worker.tools.dispatch.presets import load
from talk import Talk

REPOSITORY: Final = Path(__file__).parents[2]
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
    """One of the expected files is quoted first, in at least `RIGHT` of 30 questions."""
    assert len(QUESTIONS) == 30
    wrong = []
    for question in QUESTIONS:
        first = _WHERE.search(await answer(folder_of(question), question["ask"]))
        if first is None or first[1] not in question["files"]:
            wrong.append(f"{question['ask']} {first and first[1]} instead of {question['files']}")
    assert len(QUESTIONS) - len(wrong) >= RIGHT, "\n".join(wrong)
