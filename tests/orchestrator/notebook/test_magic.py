"""`%orch` lines: prompts and commands, output in a terminal, interrupts and errors."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.notebook import session as sessions
from orch.notebook.session import NotebookSession
from orch_protocol.core.errors import AgentGoneError
from orch_protocol.core.messages import Reply, Usage
from orch_protocol.policy.approval import Consent, Question
from orch_protocol.services.resources.slash_commands import Executed
from orch_protocol.wire.worker_messages import TurnEvent
from orchestrator.chat.test_app import question

pytest.importorskip("IPython")

from orch.notebook.magic import MagicLine, OrchMagics
from orch.notebook.view import TerminalView, TurnView


class Desk:
    """A test double of a notebook session and its agent."""

    note = ""

    def __init__(self) -> None:
        self.agent = self
        self.said: list[tuple[str, str]] = []

    def run(self, prompt: str, *_: Any) -> str:
        """Record a prompt."""
        self.said.append(("asked", prompt))
        return "reply"

    def execute(self, line: str) -> Executed:
        """Record a command line."""
        self.said.append(("executed", line))
        return Executed("it")


@pytest.mark.parametrize(
    ("typed", "done"),
    [
        ("/context", ("executed", "/context")),
        ("!ls -- pumps", ("executed", "!ls -- pumps")),
        ("/srv/pumps/valves.csv: how many rows?", ("asked", "/srv/pumps/valves.csv: how many rows?")),
        ("//context is what?", ("asked", "/context is what?")),
        ("what is in df?", ("asked", "what is in df?")),
    ],
)
def test_line_is_parsed_like_in_every_front_end(typed: str, done: tuple[str, str]) -> None:
    """A file path is a prompt, and two slashes escape one slash."""
    magics = OrchMagics.__new__(OrchMagics)
    magics._session = desk = Desk()  # type: ignore[assignment]
    magics._names, magics._approve, magics._can_replace_output = {}, "ask", True
    magics._execute_line(MagicLine(typed), "")
    assert desk.said == [done]


def test_plain_terminal_prints_each_event_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Texts are printed to stdout; calls, results, warnings and usage are printed to stderr."""
    found = TerminalView()
    events = [
        ("text", "Let me"),
        ("text", " see."),
        ("message", "Let me see."),
        ("tool_call", "{}"),
        ("tool_result", "3"),
    ]
    for n, (kind, text) in enumerate(events, start=1):
        found.event(TurnEvent(n, kind, text, "bash", step=1))  # type: ignore[arg-type]
        found.subagents([])
    found.reply(Reply("abc", "q", "Three.", usage=Usage(1000, 5), tool_calls=1, steps=2, warning="mended"))
    out, err = capsys.readouterr()
    assert out == "Let me see.\nThree.\n"
    assert err.splitlines() == ["-> bash {}", "<- bash 3", "[mended]", "[1 tool call, 1,005 tokens]"]
    found.failed("it has died")
    assert capsys.readouterr().err == "[it has died]\n"


def test_interrupted_question_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that waits for the answer gets a denial when the cell has ended."""
    monkeypatch.setattr(sessions, "POLL_SECONDS", 0.001)
    session = NotebookSession({}, "pumps", lambda _: Consent(True))
    session._inbox = inbox = queue.SimpleQueue()
    collected: list[Consent] = []
    asked = msgspec.convert(question(), Question)
    thread = threading.Thread(target=lambda: collected.append(session._approve(asked)), daemon=True)
    thread.start()
    inbox.get(timeout=20)
    session._inbox = None
    thread.join(20)
    assert collected == [Consent(False)]


def test_interrupt_is_raised_even_when_the_cancel_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted cell must look neither finished nor broken, even if its agent was killed."""

    class Agent:
        def query(self, *_: Any, **__: Any) -> None:
            raise AgentGoneError("it was killed")

        cancel = query

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    session = NotebookSession({}, str(Path("pumps")), lambda _: Consent(True))
    session._agent = Agent()  # type: ignore[assignment]
    monkeypatch.setattr(session, "_watch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.run("go", TurnView(), lambda: None)


@pytest.mark.parametrize(
    "error", [AgentGoneError("it was killed"), KeyboardInterrupt()], ids=lambda each: type(each).__name__
)
def test_cell_error_hides_internal_frames(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython shows only the line with the error, also for KeyboardInterrupt."""

    def fails(*_: Any) -> None:
        raise error

    magics = OrchMagics.__new__(OrchMagics)
    monkeypatch.setattr(OrchMagics, "_execute_line", fails)
    with pytest.raises(type(error)) as raised:
        magics.orch("go")
    [shown] = raised.value._render_traceback_()  # type: ignore[attr-defined]
    assert shown.startswith(type(error).__name__)
