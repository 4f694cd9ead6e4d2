"""Ctrl-C while somebody waits for an agent: once, and again."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from orch.cli import run
from orch.cli.agents import query
from orch.cli.scratch import scratch
from orch.client.failure import CommandError
from orchestrator.daemon_double import ROW, Desk, opened

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon, an empty home and a clean environment."""
    return opened(monkeypatch, tmp_path)


class Twice:
    """A terminal where Ctrl-C is pressed, and perhaps again while the command waits for that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
        self.slept: list[float] = []
        self.again = again
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setattr(query.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.again:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("argv", [["query", "n", "p"], ["collect", "n"], ["run", "t", "--keep", "--model", "a:b"]])
@pytest.mark.parametrize(
    ("pending", "said"),
    [("why?", "what agent {} did was cancelled. What it had by then: orch collect {}"), (None, "was done already")],
)
def test_a_second_ctrl_c_cancels(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, argv: list[str], pending: str | None, said: str
) -> None:
    """Within two seconds, at a terminal; the first one says so."""
    terminal = Twice(monkeypatch, again=True)
    desk.answers["query"] = desk.answers["collect"] = KeyboardInterrupt()
    desk.answers["cancel"] = ROW | {"pending": pending}
    ref = "abc" if argv[0] == "run" else "n"
    assert run(argv) == 130
    assert terminal.slept == [2.0]
    assert desk.asked[-1] == ("cancel", {"ref": ref})
    err = capsys.readouterr().err
    assert f"\norch: agent {ref} works on; Ctrl-C again within 2 s cancels what it does\n" in err
    assert said.format(ref, ref) in err


def test_a_second_ctrl_c_that_does_not_come(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the agent works on."""
    Twice(monkeypatch, again=False)
    desk.answers["query"] = KeyboardInterrupt()
    assert run(["query", "n", "p"]) == 130
    assert [method for method, _ in desk.asked] == ["query"]
    assert "stopped waiting; agent n works on" in capsys.readouterr().err


def test_a_cancel_that_fails_is_told(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """With why."""
    Twice(monkeypatch, again=True)
    desk.answers["query"] = KeyboardInterrupt()
    desk.answers["cancel"] = CommandError("DaemonGone", "the daemon ended")
    assert run(["query", "n", "p"]) == 130
    assert "agent n could not be cancelled: the daemon ended" in capsys.readouterr().err


def test_ctrl_c_while_an_agent_is_ended_does_not_keep_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """`orch run` ends its agent however often Ctrl-C is pressed."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def call(method: str, *given: Any, **more: Any) -> Any:
        answer = asked(method, *given, **more)
        if method in ("query", "kill"):
            signal.raise_signal(signal.SIGINT)
        killed.append(method)
        return answer

    killed: list[str] = []
    asked = desk.call
    monkeypatch.setattr(desk, "call", call)
    assert run(["run", "t", "--model", "a:b"]) == 130
    assert killed == ["spawn", "kill"]


def test_ctrl_c_again_and_again_leaves_no_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command made for itself alone is gone with it, however often Ctrl-C is pressed meanwhile."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))

    def hurried(folder: Path, **_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        removed(folder)

    removed = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", hurried)
    with pytest.raises(KeyboardInterrupt), scratch():
        signal.raise_signal(signal.SIGINT)
    assert list(tmp_path.iterdir()) == []
