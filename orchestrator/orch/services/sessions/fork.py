"""Agents made of other agents: each goes its own way from a place in a conversation that both had."""

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
from orch_protocol.services.sessions import FORK_SESSION
from orch_protocol.session.tree import ForkResult, ForkSession
from orch_worker.agent.model_selection import model_of
from orch_worker.backends.cost_estimate import check_priced
from orch_worker.session.session_index import read_session_index
from orch_worker.session.transcript import NAME
from orch_worker.system.files import io_error
from orch_worker.tools.python import namespace
from orch_worker.tools.values.store import take_along

from ...policy.caller import Caller
from ...sessions.copy_session import copy_conversation
from ...sessions.import_ import plant
from ...tree.agents.state import answered_by, iso_time
from ...tree.journal import events
from ..agents.spawn import check_name
from ..archives.archiving import note
from ..checks.local_only import local_model
from ..dispatch.handlers import handles
from ..models.model_selection import answers_at, holds
from .sessions import session_of

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["fork"]


@handles(FORK_SESSION)
async def fork(root: Supervisor, caller: Caller, params: ForkSession) -> ForkResult:
    """Make a cold agent whose session is a copy of another one's: one path through it, or all branches; with archives.

    It may do what that one may, below the same agent. Raises AgentBusyError when no entry is named and a turn runs,
    EntryNotFoundError, AmbiguousRefError, ConfigError, SpawnError, StoreError.
    """
    node = session_of(root, caller, params.ref, "fork")
    check_name(params.name)
    if params.at is None and node.pending is not None:
        raise AgentBusyError(
            f"agent {node.spec.name!r} ({node.spec.id}) is busy with: {node.pending.head}; wait for it, or name the "
            "entry that the copy is to end with"
        )
    spec = node.spec
    id = new_id()
    place = root.sessions / id if spec.persist else root.fleeting.folder(id)
    copy = replace(spec, id=id, seq=0, name=params.name or "", folder=str(place), history=())
    chosen, thinking = await root.disk.do(_answers, Path(spec.folder), params.at)
    if params.model is not None:
        backend = await root.catalog_for(spec.id).complete(parse_model(params.model))
        if spec.local:
            backend = await local_model(root, backend, spec.id)
        if spec.limits.max_cost_usd is not None or "usd" in root.budgets.kinds_for(spec.parent_id):
            check_priced(backend)
        level = thinking or (spec.born or spec.backend).thinking
        copy = answered_by(copy, RecordModel(replace(backend, thinking=level), model_of(backend)))
    elif not holds(spec, chosen, thinking):
        with contextlib.suppress(ConfigError):  # who asks the copy is told why that model does not answer
            copy = answered_by(copy, await answers_at(root, spec, chosen, thinking))
    model = copy.backend if params.model is not None else None
    now = iso_time(root.clock())
    found = await root.disk.do(
        lambda: copy_conversation(Path(spec.folder), params.at, all=params.all, model=model, now=now)
    )
    await root.disk.do(plant, Path(copy.folder), id, spec.cwd, found, Path(spec.id))
    try:
        await root.disk.do(_belongings, Path(spec.folder), Path(copy.folder))
        session_of(root, caller, spec.id, "fork")  # deleted meanwhile, not all that the copy names was there any more
        root.handle(events.AddAgent(copy, "; ".join(found.repairs), root.credentials.record(spec.id)))
    except BaseException:
        shutil.rmtree(copy.folder, ignore_errors=True)
        raise
    if (functions := root.tools.get(spec.id)) is not None:
        root.tools[id] = functions
    if node.title:
        root.handle(events.ChangeTitle(id, node.title))
    with contextlib.suppress(OrchError):  # whoever asks for its archives is told
        await note(root, root.tree.agents[id])
    made = root.tree.agents[id].spec
    return ForkResult(id, made.seq, made.name, found.entries[-1].id if found.entries else None)


# In threads.


def _belongings(folder: Path, copy: Path) -> None:
    """Let the copy have what its conversation names of what the agent keeps under handles."""
    try:
        take_along(folder, copy, (copy / NAME).read_bytes())
    except OSError as error:
        raise io_error("copy what is kept for", copy, error) from error
    namespace.remember(folder, copy)


def _answers(folder: Path, at: str | None) -> tuple[str, str]:
    outline = read_session_index(folder)
    return outline.answers(outline.leaf if at is None else outline.find(at))
