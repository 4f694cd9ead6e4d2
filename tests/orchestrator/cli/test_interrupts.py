"""Ctrl-C during commands that wait for an agent: pressed once or repeatedly."""

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
    """A terminal with Ctrl-C pressed again, if `again`, while the command waits for a second press."""

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
    ("pending", "expected"),
    [
        ("why?", "cancelled the turn of agent {}. Get its partial answer: orch collect {}"),
        (None, "had already finished"),
    ],
)
def test_second_ctrl_c_within_two_seconds_cancels(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, argv: list[str], pending: str | None, expected: str
) -> None:
    """The first Ctrl-C prints that a second one within two seconds cancels the turn."""
    terminal = Twice(monkeypatch, again=True)
    desk.answers["query"] = desk.answers["collect"] = KeyboardInterrupt()
    desk.answers["cancel"] = ROW | {"pending": pending}
    ref = "abc" if argv[0] == "run" else "n"
    assert run(argv) == 130
    assert terminal.slept == [2.0]
    assert desk.asked[-1] == ("cancel", {"ref": ref})
    err = capsys.readouterr().err
    assert f"\norch: agent {ref} continues; press Ctrl-C again within 2 s to cancel its turn\n" in err
    assert expected.format(ref, ref) in err


def test_single_ctrl_c_leaves_the_agent_running(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command stops waiting and sends no cancel request."""
    Twice(monkeypatch, again=False)
    desk.answers["query"] = KeyboardInterrupt()
    assert run(["query", "n", "p"]) == 130
    assert [method for method, _ in desk.asked] == ["query"]
    assert "stopped waiting; agent n continues" in capsys.readouterr().err


def test_failed_cancel_is_reported(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the reason."""
    Twice(monkeypatch, again=True)
    desk.answers["query"] = KeyboardInterrupt()
    desk.answers["cancel"] = CommandError("DaemonGone", "the daemon ended")
    assert run(["query", "n", "p"]) == 130
    assert "could not cancel agent n: the daemon ended" in capsys.readouterr().err


def test_repeated_ctrl_c_does_not_stop_run_from_ending_its_agent(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_repeated_ctrl_c_leaves_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the removal of the folder does not stop the removal."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))

    def hurried(folder: Path, **_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        removed(folder)

    removed = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", hurried)
    with pytest.raises(KeyboardInterrupt), scratch():
        signal.raise_signal(signal.SIGINT)
    assert list(tmp_path.iterdir()) == []
