"""Damage in the session file of an agent: what it is, and a mended copy in the file's place."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.core.errors import AgentBusyError
from orch_protocol.services.sessions import CHECK_SESSION
from orch_protocol.session.entries import TranscriptPosition
from orch_protocol.session.tree import CheckSession, FileFinding, SessionChecked
from orch_worker.session.transcript import NAME

from ...policy.caller import Caller
from ...sessions.findings import in_session
from ...sessions.repair import mend
from ...tree.agents.state import AgentRecord
from ..archives.recall import look_up
from ..checks.idle import AgentBusy, holders_of, stop_processes
from ..checks.transcripts import rewriting_transcripts
from ..dispatch.handlers import handles
from .sessions import session_of

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["check_session"]


@handles(CHECK_SESSION)
async def check_session(root: Supervisor, caller: Caller, params: CheckSession) -> SessionChecked:
    """Return what is wrong with a session file; with `repair`, put a mended copy in its place, if something is.

    The damaged file is kept beside it. Raises AgentBusyError while a turn runs, ForeignFileError for a file that is
    none of the agent's (it is left alone), StoreError.
    """
    node = session_of(root, caller, params.ref, "check session files of")
    path = Path(node.spec.folder, NAME)
    found = await root.disk.do(_found, path, node.spec.id, node.transcript)
    if not found or not params.repair:
        return SessionChecked(node.spec.id, str(path), found)
    async with root.holds.turn:
        with root.holds.hold(node.spec.id):
            return await _mended(root, node, path, found)


async def _mended(root: Supervisor, node: AgentRecord, path: Path, found: tuple[FileFinding, ...]) -> SessionChecked:
    holders = holders_of(root, node)
    try:
        await stop_processes(root, [node, *holders], holders)
    except AgentBusy as error:
        raise AgentBusyError(str(error)) from None
    async with rewriting_transcripts(root, [node]):
        done, kept = await root.archives.renew(node.spec, partial(mend, path.parent, node.spec.id))
    for holder in holders:
        if not holder.deleted:
            await look_up(root, holder, eras=True)
    return SessionChecked(node.spec.id, str(path), found, tuple(done), str(kept))


def _found(path: Path, agent: str, acknowledged: TranscriptPosition | None) -> tuple[FileFinding, ...]:
    return tuple(in_session(path, agent, acknowledged))
