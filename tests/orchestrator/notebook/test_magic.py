"""What is said behind `%orch`: a prompt or a command; and who answers when nobody waits any more."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.notebook import session as sessions
from orch.notebook.session import NotebookSession
from orch_protocol.approval import Consent, Question
from orch_protocol.errors import AgentGoneError
from orch_protocol.slash import Executed
from orchestrator.console.test_chat import question

pytest.importorskip("IPython")

from orch.notebook.line import Line
from orch.notebook.magic import OrchMagics


class Desk:
    """Stands where a session would, and its agent."""

    note = ""

    def __init__(self) -> None:
        self.agent = self
        self.said: list[tuple[str, str]] = []

    def run(self, prompt: str, _: Any) -> str:
        """Take note of what was asked."""
        self.said.append(("asked", prompt))
        return "reply"

    def execute(self, line: str) -> Executed:
        """Take note of what was executed."""
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
def test_a_line_is_read_as_everywhere(typed: str, done: tuple[str, str]) -> None:
    """The path of a file is a prompt, and two slashes begin one with one."""
    magics = OrchMagics.__new__(OrchMagics)
    magics._session = desk = Desk()  # type: ignore[assignment]
    magics._names, magics._approve = {}, "ask"
    magics._obey(Line(typed), "")
    assert desk.said == [done]


def test_a_question_that_nobody_waits_for_any_more_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C while it was on the screen: its thread does not wait for ever."""
    monkeypatch.setattr(sessions, "LOOK_SECONDS", 0.001)
    session = NotebookSession({}, "pumps", lambda _: Consent(True))
    session._inbox = inbox = queue.SimpleQueue()
    said: list[Consent] = []
    asked = msgspec.convert(question(), Question)
    thread = threading.Thread(target=lambda: said.append(session._approve(asked)), daemon=True)
    thread.start()
    inbox.get(timeout=20)
    session._inbox = None
    thread.join(20)
    assert said == [Consent(False)]


def test_who_interrupts_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the agent cannot be cancelled any more: a cell that was stopped never looks finished or broken."""

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
        session.run("go", lambda _: None)
