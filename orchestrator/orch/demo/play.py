"""The four parts of the demo: a long session, recall, a killed process, three subagents."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.agent.config import ArchivalConfig, BudgetConfig, Config
from orch_protocol.core.errors import AgentDiedError, OrchError
from orch_protocol.core.messages import Reply
from orch_protocol.wire.worker_messages import TurnEvent
from orch_worker.backends.offline.scripted import ScriptedBackend

from ..api.sync import Orchestrator, Subagent
from ..archival.store.index import message_text
from ..render import terminal
from ..replay.report import Terms
from .bug_hunt import TASK, Script, copy_project, read_script
from .chart import svg_chart, text_chart
from .context_meter import Course, bill, course_of, read_session
from .screen import Screen

__all__ = ["Played", "play"]

OFFLINE: Final = "extractive:"
SECONDS: Final = 60.0
"""How long one answer may take."""
LIVE_SECONDS: Final = 900.0
REFRESH_SECONDS: Final = 0.2
ATTEMPTS: Final = 5
DETAIL: Final = "Under which number was the mail queued after the smtp timeout?"
REPEATED: Final = "Which instrument has station 17 had since 2026-3-9?"
QUESTIONS: Final = {
    "overview": "What does the README say this project is?",
    "tests": "How are the tests run?",
    "errors": "Which errors are defined here?",
}
"""What the three subagents are asked, by name."""


class Played(Struct, frozen=True):
    """What the demo showed, for `--json`. Tokens are of all requests together."""

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
    subagents: dict[str, str]
    svg: str


def play(screen: Screen, home: Path, folder: Path, *, run: str, model: str | None, max_usd: float) -> Played:
    """Play the demo with agents in `folder`, and return what it showed.

    `home` is a folder for sessions and processes. `model` None plays the recorded script; otherwise that model works,
    with a budget of `max_usd` for everything together. Raises OrchError.
    """
    script = read_script()
    budget = BudgetConfig(max_cost_usd=max_usd) if model is not None else BudgetConfig()
    config = Config(archival=ArchivalConfig(enabled=True), budget=budget)
    project = home / "tidegauge"
    copy_project(project)
    _introduce(screen, script, model)
    with Orchestrator(model or OFFLINE, config=config, run=run, home=home) as o:
        agent = _spawn(o, script, project, model)
        course, dollars, svg = _long_session(screen, agent, script, home)
        line, turn = _recall(screen, o, agent, model)
        killed, answer = _kill_and_ask_again(screen, agent)
        told = _three_subagents(screen, o, folder, model)
        return Played(
            steps=len(course.archived),
            tokens_without=course.sent_without,
            tokens_with=course.sent,
            usd_without=round(dollars[0], 4),
            usd_with=round(dollars[1], 4),
            archives=len(o.archives(agent.id)),
            recalled=line,
            recalled_turn=turn,
            killed_pid=killed,
            revived_pid=agent.pid or 0,
            revived_answer=answer,
            subagents=told,
            svg=svg,
        )


def _introduce(screen: Screen, script: Script, model: str | None) -> None:
    who = (
        f"The model {model} works on it."
        if model is not None
        else "A script takes the place of the model, so no key is needed. Everything else is real: processes, tools, "
        "files, archives."
    )
    screen.heading(
        f"orch demo: an agent looks for a bug, in {len(script.turns)} questions and about {len(script.steps)} steps"
    )
    screen.say(who)


def _spawn(o: Orchestrator, script: Script, project: Path, model: str | None) -> Subagent:
    backend = ScriptedBackend(script.steps) if model is None else None
    return o.spawn(TASK, backend=backend, preset="work", name="debugger", cwd=project)


# --- 1: a long session ---


def _long_session(screen: Screen, agent: Subagent, script: Script, home: Path) -> tuple[Course, Sequence[float], str]:
    screen.heading("1. A long session costs less when finished turns are archived")
    screen.say(
        f"The agent is process {agent.pid} and works on a copy of a small program. After each question, its turn is "
        "archived: a short record stays in context, the full text goes to disk."
    )
    file = Path(agent.state().folder, "session.jsonl")
    for number, turn in enumerate(script.turns, 1):
        future = agent.submit(turn.prompt)
        while not _is_done(future):
            _show_progress(screen, file, number, script)
        future.result()
        course = course_of(read_session(file))
        screen.lines([_progress(course, number, script)])
    recording = read_session(file)
    course = course_of(recording)
    dollars = bill(recording, home / "bill", Terms(items=0))
    screen.lines(["", *_totals(course, dollars), ""])
    screen.lines(text_chart(course.without, course.archived, width=screen.width - 4, drawn=screen.draws))
    svg = _save(svg_chart(course.without, course.archived))
    screen.say(f"The same chart as a picture: {svg}")
    return course, dollars, svg


def _is_done(future: Future[Reply]) -> bool:
    try:
        future.exception(REFRESH_SECONDS)
    except TimeoutError:
        return False
    return True


def _show_progress(screen: Screen, file: Path, turn: int, script: Script) -> None:
    if screen.live:
        try:
            screen.update([_progress(course_of(read_session(file)), turn, script)])
        except OrchError:
            pass  # the worker is writing its first line


def _progress(course: Course, turn: int, script: Script) -> str:
    without, archived = (course.without or (0,))[-1], (course.archived or (0,))[-1]
    return (
        f"question {turn}/{len(script.turns)}  step {len(course.archived):2}   tokens in context: "
        f"{without:6,} without, {archived:6,} with"
    )


def _totals(course: Course, dollars: Sequence[float]) -> list[str]:
    share = 100 * course.sent / max(course.sent_without, 1)
    cost = 100 * dollars[1] / dollars[0] if dollars[0] else 100.0
    return [
        f"{'':28}{'without':>12}{'with archival':>16}",
        f"{'tokens sent to the model':28}{course.sent_without:>12,}{course.sent:>16,}   {share:.0f} %",
        f"{'cost with prompt caching':28}{dollars[0]:>12.2f}{dollars[1]:>16.2f}   {cost:.0f} %",
        "(dollars, at $3 per million tokens, cached tokens at a tenth)",
    ]


def _save(svg: str) -> str:
    descriptor, name = tempfile.mkstemp(prefix="orch-demo-", suffix=".svg")
    with open(descriptor, "w") as file:
        file.write(svg)
    return name


# --- 2: recall ---


def _recall(screen: Screen, o: Orchestrator, agent: Subagent, model: str | None) -> tuple[str, int]:
    """Find a detail of an archived turn; return its line and the number of the turn."""
    screen.heading("2. Nothing is lost: an archived detail, word for word")
    if model is None:
        agent.set_model(OFFLINE)  # the script has ended; from here on, answers are search results
    archives = o.archives(agent.id)
    screen.say(f"{len(archives)} finished turns are in archives. The agent's context has a short record of each.")
    screen.say(f"Question: {DETAIL}")
    hit = o.search_archive(DETAIL, ref=agent.id)[0]
    turn = [each.id for each in archives].index(hit.id) + 1
    answer = o.get(hit.id).query(DETAIL, timeout=LIVE_SECONDS if model else SECONDS)
    line = _best_line(DETAIL, [message_text(each) for each in o.read_archive(hit.id, first=hit.entry, last=hit.entry)])
    screen.say(f"The archive of question {turn} ({hit.id}) answers, from message {hit.entry}:")
    screen.quote(line if model is None else answer.text, 1 if model is None else 3)
    return line, turn


def _best_line(question: str, texts: Sequence[str]) -> str:
    """Return the line with the most words of `question`, without its line number."""
    words = {word.strip("?,.").lower() for word in question.split()} - {"the", "and", "was", "which", "when", "about"}
    lines = [line.rpartition("\t")[2].strip() for text in texts for line in text.splitlines()]
    return max(lines, key=lambda line: sum(word in line.lower() for word in words), default="")


# --- 3: a killed process ---


def _kill_and_ask_again(screen: Screen, agent: Subagent) -> tuple[int, str]:
    """Kill the agent's process in the middle of a turn, and ask the same question again."""
    screen.heading("3. kill -9 in the middle of an answer")
    screen.say(f"Question: {REPEATED}")
    pid = _kill_in_the_middle(agent)
    screen.say(f"Process {pid} was killed while it worked on the answer. The same question again:")
    reply = agent.query(REPEATED, timeout=LIVE_SECONDS)
    answer = _headline(reply.text)
    screen.quote(answer)
    screen.say(f"Process {agent.pid} answered. It continued from the session file, with all archives.")
    return pid, answer


