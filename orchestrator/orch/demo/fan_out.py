"""The last part of the demo asks the same question about each file of the project, and kills one of the agents."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from orch_protocol.hooks.events import BeforeTurn, ProviderResponse, TurnEnd

from ..api.fan_out import MapResult
from ..api.sync import Orchestrator
from ..render.columns import format_columns
from .screen import DemoScreen

__all__ = ["FannedOut", "Review", "Work", "review_files", "work_lines"]

READER: Final = "orch.demo.file_reader:FileReader"
WORKERS: Final = 4
QUESTION: Final = "Which functions in {item} have no docstring?"
HEAD: Final = ("PROCESS", "STATE", "FILE", "ANSWER")


class Review(Struct, frozen=True):
    """The answer about one file. `undocumented` contains the names of functions without a docstring."""

    functions: int
    undocumented: list[str]


class FannedOut(Struct, frozen=True):
    """The answers or errors by file, how many questions were asked for them, and the killed process and its file.

    If no process was killed, `killed_pid` is 0.
    """

    answers: dict[str, Review | str]
    questions: int
    killed_pid: int
    killed_file: str


@dataclass
class Work:
    """One question: its file, the agent and process that work on it, and the answer after the end of the map."""

    file: str
    agent: str
    pid: int
    state: Literal["working", "done", "killed"] = "working"
    answer: str = ""


@dataclass
class _Team:
    """Records who works on what, and kills the process of one agent in the middle. Its methods are hooks."""

    o: Orchestrator
    screen: DemoScreen
    files: Sequence[str]
    work: list[Work] = field(default_factory=list)
    first_shown: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, event: BeforeTurn, ctx: object) -> None:  # noqa: ARG002
        """Record that an agent was asked about a file. A request to correct its answer belongs to the same question."""
        pid = self.o.get(event.agent_id).pid or 0
        with self._lock:
            known = next((each for each in reversed(self.work) if each.agent == event.agent_id), None)
            if known is not None and known.state == "done":
                known.state = "working"
            else:
                file = known.file if known else next((each for each in self.files if each in event.prompt), "")
                self.work.append(Work(file, event.agent_id, pid))
            self._show()

    def kill_one(self, event: ProviderResponse, ctx: object) -> None:  # noqa: ARG002
        """Kill one agent, once half of the files were asked about. Its response is lost: it is stored after hooks."""
        with self._lock:
            own = self._of(event.agent_id)
            if self.killed is None and len(self.work) > len(self.files) // 2 and own is not None and own.pid:
                own.state = "killed"
                os.kill(own.pid, signal.SIGKILL)
                self._show()

    def end(self, event: TurnEnd, ctx: object) -> None:  # noqa: ARG002
        """Record the answer of an agent."""
        with self._lock:
            if own := self._of(event.agent_id):
                own.state = "done"
                self._show()

    @property
    def killed(self) -> Work | None:
        """The question whose process was killed."""
        return next((each for each in self.work if each.state == "killed"), None)

    def _of(self, agent: str) -> Work | None:
        return next((each for each in self.work if each.agent == agent and each.state == "working"), None)

    def _show(self) -> None:
        self.screen.update(work_lines(self.work[self.first_shown :]))


def review_files(screen: DemoScreen, o: Orchestrator, project: Path, model: str | None) -> FannedOut:
    """Ask about each module of `project` in a map, kill one agent, and run the map again. Return the outcome."""
    files = [str(each.relative_to(project)) for each in sorted(project.glob("tidegauge/*.py"))]
    screen.heading(f"4. {WORKERS} agents at a time review the project, and a killed one costs one question")
    screen.say(
        f"The same question about each of {len(files)} files, in one call of o.map. Each file gets an agent in a "
        "process of its own. "
        + (f"The model {model} answers." if model else "A program that counts takes the place of the model.")
    )
    screen.say(f"Question: {QUESTION.format(item='FILE')}")
    team = _Team(o, screen, files)
    o.register_hook(team.begin, "before_turn", kind="transform")  # the agent waits for this kind of hook
    o.register_hook(team.kill_one, "after_provider_response", kind="transform")
    o.register_hook(team.end, "turn_end")

    def ask() -> list[MapResult[Review]]:
        return o.map(
            files, QUESTION, workers=WORKERS, returns=Review, tools=["read_file"], cwd=project, model=model or READER
        )

    results = ask()
    killed = team.killed
    _show_work(screen, team.work, results)
    if killed is not None:
        screen.say(
            f"kill -9 {killed.pid} ended the work on {killed.file}. The same call again keeps all answers, and asks "
            "only what has none:"
        )
        team.first_shown = len(team.work)
        results = ask()
        _show_work(screen, team.work[team.first_shown :], results)
    answered = sum(each.error is None for each in results)
    screen.figure(f"{answered} of {len(files)} files answered, with {len(team.work)} questions")
    return FannedOut(
        {each.key: each.value or str(each.error) for each in results},
        len(team.work),
        killed.pid if killed else 0,
        killed.file if killed else "",
    )


def _show_work(screen: DemoScreen, work: Sequence[Work], results: Sequence[MapResult[Review]]) -> None:
    """Show who worked on what, with the answers."""
    answers = {each.key: each for each in results}
    for each in work:
        each.answer = _answer_text(answers[each.file]) if each.file in answers else ""
    screen.lines(work_lines(work))


def _answer_text(result: MapResult[Review]) -> str:
    """Return an answer, or the type of the error, in a few words."""
    review = result.value
    return f"{len(review.undocumented)} of {review.functions} functions" if review else result.error_type


def work_lines(work: Sequence[Work]) -> list[str]:
    """Return a table: who works on what."""
    rows = [[str(each.pid or "-"), each.state, each.file, each.answer] for each in work]
    return format_columns([list(HEAD), *rows], frozenset({0})).splitlines()
