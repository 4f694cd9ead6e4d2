"""What mypy and editors know of the blocking API, whose methods are derived from the asynchronous one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from source_tree import ROOT

CHECKED = """
from orch import Orchestrator, Subagent

def check(o: Orchestrator, agent: Subagent) -> None:
    reveal_type(o.spawn("work"))
    reveal_type(o.session())
    reveal_type(o.archives.list())
    reveal_type(o.sessions.fork("a"))
    reveal_type(o.sessions.read)
    reveal_type(o.budget.show())
    reveal_type(agent.query("hi"))
    reveal_type(agent.query("hi", returns=int))
    reveal_type(agent.collect)
    reveal_type(agent.session.tree())
    reveal_type(agent.session.checkout)
    reveal_type(agent.queue.list())
    o.spawn("work", nonsense=1)
    agent.session.branch(None)
    @o.on("turn_end")
    def done(event: object, context: object) -> int: return 1
    reveal_type(done)
"""


@pytest.mark.timeout(600)
def test_derived_methods_keep_signatures_and_results(tmp_path: Path) -> None:
    """Parameters with their names and types, results, and errors for wrong arguments."""
    file = tmp_path / "checked_api.py"  # mypy's cache may report it by the path of an earlier run
    file.write_text(CHECKED)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = [line.partition(" ")[2] for line in done.stdout.splitlines() if "checked_api.py:" in line.partition(" ")[0]]
    revealed = [re.sub(r"\b(?:\w+\.)+(\w)", r"\1", text[1]) for each in found if (text := re.search('is "(.*)"', each))]
    assert revealed == [
        "Subagent",
        "Session",
        "list[ArchiveRow]",
        "Subagent",
        "def (session: str | int | PathLike[str], entry: str | int | None =) -> list[Message]",
        "BudgetShown",
        "Reply",
        "int",
        "def (*, timeout: float | None =, again: bool =, query: str =) -> Reply | None",
        "SessionTree",
        "def (entry: str | int | None, *, summary: str | None =, summarize: bool =)",
        "list[Queued]",
        "def (event: object, context: object) -> int",
    ]
    assert [each.partition("error: ")[2] for each in found if "error: " in each] == [
        'Unexpected keyword argument "nonsense"  [call-arg]',
        'Argument 1 has incompatible type "None"; expected "str | int"  [arg-type]',
    ]
