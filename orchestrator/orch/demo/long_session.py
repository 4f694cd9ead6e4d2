"""The first part of the demo shows a long session, and the cost saved by archival."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import Reply
from orch_worker.backends.prices import dollars

from ..api.sync import Subagent
from ..replay.readers import Recording, read_recordings, scale_of
from ..replay.report import ReplayPricing, replay
from .bug_hunt import Script
from .chart import PLAIN_WITH, PLAIN_WITHOUT, WITH, WITHOUT, svg_chart, text_chart
from .screen import REFRESH_SECONDS, DemoScreen

__all__ = [
    "TOKENS_PER_CELL",
    "PlayedSession",
    "RequestSizes",
    "progress_line",
    "read_session",
    "request_sizes",
    "run_long_session",
    "session_cost",
    "show_session",
]

TOKENS_PER_CELL: Final = 3000
"""The number of tokens for each character of the progress bar."""
POLICIES: Final = ("none", "balanced")


class RequestSizes(Struct, frozen=True):
    """The number of tokens in context at each model call so far."""

    without: tuple[int, ...]
    archived: tuple[int, ...]

    @property
    def sent_without(self) -> int:
        """The total tokens of all requests without archival."""
        return sum(self.without)

    @property
    def sent(self) -> int:
        """The total tokens of all requests."""
        return sum(self.archived)


def read_session(file: Path) -> Recording:
    """Return the session recorded in `file`. A worker may still be writing the file."""
    (recording,) = read_recordings(file)
    return recording


def request_sizes(recording: Recording) -> RequestSizes:
    """Return the sizes of the requests. The backend reported the sizes with archival; the others are computed."""
    scale = scale_of(recording)
    without: list[int] = []
    archived: list[int] = []
    calls = set(recording.calls)
    full = scale.beside
    for place, each in enumerate(recording.messages):
        if place in calls:
            without.append(full)
            archived.append(each.input_tokens or full)
        full += scale.size(each.message)
    return RequestSizes(tuple(without), tuple(archived))


def session_cost(recording: Recording, folder: Path, terms: ReplayPricing) -> Sequence[float]:
    """Return the cost of the session in dollars, without archival and with archival. Prompt caching is included.

    `terms` contains the prices. The calculation creates archives in `folder`.
    """
    outcomes = [replay([recording], name, terms, folder) for name in POLICIES]
    return [dollars(outcome.units, terms.price.usd) for outcome in outcomes]


class PlayedSession(Struct, frozen=True):
    """The long session with its sizes, its cost in dollars, and the file with the chart."""

    sizes: RequestSizes
    usd_without: float
    usd: float
    svg: str


def run_long_session(
    screen: DemoScreen, agent: Subagent, script: Script, home: Path, model: str | None
) -> PlayedSession:
    """Ask the questions of the script one after another, and show the size of the conversation."""
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
        line = progress_line(request_sizes(read_session(file)), number, unicode=screen.unicode)
        if screen.live and model is None and number < len(script.turns):
            screen.update([line])
        else:
            screen.lines([line])
        if model is not None:
            screen.quote(reply.text)
    recording = read_session(file)
    sizes = request_sizes(recording)
    without, archived = session_cost(recording, home / "bill", ReplayPricing(items=0))
    session = PlayedSession(sizes, without, archived, _save(svg_chart(sizes.without, sizes.archived)))
    show_session(screen, session)
    return session


def show_session(screen: DemoScreen, session: PlayedSession) -> None:
    """Show the chart and the totals."""
    sizes = session.sizes
    screen.lines([""])
    screen.lines(text_chart(sizes.without, sizes.archived, width=screen.width - 4, unicode=screen.unicode))
    screen.say("The same chart as a picture:")
    screen.untruncated(session.svg)
    screen.say("The cost is computed: $3 per million new tokens, a tenth for repeated ones.")
    screen.figure(_totals(session))


def _is_done(future: Future[Reply]) -> bool:
    try:
        future.exception(REFRESH_SECONDS)
    except TimeoutError:
        return False
    return True


def _show_progress(screen: DemoScreen, file: Path, question: int) -> None:
    if screen.live:
        try:
            screen.update([progress_line(request_sizes(read_session(file)), question, unicode=screen.unicode)])
        except OrchError:
            pass  # the worker is writing its first line


def progress_line(sizes: RequestSizes, question: int, *, unicode: bool) -> str:
    """Return the size of the conversation at the latest step, in figures and as a bar."""
    without, archived = (sizes.without or (0,))[-1], (sizes.archived or (0,))[-1]
    full, missing = (WITH, WITHOUT) if unicode else (PLAIN_WITH, PLAIN_WITHOUT)
    kept = -(-archived // TOKENS_PER_CELL)
    bar = full * kept + missing * (-(-without // TOKENS_PER_CELL) - kept)
    tokens = f"{without:6,} tokens without archives, {archived:6,} with"
    return f"question {question}, step {len(sizes.archived):2}: {tokens}  {bar}"


def _totals(session: PlayedSession) -> str:
    sizes = session.sizes
    share = 100 * sizes.sent / max(sizes.sent_without, 1)
    cost = 100 * session.usd / session.usd_without if session.usd_without else 100.0
    return (
        f"{share:.0f} % of the tokens ({sizes.sent:,} of {sizes.sent_without:,}), {cost:.0f} % of the cost "
        f"(${session.usd:.2f} of ${session.usd_without:.2f})"
    )


def _save(svg: str) -> str:
    descriptor, name = tempfile.mkstemp(prefix="orch-demo-", suffix=".svg")
    with open(descriptor, "w") as file:
        file.write(svg)
    return name
