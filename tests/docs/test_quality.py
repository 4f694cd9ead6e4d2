"""The comparison of archives with compaction: it runs as a whole with a model that is a rule, without a key."""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orch import AsyncOrchestrator, BackendInfo, BackendRequest, CustomBackend, ToolUse
from orch.testing import fake_world
from orch_protocol.core.messages import ToolResult, text_of
from source_tree import ROOT


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, which is not part of a package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("quality")


@pytest.fixture
def built(quality: ModuleType, tmp_path: Path) -> Path:
    """The conditions of the generated session, with an extract as the summary."""
    quality.sample(tmp_path / "sample")
    parts = quality.split(tmp_path / "sample" / "session.json")
    quality.build(
        parts, ("extract", "The gauge is in the harbor."), tmp_path / "sample" / "questions.json", tmp_path / "out"
    )
    return tmp_path / "out"


class LooksUp(CustomBackend):
    """Looks up the question once if it has a tool for that. Answers with the result, or else with its context."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def respond(self, request: BackendRequest) -> Iterator[Any]:
        self.requests += 1
        last = request.messages[-1].content[-1]
        question = getattr(last, "text", "").rpartition("Query: ")[2]
        names = [tool.name for tool in request.tools]
        if isinstance(last, ToolResult):
            yield last.content[0].text
        elif "search_archive" in names:
            yield ToolUse("c1", "search_archive", {"query": question})
        elif "grep_files" in names:
            yield ToolUse("c1", "grep_files", {"pattern": max(question.split(), key=len).strip("?,.")})
        else:
            yield text_of(request.messages[0])

    def info(self) -> BackendInfo:
        return BackendInfo("rule", "looks-up", 200_000)


@pytest.fixture
async def orchestrator(tmp_path: Path) -> AsyncIterator[AsyncOrchestrator]:
    """An orchestrator whose agents have no processes."""
    async with AsyncOrchestrator(home=tmp_path / "home", **fake_world()) as o:
        yield o


async def test_comparison_runs_from_the_session_to_the_table(
    quality: ModuleType, built: Path, orchestrator: AsyncOrchestrator
) -> None:
    """Each condition has its answers, and its lookups with the characters that they returned."""
    model = LooksUp()
    await quality.ask(built, orchestrator, {"backend": model})
    archive, compaction, history = quality.score(built)
    assert (archive.lookups, compaction.lookups, history.lookups) == (20, 0, 20)
    answers = json.loads((built / "archive" / "answers.json").read_text())
    assert archive.characters == sum(len(each["answer"]) for each in answers) > 2_000
    assert archive.open == compaction.open == ("w5",)
    assert archive.right >= 8
    assert compaction.context_tokens > 15_000 > 10 * archive.context_tokens
    assert f"| archive | {archive.context_tokens:,} | {archive.right} of 20 | 1 | 20 |" in quality.table([archive])
    assert "Expected: UTC in files" in quality.to_judge(built, [archive])

    asked = model.requests
    (built / "archive" / "verdicts.json").write_text('{"w5": true}')
    await quality.ask(built, orchestrator, {"backend": model})
    assert model.requests == asked, "answered questions are not asked again"
    assert quality.score(built)[0].right == archive.right + 1


async def test_model_writes_the_summary(quality: ModuleType, built: Path, orchestrator: AsyncOrchestrator) -> None:
    """The summary is the answer to the prompt of orch's compaction, and the latest messages follow it."""
    parts = quality.split(built.parent / "sample" / "session.json")
    summary = await quality.summary_of(parts.older, orchestrator, {"backend": LooksUp()})
    assert "Never call time.sleep in the reader" in summary
    quality.build(parts, ("a model", summary), built / "questions.json", built.parent / "again")
    context = (built.parent / "again" / "compaction" / "context.md").read_text()
    assert summary in context
    assert context.endswith("Version 0.9.4 is pushed and tagged.\n")


class Asks(CustomBackend):
    """Writes a question with facts from the text, and one with an invented fact."""

    def respond(self, request: BackendRequest) -> Iterator[Any]:  # noqa: ARG002
        fields = {"kind": "error", "question": "What did sqlite3 report?", "answer": "database is locked"}
        yield json.dumps([fields | {"id": "a", "facts": [[text]]} for text in ("disk is full", "database is locked")])


