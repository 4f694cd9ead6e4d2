"""Service that checks and repairs the session file of an agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.core.errors import AgentBusyError
from orch_protocol.services.sessions.repair import CHECK_SESSION, CheckSession, FileFinding, SessionChecked
from orch_protocol.session.entries import TranscriptPosition
from orch_worker.session.log.log_reader import last_position
from orch_worker.session.session_reader import NAME

from ...policy.caller import Caller
from ...sessions.findings import check_session_file
from ...sessions.repair import replace_damaged
from ...tree.agents.state import AgentRecord
from ...tree.journal.entries import TranscriptRewritten
from ..archives.recall import update_holder_source
from ..checks.idle import AgentBusy, holders_of, stop_processes
from ..dispatch.handlers import handles
from .sessions import session_of

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["check_session", "rewriting_transcripts"]


@handles(CHECK_SESSION)
async def check_session(root: Supervisor, caller: Caller, params: CheckSession) -> SessionChecked:
    """Return the damage in a session file. With `repair`, replace a damaged file with a repaired copy.

    The damaged file is kept in the same folder. Raises AgentBusyError while a turn runs. Raises StoreError. Raises
    ForeignFileError for a file of another agent or program; such a file is not changed.
    """
    node = session_of(root, caller, params.ref, "check session files of")
    path = Path(node.spec.folder, NAME)
    found = await root.disk.do(_find_damage, path, node.spec.id, node.transcript)
    if not found or not params.repair:
        return SessionChecked(node.spec.id, str(path), found)
    async with root.holds.lock:
        with root.holds.hold(node.spec.id):
            return await _repair(root, node, path, found)


async def _repair(root: Supervisor, node: AgentRecord, path: Path, found: tuple[FileFinding, ...]) -> SessionChecked:
    holders = holders_of(root, node)
    try:
        await stop_processes(root, [node, *holders], holders)
    except AgentBusy as error:
        raise AgentBusyError(str(error)) from None
    async with rewriting_transcripts(root, [node]):
        repairs, backup = await root.archives.replace_session_file(
            node.spec, partial(replace_damaged, path.parent, node.spec.id)
        )
    for holder in holders:
        if not holder.deleted:
            await update_holder_source(root, holder, eras=True)
    return SessionChecked(node.spec.id, str(path), found, tuple(repairs), str(backup))


def _find_damage(path: Path, agent: str, acknowledged: TranscriptPosition | None) -> tuple[FileFinding, ...]:
    return tuple(check_session_file(path, agent, acknowledged))


@asynccontextmanager
async def rewriting_transcripts(root: Supervisor, nodes: Iterable[AgentRecord]) -> AsyncIterator[None]:
    """Context manager for rewriting or removing the transcripts of `nodes`, which have no process.

    Within the block, the journal contains no position in these transcripts. If the journal contained positions and the
    root was killed in the block, the next root would report the transcripts as truncated. Raises StoreError.
    """
    recorded = [node for node in nodes if node.transcript is not None]
    for node in recorded:
        root.record(TranscriptRewritten(at=root.clock(), id=node.spec.id))
    yield
    for node in recorded:
        position = await root.disk.do(last_position, Path(node.spec.folder, NAME))
        if position is not None:
            root.record(TranscriptRewritten(at=root.clock(), id=node.spec.id, transcript=position))
