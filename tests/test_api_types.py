"""The types that mypy and editors see in the blocking API, which is derived from the asynchronous API, and
in services.
"""

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
    reveal_type(agent.merge)
    reveal_type(agent.session.tree())
    reveal_type(agent.session.checkout)
    reveal_type(agent.queue.list())
    o.spawn("work", nonsense=1)
    o.session(nonsense=1)
    agent.session.branch(None)
    @o.on("turn_end")
    def done(event: object, context: object) -> int: return 1
    reveal_type(done)
"""

SERVICES = """
from orch.policy.caller import Caller, USER
from orch.services import call
from orch.services.dispatch.handlers import handles
from orch.supervisor.supervisor import Supervisor
from orch_protocol.services.agents.lifecycle import KILL, Kill, Killed
from orch_protocol.services.agents.query import QUERY, QueryAgent
from orch_protocol.services.agents.status import LIST_AGENTS, ListAgents
from orch_worker.tools.api.root_client import RootClient

async def check(root: Supervisor, client: RootClient) -> None:
    reveal_type(await call(root, USER, KILL, Kill()))
    reveal_type(await call(root, USER, LIST_AGENTS, ListAgents()))
    reveal_type(await call(root, USER, QUERY, QueryAgent("a", "b")))
    reveal_type(await client.call_root(KILL, Kill()))
    await call(root, USER, KILL, ListAgents())

@handles(KILL)
async def kill(root: Supervisor, caller: Caller, params: ListAgents) -> Killed: raise KeyError
"""


def _check(source: str, file: Path) -> tuple[list[str], list[str]]:
    """Return the types that mypy reveals in `source`, and the errors of mypy."""
    file.write_text(source)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = [line.partition(" ")[2] for line in done.stdout.splitlines() if f"{file.name}:" in line.partition(" ")[0]]
    revealed = [re.sub(r"\b(?:\w+\.)+(\w)", r"\1", text[1]) for each in found if (text := re.search('is "(.*)"', each))]
    return revealed, [each.partition("error: ")[2] for each in found if "error: " in each]


@pytest.mark.timeout(600)
def test_calls_of_services_are_typed(tmp_path: Path) -> None:
    """A call has the result type of its service. Parameters and handlers of another service are type errors."""
    revealed, errors = _check(SERVICES, tmp_path / "checked_services.py")
    assert revealed == ["Killed", "list[AgentRow]", "Reply", "Killed"]
    assert [each.rpartition("[")[2] for each in errors] == ["misc]", "arg-type]"], errors


@pytest.mark.timeout(600)
def test_derived_methods_keep_signatures_and_results(tmp_path: Path) -> None:
    """Derived methods have the names and types of parameters, and the result types. Wrong arguments are errors."""
    # mypy's cache may report an earlier path of the file
    revealed, errors = _check(CHECKED, tmp_path / "checked_api.py")
    assert revealed == [
        "Subagent",
        "Session",
        "list[ArchiveRow]",
        "Subagent",
        "def (session: str | int | PathLike[str], entry: str | int | None =) -> list[Message]",
        "BudgetShown",
        "Reply",
        "int",
        "def (*, dry_run: bool =) -> Merged",
        "SessionTree",
        "def (entry: str | int | None, *, summary: str | None =, summarize: bool =)",
        "list[Queued]",
        "def (event: object, context: object) -> int",
    ]
    assert errors == [
        'Unexpected keyword argument "nonsense"  [call-arg]',
        'Unexpected keyword argument "nonsense"  [call-arg]',
        'Argument 1 has incompatible type "None"; expected "str | int"  [arg-type]',
    ]
