"""Service that forks a session. The copy belongs to a new agent."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.models import RecordModel
from orch_protocol.core.errors import AgentBusyError, ConfigError, OrchError
from orch_protocol.core.ids import new_id
from orch_protocol.services.sessions.fork import FORK_SESSION, ForkResult, ForkSession
from orch_worker.agent.model_selection import model_of
from orch_worker.backends.prices import check_priced
from orch_worker.session.session_index import read_session_index
from orch_worker.session.session_reader import NAME
from orch_worker.system.files import io_error
from orch_worker.tools.python import namespace
from orch_worker.tools.values.store import copy_values

from ...policy.caller import Caller
from ...sessions.copy_session import copy_conversation
from ...sessions.import_ import write_session
from ...tree.agents.state import iso_time, with_model
from ...tree.interface import events
from ..agents.spawn import check_name
from ..agents.worktrees import fork_worktree, remove_worktrees
from ..archives.archiving import register_archives
from ..checks.local_only import local_model
from ..dispatch.handlers import handles
from ..models.model_selection import matches_session, resolve_recorded_model
from .sessions import session_of

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["fork"]


@handles(FORK_SESSION)
async def fork(root: Supervisor, caller: Caller, params: ForkSession) -> ForkResult:
    """Create an agent without a process. The agent's session is a copy of another agent's session.

    The copy contains the archives, and either one path of entries or all branches. The new agent has the same rights
    and the same parent as the source agent. If the source agent has a worktree, the new agent gets a worktree with the
    same files. During a turn, raises AgentBusyError unless `at` names an entry. Also raises EntryNotFoundError,
    AmbiguousRefError, ConfigError, SpawnError, StoreError.
    """
    node = session_of(root, caller, params.ref, "fork")
    check_name(params.name)
    if params.at is None and node.pending is not None:
        raise AgentBusyError(
            f"agent {node.spec.name!r} ({node.spec.id}) is busy with: {node.pending.head}; wait for it, or name the "
            "last entry to copy"
        )
    spec = node.spec
    id = new_id()
    copy_folder = root.sessions / id if spec.persist else root.ephemeral_sessions.folder(id)
    copy = replace(spec, id=id, seq=0, name=params.name or "", folder=str(copy_folder), history=(), item="")
    recorded_model, thinking = await root.disk.do(_recorded_model, Path(spec.folder), params.at)
    if params.model is not None:
        backend = await root.catalog_for(spec.id).complete(parse_model(params.model))
        if spec.local:
            backend = await local_model(root, backend, spec.id)
        if spec.limits.max_cost_usd is not None or "usd" in root.budgets.kinds_for(spec.parent_id):
            check_priced(backend)
        level = thinking or (spec.born or spec.backend).thinking
        copy = with_model(copy, RecordModel(replace(backend, thinking=level), model_of(backend)))
    elif not matches_session(spec, recorded_model, thinking):
        with contextlib.suppress(ConfigError):  # the first query of the copy reports why the model is not available
            copy = with_model(copy, await resolve_recorded_model(root, spec, recorded_model, thinking))
    model = copy.backend if params.model is not None else None
    now = iso_time(root.clock())
    conversation = await root.disk.do(
        lambda: copy_conversation(Path(spec.folder), params.at, all=params.all, model=model, now=now)
    )
    copy = await fork_worktree(root, spec, copy)
    try:
        await root.disk.do(write_session, Path(copy.folder), id, copy.cwd, conversation, Path(spec.id))
        await root.disk.do(_copy_stored_values, Path(spec.folder), Path(copy.folder))
        session_of(
            root, caller, spec.id, "fork"
        )  # raises an error if the source was just deleted, because the copy may be incomplete
        root.handle(events.AddAgent(copy, "; ".join(conversation.repairs), root.credentials.record(spec.id)))
    except BaseException:
        shutil.rmtree(copy.folder, ignore_errors=True)
        await remove_worktrees(root, (copy,))
        raise
    if (functions := root.tools.get(spec.id)) is not None:
        root.tools[id] = functions
    if (executor := root.executors.get(spec.id)) is not None:
        root.executors[id] = executor
    if node.title:
        root.handle(events.ChangeTitle(id, node.title))
    with contextlib.suppress(OrchError):  # callers that ask for the agent's archives get the error
        await register_archives(root, root.tree.agents[id])
    new_spec = root.tree.agents[id].spec
    return ForkResult(id, new_spec.seq, new_spec.name, conversation.entries[-1].id if conversation.entries else None)


# The functions below run in threads.


def _copy_stored_values(folder: Path, copy: Path) -> None:
    """Copy the stored values to which the conversation refers by handle."""
    try:
        copy_values(folder, copy, (copy / NAME).read_bytes())
    except OSError as error:
        raise io_error("copy what is kept for", copy, error) from error
    namespace.remember(folder, copy)


def _recorded_model(folder: Path, at: str | None) -> tuple[str, str]:
    outline = read_session_index(folder)
    return outline.model_at(outline.leaf if at is None else outline.find(at))
