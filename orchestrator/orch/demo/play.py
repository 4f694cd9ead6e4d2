"""The four parts of the demo show a long session, recall, a killed process, and a map over the project."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.agent.config import ArchivalConfig, BudgetConfig, Config
from orch_protocol.core.errors import AgentDiedError
from orch_protocol.wire.worker_messages import TurnEvent
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.conversation.archive_text import message_text

from ..api.sync import Orchestrator, Subagent
from .bug_hunt import TASK, Script, copy_project, read_script
from .fan_out import FannedOut, review_files
from .long_session import run_long_session
from .screen import DemoScreen

__all__ = ["DemoResult", "best_line", "play", "quotations"]

OFFLINE: Final = "extractive:"
LIVE_SECONDS: Final = 900.0
"""Time limit for one answer."""
ATTEMPTS: Final = 5
DETAIL: Final = "Under which number was the mail queued after the smtp timeout?"
MIN_COVERAGE: Final = 0.5
"""A hit with a smaller share of the question does not contain the detail."""
REPEATED: Final = "What does data/calibration.csv say about the instrument TG-4471-B?"
COMMON_WORDS: Final = frozenset({"the", "and", "was", "what", "which", "when", "about", "does", "say", "after"})
NOTHING: Final = "nothing found"


class DemoResult(Struct, frozen=True):
    """The results of the demo for `--json`. Token counts are totals of all requests."""

    steps: int
    tokens_without: int
    tokens_with: int
    usd_without: float
    usd_with: float
    archives: int
    recalled: str
    recalled_turn: int
    killed_pid: int
    revived_pid: int
    revived_answer: str
    fan_out: FannedOut
    svg: str


def play(screen: DemoScreen, home: Path, *, run: str, model: str | None, max_usd: float) -> DemoResult:
    """Run the demo, and return the results.

    `home` is a folder for sessions and processes. If `model` is None, the recorded script answers. Otherwise the model
    answers, and all calls together may cost at most `max_usd`. Raises OrchError.
    """
    script = read_script()
    budget = BudgetConfig(max_cost_usd=max_usd) if model is not None else BudgetConfig()
    config = Config(archival=ArchivalConfig(enabled=True), budget=budget)
    project = home / "tidegauge"
    copy_project(project)
    _introduce(screen, script, model)
    with _temporary_files_in(home / "tmp"), Orchestrator(model or OFFLINE, config=config, run=run, home=home) as o:
        agent = _spawn(o, script, project, model)
        session = run_long_session(screen, agent, script, home, model)
        line, turn = _recall(screen, o, agent, model)
        killed, answer = _kill_and_ask_again(screen, agent, model)
        fanned_out = review_files(screen, o, project, model)
        sizes = session.sizes
        return DemoResult(
            steps=len(sizes.archived),
            tokens_without=sizes.sent_without,
            tokens_with=sizes.sent,
            usd_without=round(session.usd_without, 4),
            usd_with=round(session.usd, 4),
            archives=len(o.archives.list(agent.id)),
            recalled=line,
            recalled_turn=turn,
            killed_pid=killed,
            revived_pid=agent.pid or 0,
            revived_answer=answer,
            fan_out=fanned_out,
            svg=session.svg,
        )


def _introduce(screen: DemoScreen, script: Script, model: str | None) -> None:
    screen.heading(
        f"orch demo: an AI agent looks for a bug, in {len(script.turns)} questions and about {len(script.steps)} steps"
    )
    screen.say(
        "A program for flood alerts sent no alert on the night of a flood. The agent reads its files, runs its tests, "
        "finds the bug and fixes it."
    )
    screen.say(
        f"The model {model} decides each step."
        if model is not None
        else "A recorded script takes the place of the AI model, so no key is needed and nothing is charged. "
        "The rest is real: processes, commands, files, archives."
    )


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Let the commands of agents write temporary files to `folder`. This process keeps its own temporary folder."""
    folder.mkdir()
    tempfile.gettempdir()  # stores the folder in a cache before TMPDIR changes
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before


def _spawn(o: Orchestrator, script: Script, project: Path, model: str | None) -> Subagent:
    backend = ScriptedBackend(script.steps) if model is None else None
    return o.spawn(TASK, backend=backend, preset="work", name="debugger", cwd=project)


