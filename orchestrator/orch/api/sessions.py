"""`o.sessions` reads, labels, copies, imports, exports and deletes session files.

A session is identified by an agent of the run (number, id, unique prefix, name), by the agent id of any session below
`ORCH_HOME`, or by the path of a session folder or its `session.jsonl`. No method of `o.sessions` starts a process.
"""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.core.errors import AgentNotFoundError, ConfigError
from orch_protocol.core.messages import Message
from orch_protocol.policy.budget import Budget
from orch_protocol.services.agents.status import SHOW_STATE, AgentRow
from orch_protocol.services.service import AgentRef
from orch_protocol.services.sessions.deletion import FORGET_SESSION, ForgetSession, ForgottenSessions
from orch_protocol.services.sessions.fork import FORK_SESSION, ForkSession
from orch_protocol.services.sessions.import_session import IMPORT_SESSION, ImportSession
from orch_protocol.services.sessions.retention import PRUNE_SESSIONS, PrunedSessions, PruneSessions
from orch_protocol.services.sessions.sessions import (
    CHANGE_SESSION,
    SHOW_SESSION,
    ChangeSession,
    SessionTree,
    ShowSession,
)
from orch_protocol.session.tree import SetLabel
from orch_worker.session.session_reader import NAME

from ..config import paths
from ..policy.budget_rules import budget_of
from ..policy.caller import USER
from ..services import call
from ..sessions import stored
from ..sessions.export import export_conversation
from .agent import AsyncSubagent
from .agent_session import entry_text
from .arguments import BackendLike, as_names, validate_request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orch_protocol.agent.spec import Limits

    from .orchestrator import AsyncOrchestrator

__all__ = ["AsyncSessions", "SessionRef"]

SessionRef = str | int | os.PathLike[str]
"""A session: an agent of the run, an agent id below `ORCH_HOME`, or the path of a session folder or file."""


