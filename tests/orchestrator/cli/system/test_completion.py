"""Completions of command lines."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from argcomplete.finders import CompletionFinder

from orch.cli import VERBS, run
from orch.cli.system import completion
from orch.client.failure import CommandError
from orchestrator.daemon_double import ROW, Desk, opened


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon with the agents `valves`, `vents` and a deleted one, beside the run `report`."""
    made = opened(monkeypatch, tmp_path)
    monkeypatch.setattr(completion, "Connection", made)
    rows: list[dict[str, Any]] = [ROW | {"name": "valves", "id": "a7c0"}, ROW | {"name": "vents", "id": "b1c0"}]
    made.answers["list"] = [*rows, ROW | {"name": "vast", "deleted": "2026-01-01"}, ROW | {"kind": "holder"}]
    (tmp_path / "home" / "runs" / "report").mkdir(parents=True)
    Path("valves.txt").touch()
    return made


def completed(monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """Return the completions of the end of `line`, as the shell code asks for them."""
    for name, value in {"COMP_LINE": line, "COMP_POINT": str(len(line)), completion.VARIABLE: "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_ARGCOMPLETE_IFS", "\n")
    monkeypatch.setattr(CompletionFinder, "_init_debug_stream", lambda _: None)  # it would take a descriptor of pytest
    output = io.StringIO()
    with pytest.raises(SystemExit):
        completion.complete(VERBS, output=output, end=sys.exit)
    return [each.strip() for each in output.getvalue().split("\n") if each]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("orch sess", ["session"]),
        ("orch help vers", ["version"]),
        ("orch session sh", ["show"]),
        ("orch session meta ", ["set", "get"]),
        ("orch query ", ["valves", "vents", "latest"]),
        ("orch query v", ["valves", "vents"]),
        ("orch query a7", ["a7c0"]),
        ("orch kill valves ve", ["vents"]),
        ("orch archive search pump --in v", ["valves", "vents"]),
        ("orch query valves --no", ["--no-wait"]),
        ("orch query valves ", []),
        ("orch query valves hi --approve a", ["ask", "auto"]),
        ("orch query valves hi --image v", ["valves.txt"]),
        ("orch query valves hi --return-name v", []),
        ("orch list --run re", ["report"]),
        ("orch completion ", ["bash", "zsh", "fish"]),
    ],
)
@pytest.mark.usefixtures("desk")
def test_words_are_completed(monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]) -> None:
    """Verbs, options, choices, agents, runs and files are completed. Texts are not."""
    assert completed(monkeypatch, line) == expected


def test_agents_of_a_run_are_completed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--run`, the agents are those of that run."""
    assert completed(monkeypatch, "orch show --run report v") == ["valves", "vents"]
    assert desk.runs == ["report"]


def test_completion_without_a_daemon_has_no_agents(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Tab starts no daemon and prints no error."""
    desk.answers["list"] = CommandError("DaemonNotRunning", "no daemon is running")
    assert completed(monkeypatch, "orch query ") == []


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.usefixtures("desk")
def test_options_of_every_verb_are_completed(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """The options of each verb, or of the first verb below it, contain `--json`."""
    words = f"orch {verb} "
    while "--json" not in (found := completed(monkeypatch, f"{words}--")):
        assert found == ["--help"]
        words += f"{next(word for word in completed(monkeypatch, words) if word[0] != '-')} "


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_code_for_each_shell_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The code calls `orch` with the variable that `complete` expects."""
    assert run(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "orch" in code
    assert completion.VARIABLE in code
    assert run(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["code"].strip() == code.strip()


def test_variable_is_that_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """`orch` completes and ends when the variable is set."""
    monkeypatch.setattr("orch.cli.system.completion.complete", lambda verbs: sys.exit(len(verbs)))
    monkeypatch.setenv(completion.VARIABLE, "1")
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == len(VERBS)
    assert os.environ[completion.VARIABLE] == "1"