def _kill_in_the_middle(agent: Subagent) -> int:
    """Kill the agent's process at its first tool call; return the pid. A turn that ended first is asked again."""

    killed: list[int] = []

    def kill(event: TurnEvent) -> None:
        if event.kind == "tool_call" and not killed and agent.pid is not None:
            killed.append(agent.pid)
            os.kill(agent.pid, signal.SIGKILL)

    for _ in range(ATTEMPTS):
        try:
            agent.query(REPEATED, timeout=LIVE_SECONDS, on_event=kill)
        except AgentDiedError:
            return killed[0]
        killed.clear()
    raise AgentDiedError(f"agent {agent.id} answered {ATTEMPTS} times before it was killed: run the demo again")


# --- 4: three subagents ---


def _three_subagents(screen: Screen, o: Orchestrator, folder: Path, model: str | None) -> dict[str, str]:
    """Ask three agents about `folder` at the same time; return the headline of each answer by the agent's name."""
    screen.heading("4. Three subagents at once, in this folder")
    screen.say(
        f"Each is a process of its own. The model {model} answers."
        if model
        else "Each is a process of its own. They search files and quote them; with a key, a model would answer."
    )
    agents = {
        name: o.spawn(question, preset="investigate", name=name, cwd=folder) for name, question in QUESTIONS.items()
    }
    began = time.monotonic()
    futures = {name: agent.submit(QUESTIONS[name]) for name, agent in agents.items()}
    seconds: dict[str, float] = {}
    while len(seconds) < len(futures):
        for name, future in futures.items():
            if future.done():
                seconds.setdefault(name, time.monotonic() - began)
        screen.update(_tree(agents, seconds, began))
        time.sleep(REFRESH_SECONDS / 4)
    screen.lines(_tree(agents, seconds, began))
    told = {name: _headline(future.result(SECONDS).text) for name, future in futures.items()}
    for name, question in QUESTIONS.items():
        screen.say(f"{question}")
        screen.quote(told[name] or "nothing found")
    return told


def _tree(agents: dict[str, Subagent], seconds: dict[str, float], began: float) -> list[str]:
    rows = [
        [
            "├" if name != list(agents)[-1] else "└",
            name,
            "done" if name in seconds else "working",
            f"{agent.state().pid}",
            f"{seconds.get(name, time.monotonic() - began):.1f} s",
            f"${agent.state().usage.cost_usd:.4f}",
        ]
        for name, agent in agents.items()
    ]
    return [
        "demo",
        *terminal.columns([["", "NAME", "STATE", "PROCESS", "TIME", "COST"], *rows], frozenset({3, 4, 5})).splitlines(),
    ]


def _headline(answer: str) -> str:
    """Return the line of an answer that says most: the first quoted one of a search, else the first."""
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    quoted = [line.removeprefix(">").strip() for line in lines if line.startswith(">")]
    return next((line for line in [*quoted, *lines[:1]] if line), "")
