"""Permanent deletion of sessions. A deletion is recorded in the journal first; then the files are removed.

Once the deletion is recorded, the agents refuse every query. When a root starts, it removes sessions from the disk
whose deletion was recorded but not finished.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.core.errors import AgentBusyError, AgentNotFoundError, OrchError, StoreError
from orch_protocol.services.sessions.deletion import FORGET_SESSION, ForgetSession, ForgottenSessions

from ...policy.caller import Caller
from ...sessions.deletion import deletion_preview, forget_stored_session, remove_files, sessions_below
from ...tree.agents.state import AgentRecord
from ...tree.interface import events
from ...tree.journal.entries import ContentDeleted
from ...tree.rules.deletions import redacted
from ..agents.worktrees import remove_worktrees
from ..checks.idle import AgentBusy, check_not_busy, holders_of, stop_processes
from ..dispatch.handlers import handles
from .sessions import session_of

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["discard", "finish_deletions", "forget_session"]


@handles(FORGET_SESSION)
async def forget_session(root: Supervisor, caller: Caller, params: ForgetSession) -> ForgottenSessions:
    """Delete the session of an agent and the sessions of its descendants.

    The agents are killed. If the call is canceled, the deletion continues in the background. If one of the agents has a
    query, raises AgentBusyError and deletes nothing. Also raises AgentNotFoundError, AmbiguousRefError, ConfigError,
    SessionDeletedError, StoreError.
    """
    try:
        top = session_of(root, caller, params.ref, "delete sessions of")
    except AgentNotFoundError:
        if not caller.is_user:
            raise
        run = root.run_events.path.parent
        return await root.disk.do(
            partial(forget_stored_session, root.sessions, run, params.ref, root.clock(), dry_run=params.dry_run)
        )
    return await root.steps.run(_forget(root, top, dry_run=params.dry_run))


async def _forget(root: Supervisor, top: AgentRecord, *, dry_run: bool) -> ForgottenSessions:
    async with root.holds.lock:
        nodes = sessions_below(root.tree.agents, top)
        forgotten = await root.disk.do(deletion_preview, nodes)
        try:
            if dry_run:
                check_not_busy(_with_holders(root, nodes))
            else:
                await _discard_tree(root, top, nodes)
        except AgentBusy as error:
            raise AgentBusyError(str(error)) from None
    return forgotten


async def _discard_tree(root: Supervisor, top: AgentRecord, nodes: Sequence[AgentRecord]) -> None:
    with root.holds.hold(*(node.spec.id for node in nodes)):
        await stop_processes(root, _with_holders(root, nodes), ())
        root.handle(events.KillRequested((top.spec.id,), "the user"))
        await discard(root, nodes)
    await finish_deletions(root)
    for node in nodes:
        if (folder := root.tree.agents.unremoved_folders.get(node.spec.id)) is not None:
            raise StoreError(
                f"session {node.spec.id} was deleted, but its folder {folder} is in use or cannot be removed: "
                "opening the run again removes it"
            )


def _with_holders(root: Supervisor, nodes: Sequence[AgentRecord]) -> list[AgentRecord]:
    return [*nodes, *(holder for node in nodes for holder in holders_of(root, node))]


async def discard(root: Supervisor, nodes: Sequence[AgentRecord]) -> None:
    """Record the deletion of the sessions of all `nodes`. If one cannot be recorded, none is recorded.

    The caller must have killed the agents and put them on hold. The processes of their holders are stopped. Raises
    AgentBusy, AgentBusyError, StoreError.
    """
    holders = [holder for node in nodes for holder in holders_of(root, node)]
    await stop_processes(root, holders, holders)
    root.handle(events.DiscardSessions(tuple(node.spec.id for node in nodes)))
    await remove_worktrees(root, [node.spec for node in nodes])
    for node in nodes:
        await root.archives.forget(node.spec)
        root.tools.pop(node.spec.id, None)
        root.executors.pop(node.spec.id, None)


async def finish_deletions(root: Supervisor) -> None:
    """Remove the files of all recorded deletions, including deletions by an earlier root. Raises StoreError.

    If a folder cannot be removed, the next call tries again.
    """
    nodes = root.tree.agents
    if not nodes.unremoved_folders:
        return
    await root.disk.rewrite(redacted)
    for id, folder in list(nodes.unremoved_folders.items()):
        with contextlib.suppress(OrchError):
            await root.disk.do(remove_files, Path(folder), root.workers.log(id))
            root.record(ContentDeleted(at=root.clock(), id=id, session="gone"))
