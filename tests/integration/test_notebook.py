"""Notebooks, run without a front end, with real kernels: `%orch` and `%%orch`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.command_shell import SECONDS, Shell, ended
from source_tree import ROOT

pytest.importorskip("nbclient")

LOAD = "%load_ext orch.notebook"


def run(shell: Shell, *cells: str) -> dict[str, Any]:
    """Run the cells in one kernel, and return the output of each cell."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "run_notebook.py")],
        input=json.dumps(cells).encode(),
        capture_output=True,
        cwd=shell.folder,
        env=shell.env | {"IPYTHONDIR": str(shell.folder / "ipython"), "JUPYTER_PLATFORM_DIRS": "1"},
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def texts(cell: list[dict[str, Any]]) -> str:
    """Return the output of a cell as text."""
    return "".join(output["text"] + "\n" * (output["kind"] == "shown") for output in cell)


def blocks() -> list[tuple[str, str]]:
    """Return the cells of docs/start/notebook.md, each with the output on the page."""
    page = (ROOT / "docs" / "start" / "notebook.md").read_text()
    return re.findall(r"```ipython\n(.*?)```\n(?:\n```text\n(.*?)```)?", page, re.DOTALL)


def test_documentation_page_runs_as_a_notebook(shell: Shell) -> None:
    """Each cell prints the output that the page shows."""
    cells = blocks()
    assert len(cells) >= 5
    shown = run(shell, *(source for source, _ in cells))
    for (source, expected), outputs in zip(cells, shown["cells"], strict=True):
        wanted = ".*".join(re.escape(part) for part in expected.strip().split("..."))
        assert re.fullmatch(wanted, texts(outputs).strip(), re.DOTALL), (source, outputs)


INTERRUPTED = """
import _thread
from orch.notebook.view import TurnView
event = TurnView.event
def interrupting(view, happened):
    event(view, happened)
    if happened.kind == "tool_call":
        _thread.interrupt_main()
TurnView.event = interrupting
get_ipython().run_line_magic("orch", "--script script.json --approve auto Look")
"""


def test_interrupt_cancels_the_turn(shell: Shell) -> None:
    """The cell shows the text so far and the cancellation, and the next question is answered."""
    shell.script({"text": "Let me see.", "tool": "bash", "input": {"command": "sleep 60"}}, "Here I am.")
    shown = run(shell, LOAD, INTERRUPTED, "%orch And now?")["cells"]
    assert "Let me see." in texts(shown[1])
    assert "the turn ended early: cancelled" in texts(shown[1])
    assert "KeyboardInterrupt" in texts(shown[1])
    assert "Here I am." in texts(shown[2])


def test_killed_kernel_loses_no_conversation(shell: Shell) -> None:
    """The processes of the kernel end, and the reopened notebook continues the conversation."""
    die = {"text": "Let me try.", "tool": "run_python", "input": {"code": "import os; os.kill(os.getpid(), 9)"}}
    script = shell.script("I shall remember 4711.", die, "It was 4711.")
    first = run(shell, LOAD, f"%orch --script {script} --approve auto Remember 4711", "%orch Now die")
    assert first["died"]
    for pid in shell.ours():
        ended(pid)
    shown = run(shell, LOAD, "%orch What was it?", "print(_orch.text)")["cells"]
    assert "continuing the earlier conversation" in texts(shown[1])
    assert texts(shown[2]) == "It was 4711.\n"


def test_errors_are_shown_as_one_sentence(shell: Shell) -> None:
    """An error has no traceback. A call that cannot be approved is denied with a hint."""
    script = shell.script({"tool": "run_python", "input": {"code": "1"}}, "No.")
    shown = run(shell, LOAD, "%orch --nope", f"%orch --script {script} Try")["cells"]
    (error,) = shown[1]
    assert error["lines"] == [error["text"]]
    assert "no option --nope" in error["text"]
    assert "--approve auto to allow calls" in texts(shown[2])


def test_failed_replacement_keeps_the_agent_and_its_names(shell: Shell) -> None:
    """An unknown model does not replace the agent. A valid option replaces it, also repeatedly."""
    set_x = {"tool": "run_python", "input": {"code": "x = 4711"}}
    script = shell.script(set_x, "I remember 4711.", {"tool": "run_python", "input": {"code": "x"}}, "It was 4711.")
    shown = run(
        shell,
        LOAD,
        f"%orch --script {script} --approve auto Remember 4711",
        "%orch --model nowhere:model Hello",
        "%orch What was it?",
        f"%orch --script {script} Remember 4711",
        f"%orch --script {script} Remember 4711",
        "%orch",
    )["cells"]
    assert "nowhere" in texts(shown[2])
    assert "It was 4711." in texts(shown[3])
    assert "continuing the earlier" not in texts(shown[3])
    assert ["I remember 4711." in texts(cell) for cell in shown[4:6]] == [True, True]
    _head, row, _task = texts(shown[6]).splitlines()
    assert "notebook" in row
