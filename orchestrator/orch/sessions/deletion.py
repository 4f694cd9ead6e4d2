"""Deletion of sessions on disk.

The functions remove session folders and logs. They also delete the sessions of ended runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from orch_protocol.agent.config import SubagentsConfig
from orch_protocol.core.errors import AgentBusyError, LockedError, OrchError
from orch_protocol.services.sessions.deletion import ForgottenSessions, PrunedSession
from orch_worker.session.log.lock import FolderLock
from orch_worker.system.files import io_error

from ..archival.store.deletion import bytes_in, remove_sessions
from ..archival.store.session_archives import SessionArchives
from ..tree.agents.state import AgentRecord, TreeState, iso_time
from ..tree.interface.events import DiscardSessions, Event, KillRequested, ProcessExited
from ..tree.journal.entries import ContentDeleted
from ..tree.journal.journal import JOURNAL, Journal, read_entries
from ..tree.rules.deletions import redacted
from ..tree.tree import Tree
from .stored import find_session

__all__ = ["deletion_preview", "deletion_row", "forget_stored_session", "remove_files", "sessions_below"]


def forget_stored_session(sessions: Path, run: Path, ref: str, now: float, *, dry_run: bool) -> ForgottenSessions:
    """Delete the session whose agent id is `ref` or starts with `ref`, and the sessions of the agents below this agent.

    The folder `sessions` contains the sessions. `run` is the folder of the open run, and the session must not belong to
    this run. `now` is epoch time. Raises AgentBusyError if the session belongs to another open run. Raises
    AgentNotFoundError, AmbiguousRefError, LockedError or StoreError.
    """
    folder = find_session(sessions, ref)
    if (other := _run_of(folder.name, run)) is not None:
        return _forget_in_run(other, folder.name, now, dry_run=dry_run)
    row = PrunedSession(folder.name, 0, "", "", iso_time(folder.stat().st_mtime), bytes_in(folder))
    forgotten = ForgottenSessions((row,), _count_archives(folder), row.bytes)
    if not dry_run:
        remove_files(folder)
    return forgotten


def _run_of(id: str, open_run: Path) -> Path | None:
    """Return the folder of the run that contains the agent `id`. Return None if there is no such run."""
    for journal in sorted(open_run.parent.glob(f"*/{JOURNAL}")):
        if journal.parent != open_run and id.encode() in journal.read_bytes():
            agent = TreeState(read_entries(journal)).get(id)
            if agent is not None and not agent.deleted:
                return journal.parent
    return None


def _forget_in_run(run: Path, id: str, now: float, *, dry_run: bool) -> ForgottenSessions:
    try:
        lock = FolderLock.acquire(run)
    except LockedError as error:
        raise AgentBusyError(f"session {id} belongs to the open run {run.name!r}: {error}") from None
    try:
        with closing(Journal.open(run / JOURNAL)) as journal:
            tree = Tree(SubagentsConfig(), journal.take_entries())
            nodes = sessions_below(tree.agents, tree.agents[id])
            forgotten = deletion_preview(nodes)
            if not dry_run:
                _discard(journal, tree, nodes, now)
                for each, folder in list(tree.agents.unremoved_folders.items()):
                    remove_files(Path(folder), run / "logs" / f"{each}.log")
                    journal.append([ContentDeleted(at=now, id=each, session="gone")])
            return forgotten
    finally:
        lock.release()


def _discard(journal: Journal, tree: Tree, nodes: Sequence[AgentRecord], now: float) -> None:
    _record(journal, tree, KillRequested((nodes[0].spec.id,), "the user"), now)
    for node in tree.agents.subtree(nodes[0].spec.id):
        if node.running:  # the run is closed, so the agent's process has ended too
            _record(journal, tree, ProcessExited(node.spec.id, node.incarnation, None), now)
    _record(journal, tree, DiscardSessions(tuple(node.spec.id for node in nodes)), now)
    journal.rewrite(redacted)


def _record(journal: Journal, tree: Tree, event: Event, now: float) -> None:
    entries = tree.decide(event, now).entries
    journal.append(entries)
    tree.apply(entries)


def sessions_below(agents: TreeState, top: AgentRecord) -> list[AgentRecord]:
    """Return `top` and the agents below `top`, parents first. Agents whose sessions were deleted are left out."""
    return [node for node in agents.subtree(top.spec.id)[::-1] if not node.is_holder and not node.deleted]


def deletion_preview(nodes: Sequence[AgentRecord]) -> ForgottenSessions:
    """Return the sessions that the deletion of `nodes` would delete."""
    rows = tuple(map(deletion_row, nodes))
    archives = sum(_count_archives(Path(node.spec.folder)) for node in nodes)
    return ForgottenSessions(rows, archives, sum(row.bytes for row in rows))


def deletion_row(node: AgentRecord) -> PrunedSession:
    """Return the row for the agent `node` in the result of a deletion."""
    spec = node.spec
    size, active = bytes_in(Path(spec.folder)), iso_time(node.last_activity)
    return PrunedSession(spec.id, spec.seq, spec.name, node.title or spec.task, active, size)


def _count_archives(folder: Path) -> int:
    with suppress(OrchError):  # a damaged session can be deleted too
        return sum(not record.deleted for record in SessionArchives(folder).catch_up())
    return 0


def remove_files(folder: Path, log: Path | None = None) -> None:
    """Remove the session folder and the log of the agent's processes. Raises LockedError, StoreError."""
    try:
        remove_sessions(folder.parent, [folder.name])
        if log is not None:
            log.unlink(missing_ok=True)
    except OSError as error:
        raise io_error("remove", folder, error) from error