async def test_model_writes_questions_about_the_recording(
    quality: ModuleType, built: Path, orchestrator: AsyncOrchestrator
) -> None:
    """A question whose facts are not in the recording is left out."""
    messages = quality.split(built.parent / "sample" / "session.json").messages
    (found,), left_out = await quality.proposed(messages, 1, orchestrator, {"backend": Asks()})
    assert (found.id, found.facts, left_out) == ("q1", (("database is locked",),), 1)


def test_contexts_do_not_contain_the_expected_answers_as_such(quality: ModuleType, built: Path) -> None:
    """The archives hold the whole session, the history holds what compaction replaced, and questions.md no answers."""
    assert "busy_timeout = 4000" in quality.lookup(built, "search_archive", '{"query": "busy_timeout"}')
    assert "'time.sleep'" not in (built / "questions.md").read_text()
    history = (built / "compaction-history" / "history.txt").read_text()
    assert "+    def __init__(self, interval_s: float = 7.0) -> None:" in history
    assert "0.9.4" not in history
    assert "0.9.4" in (built / "compaction" / "context.md").read_text()


def test_answers_of_another_program_are_scored(
    quality: ModuleType, built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answers file needs ids and answers. A missing answer is wrong."""
    answers = [
        {"id": each["id"], "answer": each["answer"]} for each in json.loads((built / "questions.json").read_text())
    ]
    (built / "compaction" / "answers.json").write_text(json.dumps(answers[:-1]))
    assert quality.main(["score", str(built)]) == 0
    shown = capsys.readouterr().out
    assert "| 18 of 20 | 1 | 0 | 0 | - |" in shown
    assert "wrong, compaction: s5" in shown
    assert quality.main(["lookup", str(built), "search_archive", '{"query": "busy_timeout"}']) == 0
    assert "busy_timeout = 4000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ("It is **`Read_File`**.", "read_file", True),
        ("ready", "read", False),
        ("the ports 1,883 and 8883", {"number": 1883}, True),
        ("18830", {"number": 1883}, False),
        ("version 0.9.4", {"number": 0.9}, False),
        ("it took 0.640 s.", {"number": 0.64, "units": ["s"]}, True),
        ("it took 0.64 samples", {"number": 0.64, "units": ["s"]}, False),
        ("a wait of 4,000 ms", {"number": 4000, "units": ["s", "ms"]}, True),
        ("15-cm steps", {"number": 15, "units": ["cm"]}, True),
        ("15", {"number": 15, "units": ["cm"]}, False),
        ("database\n  is  LOCKED", "database is locked", True),
    ],
)
def test_answers_are_compared_by_words_and_numbers(
    quality: ModuleType, answer: str, expected: str | dict[str, Any], right: bool
) -> None:
    """Case, Markdown and spaces do not matter. Parts of words and other units do."""
    question = {"id": "q", "kind": "code", "question": "?", "answer": "", "facts": [[expected]]}
    read = quality.msgspec.convert(question, quality.Question)
    assert read.is_answered(answer) is right


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "contains no question"),
        ('[{"id": "a"}]', "missing required field `kind`"),
        ("[", "truncated"),
    ],
)
def test_unusable_questions_are_errors(
    quality: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    """The message names the file and what is wrong with it."""
    (tmp_path / "questions.json").write_text(text)
    session = tmp_path / "session.json"
    session.write_text('[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]')
    assert quality.main(["build", str(session), str(tmp_path / "questions.json"), str(tmp_path / "out")]) == 1
    shown = capsys.readouterr().err
    assert problem in shown
    assert "questions.json" in shown


def test_existing_files_are_not_overwritten(
    quality: ModuleType, built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second build into the same folder is an error, and so are questions into the same file."""
    sample = built.parent / "sample"
    assert quality.main(["build", str(sample / "session.json"), str(sample / "questions.json"), str(built)]) == 1
    assert "is not empty" in capsys.readouterr().err
    questions = str(built / "questions.json")
    assert quality.main(["questions", str(sample / "session.json"), questions, "--model", "extractive:"]) == 1
    assert "exists; give a new file" in capsys.readouterr().err


def test_sample_has_twenty_questions_and_half_of_them_are_paraphrased(quality: ModuleType) -> None:
    """Each kind has five questions, and the expected answer of a question contains its facts."""
    questions = quality.questions_in(quality.quality_session.QUESTIONS)
    kinds = [each.kind for each in questions]
    assert {kind: kinds.count(kind) for kind in kinds} == {"wish": 5, "code": 5, "error": 5, "state": 5}
    assert sum(each.paraphrased for each in questions) == 10
    assert [each.id for each in questions if each.facts and not each.is_answered(each.answer)] == []
