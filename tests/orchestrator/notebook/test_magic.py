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
from orch_protocol.core.errors import AgentGoneError
from orch_protocol.core.messages import Reply, Usage
from orch_protocol.policy.approval import Consent, Question
from orch_protocol.resources.slash_commands import Executed
from orch_protocol.wire.worker_messages import TurnEvent
from orchestrator.chat.test_app import question

pytest.importorskip("IPython")

from orch.notebook.magic import MagicLine, OrchMagics
from orch.notebook.view import Told, TurnView


class Desk:
    """Stands where a session would, and its agent."""

    note = ""

    def __init__(self) -> None:
        self.agent = self
        self.said: list[tuple[str, str]] = []

    def run(self, prompt: str, *_: Any) -> str:
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
    magics._names, magics._approve, magics._draws = {}, "ask", True
    magics._obey(MagicLine(typed), "")
    assert desk.said == [done]


def test_where_nothing_can_be_replaced_each_line_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """As in IPython at a terminal: text as it comes, a line a call and a result, and at the end what it took."""
    told = Told()
    events = [
        ("text", "Let me"),
        ("text", " see."),
        ("message", "Let me see."),
        ("tool_call", "{}"),
        ("tool_result", "3"),
    ]
    for n, (kind, text) in enumerate(events, start=1):
        told.event(TurnEvent(n, kind, text, "bash", step=1))  # type: ignore[arg-type]
        told.below([])
    told.reply(Reply("abc", "q", "Three.", usage=Usage(1000, 5), tool_calls=1, steps=2, warning="mended"))
    out, err = capsys.readouterr()
    assert out == "Let me see.\nThree.\n"
    assert err.splitlines() == ["-> bash {}", "<- bash 3", "[mended]", "[1 tool call, 1,005 tokens]"]
    told.failed("it has died")
    assert capsys.readouterr().err == "[it has died]\n"


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
        session.run("go", TurnView(), lambda: None)


@pytest.mark.parametrize(
    "error", [AgentGoneError("it was killed"), KeyboardInterrupt()], ids=lambda each: type(each).__name__
)
def test_a_cell_shows_what_ended_it_and_not_where_in_here(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever interrupts, too, is shown no page of ours."""

    def fails(*_: Any) -> None:
        raise error

    magics = OrchMagics.__new__(OrchMagics)
    monkeypatch.setattr(OrchMagics, "_obey", fails)
    with pytest.raises(type(error)) as raised:
        magics.orch("go")
    [shown] = raised.value._render_traceback_()  # type: ignore[attr-defined]
    assert shown.startswith(type(error).__name__)
