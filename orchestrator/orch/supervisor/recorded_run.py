"""Another run of the same home, read from its files. The run may belong to a running program, or have ended.

Services that only read journals and session files work on the result. It has no processes and writes nothing to the
journal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.agent.spec import Template
from orch_protocol.core.errors import ConfigError, EntryNotFoundError, LaunchError
from orch_protocol.wire.worker_messages import RootCall

from ..config import paths
from ..policy.approvals import ApprovalBroker
from ..policy.root_hooks import RootHooks
from ..processes.base import LaunchRequest, WorkerProcess
from ..processes.router import ConnectionTable, Deliver
from ..tree.journal.journal import JOURNAL, Journal, JournalCopy
from .recovery.crash_recovery import recovery
from .watchers import Watchers

if TYPE_CHECKING:
    from msgspec import Raw

    from .supervisor import Supervisor

__all__ = ["journal_of_run", "recorded_run", "refusal_of_run"]


def journal_of_run(runs: Path, run: str) -> Path:
    """Return the journal of the run named `run` in the folder `runs`. Raises EntryNotFoundError."""
    journal = runs / run / JOURNAL
    if Path(run).name == run and journal.is_file():
        return journal
    similar = get_close_matches(run, [each.parent.name for each in runs.glob(f"*/{JOURNAL}")], n=1)
    hint = f"did you mean {similar[0]!r}? " if similar else ""
    raise EntryNotFoundError(f"no run named {run!r}: {hint}`orch runs` lists the runs")


def refusal_of_run(folder: Path, service: str) -> ConfigError:
    """Return the error for a service that needs the program of the run in `folder`."""
    run = folder.name
    if (pid := paths.lock_owner(folder)) is not None:
        why = f"its agents belong to a running program, process {pid}, and only this program can do that"
    else:
        why = f"its program has ended; a program continues its agents with Orchestrator(run={run!r})"
    return ConfigError(
        f"{service!r} is not possible in run {run!r}: {why}. `list`, `show`, `events`, `session`, `archive`, "
        "`workspace` and `costs` can read it"
    )


@asynccontextmanager
async def recorded_run(root: Supervisor, run: str) -> AsyncIterator[Supervisor]:
    """Yield a supervisor with the agents of the run `run`, as its journal shows them.

    `root` is a root of the same home. Raises EntryNotFoundError, ForeignFileError, StoreError.
    """
    from .supervisor import Supervisor

    journal_path = journal_of_run(root.run_events.path.parent.parent, run)
    folder, home = journal_path.parent, root.hooks.home
    journal: Journal = await root.disk.do(JournalCopy.read, journal_path)
    recorded = Supervisor(
        config=root.config,
        journal=journal,
        launcher=_NoProcesses(),
        connect=partial(_NoConnections, folder),
        serve=_refuse,
        sessions=root.sessions,
        logs=folder,
        catalog=root.catalog_for(None),
        approvals=ApprovalBroker(home),
        watchers=Watchers(),
        hooks=RootHooks(home, run),
    )
    try:
        if not paths.is_in_use(folder):  # the journal still lists the processes that ended together with the program
            found = await root.disk.do(recovery, list(recorded.tree.agents.pending.values()))
            recorded.tree.apply(recorded.tree.decide(found, recorded.clock()).entries)
        yield recorded
    finally:
        await recorded.close()


class _NoProcesses:
    """A launcher that starts nothing."""

    def __init__(self) -> None:
        self.environment: Sequence[str] = ()

    async def start(self) -> None:
        pass

    def warm(self, template: Template) -> None:
        pass

    def mount_namespace_problem(self) -> str:
        return ""

    async def launch(self, request: LaunchRequest) -> WorkerProcess:
        raise LaunchError(f"agent {request.agent_id} belongs to another program: its process cannot be started here")

    async def stop(self) -> None:
        pass


class _NoConnections:
    """A transport without workers."""

    def __init__(self, folder: Path, deliver: Deliver) -> None:
        self.address = ""
        self.peers = ConnectionTable(folder / "spool", lambda *_: None, deliver)

    def close(self) -> None:
        pass


async def _refuse(_root: Supervisor, id: str, request: RootCall) -> Raw:
    raise LaunchError(f"no process of agent {id} runs here, so {request.service!r} cannot be called")
