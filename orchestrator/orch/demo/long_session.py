"""The first part of the demo: a long session, and what its archives save."""

from __future__ import annotations

import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import Reply

from ..api.sync import Subagent
from ..replay.report import ReplayPricing
from .bug_hunt import Script
from .chart import PLAIN_WITH, PLAIN_WITHOUT, WITH, WITHOUT, svg_chart, text_chart
from .context_meter import Course, course_of, read_session, session_cost
from .screen import REFRESH_SECONDS, DemoScreen

__all__ = ["TOKENS_PER_CELL", "PlayedSession", "progress_line", "run_long_session", "show_session"]

TOKENS_PER_CELL: Final = 3000
"""Of the bar in the line that shows the progress."""


class PlayedSession(Struct, frozen=True):
    """The long session: sizes, cost in dollars, and the file with the chart."""

    course: Course
    usd_without: float
    usd: float
    svg: str


def run_long_session(
    screen: DemoScreen, agent: Subagent, script: Script, home: Path, model: str | None
) -> PlayedSession:
    """Ask the questions of the script one after the other; show the size of the conversation."""
    screen.heading("1. A long conversation gets shorter and cheaper")
    screen.say(
        "At each step the model is sent the whole conversation again, measured in tokens (about four characters each). "
        "orch moves finished work from the conversation to an archive on disk, and leaves a short record of it."
    )
    file = Path(agent.state().folder, "session.jsonl")
    for number, turn in enumerate(script.turns, 1):
        future = agent.submit(turn.prompt)
        while not _is_done(future):
            _show_progress(screen, file, number)
        reply = future.result()
        line = progress_line(course_of(read_session(file)), number, draws=screen.draws)
        if screen.live and model is None and number < len(script.turns):
            screen.update([line])
        else:
            screen.lines([line])
        if model is not None:
            screen.quote(reply.text)
    recording = read_session(file)
    course = course_of(recording)
    without, archived = session_cost(recording, home / "bill", ReplayPricing(items=0))
    session = PlayedSession(course, without, archived, _save(svg_chart(course.without, course.archived)))
    show_session(screen, session)
    return session


def show_session(screen: DemoScreen, session: PlayedSession) -> None:
    """Show the totals and the chart."""
    course = session.course
    screen.lines(["", *_totals(session), ""])
    screen.lines(text_chart(course.without, course.archived, width=screen.width - 4, drawn=screen.draws))
    screen.say("The same chart as a picture:")
    screen.uncut(session.svg)


def _is_done(future: Future[Reply]) -> bool:
    try:
        future.exception(REFRESH_SECONDS)
    except TimeoutError:
        return False
    return True


def _show_progress(screen: DemoScreen, file: Path, question: int) -> None:
    if screen.live:
        try:
            screen.update([progress_line(course_of(read_session(file)), question, draws=screen.draws)])
        except OrchError:
            pass  # the worker is writing its first line


def progress_line(course: Course, question: int, *, draws: bool) -> str:
    """Return the size of the conversation at the latest step, in figures and as a bar."""
    without, archived = (course.without or (0,))[-1], (course.archived or (0,))[-1]
    full, missing = (WITH, WITHOUT) if draws else (PLAIN_WITH, PLAIN_WITHOUT)
    kept = -(-archived // TOKENS_PER_CELL)
    bar = full * kept + missing * (-(-without // TOKENS_PER_CELL) - kept)
    tokens = f"{without:6,} tokens without archives, {archived:6,} with"
    return f"question {question}, step {len(course.archived):2}: {tokens}  {bar}"


def _totals(session: PlayedSession) -> list[str]:
    course = session.course
    share = 100 * course.sent / max(course.sent_without, 1)
    cost = 100 * session.usd / session.usd_without if session.usd_without else 100.0
    return [
        f"{'':26}{'without archives':>18}{'with archives':>16}",
        f"{'tokens sent to the model':26}{course.sent_without:>18,}{course.sent:>16,}   {share:.0f} %",
        f"{'cost in dollars':26}{session.usd_without:>18.2f}{session.usd:>16.2f}   {cost:.0f} %",
        "(computed: $3 per million new tokens, a tenth for repeated ones)",
    ]


def _save(svg: str) -> str:
    descriptor, name = tempfile.mkstemp(prefix="orch-demo-", suffix=".svg")
    with open(descriptor, "w") as file:
        file.write(svg)
    return name
