"""`o.sessions`: session files, read, labelled, copied, imported, exported and deleted.

A session is named by an agent of the run (number, id, unique prefix, name), by the agent id of any session below
`ORCH_HOME`, or by the path of a session folder or its `session.jsonl`. No process is started for any of these calls.
"""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.core.errors import AgentNotFoundError
from orch_protocol.core.messages import Message
from orch_protocol.policy.budget import Budget
from orch_protocol.services.import_export import IMPORT_SESSION, ImportSession
from orch_protocol.services.requests import SHOW_STATE, AgentRef, AgentRow
from orch_protocol.services.sessions import CHANGE_SESSION, FORK_SESSION, PRUNE_SESSIONS, SHOW_SESSION
from orch_protocol.session.tree import (
    ChangeSession,
    ForkSession,
    PrunedSessions,
    PruneSessions,
    SessionTree,
    SetLabel,
    ShowSession,
)
from orch_worker.session.transcript import NAME

from ..config import paths
from ..policy.budget_rules import budget_of
from ..policy.caller import USER
from ..services import call
from ..sessions import stored
from ..sessions.export import export_conversation
from .agent import AsyncSubagent
from .agent_session import entry_text
from .arguments import ScriptedBackendLike, as_names, script_responses, validate_request

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
        """Return every session below `ORCH_HOME` (or `session_dir`), of any run, last modified first."""
        root = self._orchestrator.supervisor
        return await root.disk.do(stored.list_sessions, root.sessions)

    async def open(self, session: SessionRef, *, limit: int | None = None) -> SessionTree:
        """Return a session as a tree of entries, or only with its last `limit` entries.

        Raises AgentNotFoundError, AmbiguousRefError, ConfigError, ForeignFileError, StoreError.
        """
        found = await self._find(session)
        if isinstance(found, Path):
            return await self._orchestrator.supervisor.disk.do(stored.read_tree, found, limit)
        return await self._call(SHOW_SESSION, ShowSession(found, limit))

    async def read(self, session: SessionRef, entry: str | int | None = None) -> builtins.list[Message]:
        """Return the messages of the conversation up to an entry or turn (None: all). Archived messages are included.

        Raises EntryNotFoundError, and what `open` raises.
        """
        found = await self._find(session)
        folder = found if isinstance(found, Path) else Path((await self._row(found)).folder)
        return await self._orchestrator.supervisor.disk.do(stored.read_messages, folder, entry_text(entry))

    async def label(self, session: SessionRef, entry: str | int, label: str | None) -> None:
        """Give an entry a label, by which it can be found later; None removes it.

        Raises AgentBusyError while a turn of its agent runs, LockedError when another process has the session open,
        EntryNotFoundError, ConfigError when the label is taken, and what `open` raises.
        """
        found, named = await self._find(session), entry_text(entry) or ""
        if isinstance(found, Path):
            await self._orchestrator.supervisor.disk.do(stored.label_entry, found, named, label)
        else:
            await self._call(CHANGE_SESSION, ChangeSession(found, SetLabel(named, label)))

    async def fork(
        self,
        session: SessionRef,
        entry: str | int | None = None,
        *,
        all: bool = False,
        name: str | None = None,
        model: str | None = None,
    ) -> AsyncSubagent:
        """Return a new agent with a copy of a session: the path to an entry or turn, or with `all` every branch.

        The copy continues after `entry` (None: where the session continues). It has no process until its first query.
        A copy of a session of this run has the rights of its agent; any other has those of a new agent with the
        default preset. Raises EntryNotFoundError, SpawnError, and what `open` raises.
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
        backend: ScriptedBackendLike | None = None,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        max_cost: float | None = None,
        budget: Budget | None = None,
    ) -> AsyncSubagent:
        """Return a new agent that continues the conversation in a file: a session of orch or pi, a transcript of a
        coding assistant, or a list of messages.

        The file is not changed. `which` (from 1) is required when it holds several conversations. With `repair` damaged
        lines are skipped and listed in the agent's `state().repaired`; otherwise they are an error. `cwd` defaults to
        the one in the file if it exists. The other arguments are those of `spawn`. The agent has no process until its
        first query. Raises ForeignFileError, DamagedError, StoreError, ConfigError, SpawnError.
        """
        script, summaries = script_responses(backend)
        agent = {
            "preset": preset,
            "tools": as_names("tools", tools),
            "model": model,
            "script": script,
            "summaries": summaries,
            "name": name,
            "cwd": paths.path_of("cwd", cwd),
            "limits": limits,
            "budget": budget_of(max_cost, budget),
        }
        request = ImportSession(paths.path_of("path", path) or "", str(paths.current_folder()), which, repair, agent)
        imported = await call(self._orchestrator.supervisor, USER, IMPORT_SESSION, validate_request(request))
        return AsyncSubagent(self._orchestrator, imported.id)

    async def export(self, ref: str | int, *, format: str = "pi", output: str | os.PathLike[str] | None = None) -> str:
        """Return the whole conversation of agent `ref`, archived turns included.

        `format` is `pi`, `md` or `html` (a page), `jsonl` (the session file), or a model API's message format; see
        `orch.sessions.export.CHOICES`. With `output` the text is also written to that file, atomically. Raises
        ConfigError, StoreError, AgentError.
        """
        return await self._orchestrator.supervisor.disk.do(
            export_conversation, await self._row(str(ref)), format, output
        )

    async def prune(
        self, *, older: float | str, keep: int = 0, idle: bool = False, dry_run: bool = False
    ) -> PrunedSessions:
        """Delete sessions of killed and failed agents permanently if they are older than `older`.

        `older` is a number of seconds or a duration such as "30d", counted from the last activity. The `keep` most
        recently active ones are kept, and so is every agent with a descendant that is not finished. With `idle`, agents
        without a process that had nothing to do for that long are killed and deleted too. With `dry_run` nothing is
        deleted; the result says what would be. Deleted agents keep their number and usage; using one raises
        SessionDeletedError. Raises ConfigError, StoreError.
        """
        return await self._call(PRUNE_SESSIONS, PruneSessions(older, keep, dry_run, idle))

    async def _row(self, ref: str) -> AgentRow:
        return await self._call(SHOW_STATE, AgentRef(ref))

    async def _find(self, session: SessionRef) -> str | Path:
        """Return the reference of an agent of this run, or the folder of a session that no such agent has."""
        root = self._orchestrator.supervisor
        if isinstance(session, os.PathLike) or (isinstance(session, str) and os.sep in session):
            folder = await root.disk.do(stored.session_folder, os.fspath(session))
            node = root.tree.agents.get(folder.name)
            return folder if node is None or Path(node.spec.folder) != folder else node.spec.id
        try:
            return (await self._row(str(session))).id
        except AgentNotFoundError:
            return await root.disk.do(stored.find_session, root.sessions, str(session))