# --- 2: recall ---


def _recall(screen: DemoScreen, o: Orchestrator, agent: Subagent, model: str | None) -> tuple[str, int]:
    """Find a detail of an archived turn. Return the line with the detail and the number of the turn, or "" and 0."""
    screen.heading("2. Nothing is lost: a detail is found again, word for word")
    if model is None:
        agent.set_model(OFFLINE)  # the script has ended; all later answers are search results
    archives = o.archives.list(agent.id)
    screen.say(
        f"{len(archives)} archives hold the finished work; a search goes through them, without a call to a model."
    )
    screen.say(f"Question: {DETAIL}")
    began = time.monotonic()
    hits = [hit for hit in o.archives.search(DETAIL, ref=agent.id) if hit.entry and hit.coverage >= MIN_COVERAGE]
    milliseconds = 1000 * (time.monotonic() - began)
    if not hits:
        screen.say("The search found nothing. The model probably did not read the file with this detail.")
        return "", 0
    hit = hits[0]
    places = [each.id for each in archives]
    turn = places.index(hit.id) + 1 if hit.id in places else 0
    texts = [message_text(each) for each in o.archives.read(hit.id, first=hit.entry, last=hit.entry)]
    line = best_line(DETAIL, [line.rpartition("\t")[2] for text in texts for line in text.splitlines()])
    screen.say(f"Found in the archive of question {turn}, message {hit.entry}:")
    screen.quote(line)
    if model is not None:
        answer = o.get(hit.id).query(DETAIL, timeout=LIVE_SECONDS)
        screen.say("The model, asked about this archive, says:")
        screen.quote(answer.text)
    screen.figure(f"{milliseconds:.0f} ms for the search, and no tokens")
    return line, turn


def best_line(question: str, lines: Sequence[str]) -> str:
    """Return the first line with the most words of `question`. Return "" if there are no lines."""
    words = {word.strip("?,.").lower() for word in question.split()} - COMMON_WORDS
    return max(
        (line.strip() for line in lines), key=lambda line: sum(word in line.lower() for word in words), default=""
    )


# --- 3: a killed process ---


def _kill_and_ask_again(screen: DemoScreen, agent: Subagent, model: str | None) -> tuple[int, str]:
    """Kill the agent's process during a turn, and ask the same question again."""
    screen.heading("3. A killed process loses only its current step")
    screen.say("Each agent is a process of its own. This one is killed while it works on the answer to a question.")
    screen.say(f"Question: {REPEATED}")
    pid = _kill_in_the_middle(agent)
    began = time.monotonic()
    screen.say(f"kill -9 {pid}: the process is gone.")
    screen.say("The same question again is answered by a new process, which has the whole conversation from disk:")
    answer = agent.query(REPEATED, timeout=LIVE_SECONDS).text
    seconds = time.monotonic() - began
    if model is None:
        answer = best_line(REPEATED, [line for each in quotations(answer) for line in each.splitlines()])
    screen.quote(answer or NOTHING)
    screen.figure(f"{seconds:.1f} s from the kill to the answer of process {agent.pid}")
    return pid, answer


def _kill_in_the_middle(agent: Subagent) -> int:
    """Kill the agent's process during an answer and return the pid. If the turn ends before the kill, ask again."""
    killed: list[int] = []

    def kill(event: TurnEvent) -> None:
        if event.kind in ("tool_call", "text") and not killed and agent.pid is not None:
            killed.append(agent.pid)
            os.kill(agent.pid, signal.SIGKILL)

    for _ in range(ATTEMPTS):
        try:
            agent.query(REPEATED, timeout=LIVE_SECONDS, on_event=kill)
        except AgentDiedError:
            return killed[0]
        killed.clear()
    raise AgentDiedError(f"agent {agent.id} answered {ATTEMPTS} times before it was killed: run the demo again")


def quotations(answer: str) -> list[str]:
    """Return the quotations in an offline answer. A quotation is a group of lines that start with `>`."""
    groups = groupby(answer.splitlines(), key=lambda line: line.startswith(">"))
    return ["\n".join(line[1:].removeprefix(" ") for line in lines) for is_quoted, lines in groups if is_quoted]