class AsyncSessions:
    """Sessions on disk. An `entry` is an entry or a turn number; see `orch.api.agent_session`."""

    def __init__(self, orchestrator: AsyncOrchestrator) -> None:
        self._orchestrator = orchestrator
        self._call = orchestrator._call

    async def list(self) -> builtins.list[stored.StoredSession]:
        """Return every session below `ORCH_HOME` (or `session_dir`) of every run, last modified first."""
        root = self._orchestrator.supervisor
        return await root.disk.do(stored.list_sessions, root.sessions)

    async def open(self, session: SessionRef, *, limit: int | None = None) -> SessionTree:
        """Return a session as a tree of entries. With `limit`, the tree contains only the last `limit` entries.

        Raises AgentNotFoundError, AmbiguousRefError, ConfigError, ForeignFileError, StoreError.
        """
        found = await self._find(session)
        if isinstance(found, Path):
            return await self._orchestrator.supervisor.disk.do(stored.read_tree, found, limit)
        return await self._call(SHOW_SESSION, ShowSession(found, limit))

    async def read(self, session: SessionRef, entry: str | int | None = None) -> builtins.list[Message]:
        """Return the messages of the conversation, including archived messages.

        `entry` is the last entry or turn to return; None returns the whole conversation. Raises EntryNotFoundError, and
        the errors of `open`.
        """
        found = await self._find(session)
        folder = found if isinstance(found, Path) else Path((await self._row(found)).folder)
        return await self._orchestrator.supervisor.disk.do(stored.read_messages, folder, entry_text(entry))

    async def label(self, session: SessionRef, entry: str | int, label: str | None) -> None:
        """Set the label of an entry. The label can then be used to identify the entry. None removes the label.

        Raises AgentBusyError while a turn of the session's agent runs. Raises LockedError when another process has the
        session open. Raises ConfigError when another entry has the label. Raises EntryNotFoundError, and the errors of
        `open`.
        """
        found, entry_ref = await self._find(session), entry_text(entry) or ""
        if isinstance(found, Path):
            await self._orchestrator.supervisor.disk.do(stored.label_entry, found, entry_ref, label)
        else:
            await self._call(CHANGE_SESSION, ChangeSession(found, SetLabel(entry_ref, label)))

    async def fork(
        self,
        session: SessionRef,
        entry: str | int | None = None,
        *,
        all: bool = False,
        name: str | None = None,
        model: str | None = None,
    ) -> AsyncSubagent:
        """Return a new agent with a copy of a session up to an entry or turn. With `all` the copy has every branch.

        The copy continues after `entry`. If `entry` is None, the copy continues at the current entry of the session.
        The agent has no process until its first query. If the session belongs to this run, the new agent has the rights
        of the session's agent. Otherwise the new agent has the rights of a new agent with the default preset. Raises
        EntryNotFoundError, SpawnError, and the errors of `open`.
        """
        found, at = await self._find(session), entry_text(entry)
        if isinstance(found, Path):
            agent = {"name": name, "model": model}
            request = ImportSession(str(found / NAME), str(paths.current_folder()), agent=agent, at=at, all=all)
            imported = await call(self._orchestrator.supervisor, USER, IMPORT_SESSION, validate_request(request))
            return AsyncSubagent(self._orchestrator, imported.id)
        forked = await self._call(FORK_SESSION, ForkSession(found, at, name, model, all))
        return AsyncSubagent(self._orchestrator, forked.id)

    async def import_(
        self,
        path: str | os.PathLike[str],
        *,
        which: int | None = None,
        repair: bool = False,
        preset: str | None = None,
        tools: Iterable[str] | None = None,
        model: str | None = None,
        backend: BackendLike | None = None,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        max_cost: float | None = None,
        budget: Budget | None = None,
    ) -> AsyncSubagent:
        """Return a new agent that continues the conversation in a file.

        The file is a session of orch or pi, a transcript of a coding assistant, or a list of messages. The file is not
        changed. If the file contains several conversations, `which` selects a conversation by number, counted from 1.
        With `repair`, damaged lines are skipped and listed in the agent's `state().repaired`; otherwise damaged lines
        are an error. `cwd` defaults to the folder that the file names, if this folder exists. The other arguments are
        those of `spawn`. The agent has no process until its first query. Raises ForeignFileError, DamagedError,
        StoreError, ConfigError, SpawnError.
        """
        backend_arguments = self._orchestrator.lent_backends.arguments(model, backend)
        agent = {
            "preset": preset,
            "tools": as_names("tools", tools),
            "model": backend_arguments.model,
            "script": backend_arguments.script,
            "summaries": backend_arguments.summaries,
            "name": name,
            "cwd": paths.checked_path("cwd", cwd),
            "limits": limits,
            "budget": budget_of(max_cost, budget),
        }
        request = ImportSession(
            paths.checked_path("path", path) or "", str(paths.current_folder()), which, repair, agent
        )
        imported = await call(self._orchestrator.supervisor, USER, IMPORT_SESSION, validate_request(request))
        return AsyncSubagent(self._orchestrator, imported.id)

    async def export(self, ref: str | int, *, format: str = "pi", output: str | os.PathLike[str] | None = None) -> str:
        """Return the whole conversation of agent `ref`, including archived turns.

        `format` is `pi`, `md`, `html` (a page), `jsonl` (the session file), or the message format of a model API; see
        `orch.sessions.export.CHOICES`. With `output` the text is also written to that file, atomically. Raises
        ConfigError, StoreError, AgentError.
        """
        return await self._orchestrator.supervisor.disk.do(
            export_conversation, await self._row(str(ref)), format, output
        )

    async def forget(self, session: SessionRef, *, dry_run: bool = False) -> ForgottenSessions:
        """Permanently delete a session and the sessions of all descendants of its agent.

        Transcripts, archives, search indexes and stored values are deleted. Prompts and answers in the journal are
        deleted too. Idle agents are killed. Returns the deleted sessions. With `dry_run` nothing is deleted. Sessions
        of other runs can be deleted while these runs are closed. The method does not delete copies (`fork`), exported
        files, and texts that other agents received. Deleted agents keep their number, name and usage; using a deleted
        agent raises SessionDeletedError.

        Raises AgentBusyError when one of the agents is busy; in this case nothing was deleted. Raises
        AgentNotFoundError, AmbiguousRefError, ConfigError, SessionDeletedError, StoreError.
        """
        found, sessions = await self._find(session), self._orchestrator.supervisor.sessions
        if isinstance(found, Path):
            if found.parent != sessions:
                raise ConfigError(f"session {found} is not below {sessions}: delete its folder yourself")
            found = found.name
        return await self._call(FORGET_SESSION, ForgetSession(found, dry_run))

    async def prune(
        self, *, older: float | str, keep: int = 0, idle: bool = False, dry_run: bool = False
    ) -> PrunedSessions:
        """Permanently delete sessions of killed and failed agents that are older than `older`.

        `older` is a number of seconds or a duration such as "30d", counted from the last activity. The `keep` most
        recently active sessions are kept. An agent with an unfinished descendant keeps its session. With `idle`, agents
        that were idle without a process for the time `older` are also killed and deleted. With `dry_run` nothing is
        deleted, and the result lists what would be deleted. Deleted agents keep their number and usage; using a deleted
        agent raises SessionDeletedError. Raises ConfigError, StoreError.
        """
        return await self._call(PRUNE_SESSIONS, PruneSessions(older, keep, dry_run, idle))

    async def _row(self, ref: str) -> AgentRow:
        return await self._call(SHOW_STATE, AgentRef(ref))

    async def _find(self, session: SessionRef) -> str | Path:
        """Return the reference of an agent of this run, or the folder of a session outside this run."""
        root = self._orchestrator.supervisor
        if isinstance(session, os.PathLike) or (isinstance(session, str) and os.sep in session):
            folder = await root.disk.do(stored.session_folder, os.fspath(session))
            node = root.tree.agents.get(folder.name)
            return folder if node is None or Path(node.spec.folder) != folder else node.spec.id
        try:
            return (await self._row(str(session))).id
        except AgentNotFoundError:
            return await root.disk.do(stored.find_session, root.sessions, str(session))
