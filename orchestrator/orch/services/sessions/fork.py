"""Agents made of other agents: each goes its own way from a place in a conversation that both had."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.models import Answers
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import AgentBusyError, ConfigError, OrchError
from orch_protocol.core.ids import new_entry_id, new_id
from orch_protocol.session.entries import Label, ModelChange, SessionInfo
from orch_protocol.session.tree import Forked, ForkSession
from orch_worker.agent.model_selection import model_of
from orch_worker.backends.cost_estimate import check_priced
from orch_worker.session.session_index import Outline, read_outline
from orch_worker.session.transcript import NAME
from orch_worker.system.files import cannot
from orch_worker.tools.python import namespace
from orch_worker.tools.values.store import take_along

from ...sessions.formats.conversation import Found, Reading, Told
from ...sessions.formats.native import read_own
from ...sessions.import_ import plant
from ...tree.agents.state import answered_by, iso
from ...tree.journal import events
from ..agents.spawn import check_name
from ..archives.archiving import note
from ..checks.local_only import local_model
from ..models.model_selection import answers_at, holds
from .sessions import session_of

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["fork"]


async def fork(root: Supervisor, caller: str | None, params: ForkSession) -> Forked:
    """Make a cold agent whose session is a copy of a path of another one's, with the archives on it.

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
        copy = answered_by(copy, Answers(replace(backend, thinking=level), model_of(backend)))
    elif not holds(spec, chosen, thinking):
        with contextlib.suppress(ConfigError):  # who asks the copy is told why that model does not answer
            copy = answered_by(copy, await answers_at(root, spec, chosen, thinking))
    model = copy.backend if params.model is not None else None
    found = await root.disk.do(_copied, spec, params.at, model, iso(root.clock()))
    await root.disk.do(plant, Path(copy.folder), id, spec.cwd, found, Path(spec.id))
    try:
        await root.disk.do(_belongings, Path(spec.folder), Path(copy.folder))
        session_of(root, caller, spec.id, "fork")  # deleted meanwhile, not all that the copy names was there any more
        root.handle(events.Adopt(copy, "; ".join(found.repairs), root.credentials.record(spec.id)))
    except BaseException:
        shutil.rmtree(copy.folder, ignore_errors=True)
        raise
    if (functions := root.tools.get(spec.id)) is not None:
        root.tools[id] = functions
    if node.title:
        root.handle(events.Title(id, node.title))
    with contextlib.suppress(OrchError):  # whoever asks for its archives is told
        await note(root, root.tree.nodes[id])
    made = root.tree.nodes[id].spec
    return Forked(id, made.seq, made.name, found.entries[-1].id if found.entries else None)


# In threads.


def _belongings(folder: Path, copy: Path) -> None:
    """Let the copy have what its conversation names of what the agent keeps under handles."""
    try:
        take_along(folder, copy, (copy / NAME).read_bytes())
    except OSError as error:
        raise cannot("copy what is kept for", copy, error) from error
    namespace.remember(folder, copy)


def _answers(folder: Path, at: str | None) -> tuple[str, str]:
    outline = read_outline(folder)
    return outline.answers(outline.leaf if at is None else outline.find(at))


def _copied(spec: AgentSpec, at: str | None, model: BackendSpec | None, now: str) -> Found:
    """Return the path to the entry `at`, with the names of what is on it, and the `model` that goes on as its own."""
    folder = Path(spec.folder)
    outline = read_outline(folder)
    to = outline.leaf if at is None else outline.find(at)
    found = read_own((folder / NAME).read_bytes(), Reading(folder / NAME, repair=True))
    by_id = {entry.id: entry for entry in found.entries}
    path: list[Told] = []
    while to is not None and (entry := by_id.get(to)) is not None:
        path.append(entry)
        to = entry.parent_id
    path.reverse()
    on_path = {entry.id for entry in path}
    path += _names(outline, path, on_path, now)
    if model is not None:
        change = ModelChange(**_next(path, on_path, now), provider=model.provider, model_id=model.model, own=True)
        path.append(change)
    return replace(found, entries=tuple(path))


def _names(outline: Outline, path: list[Told], on_path: set[str], now: str) -> list[Told]:
    """Return the labels of what is on the path, and the session's title, as far as they were given elsewhere."""
    added: list[Told] = []
    there = {entry.target_id: entry.label for entry in path if isinstance(entry, Label)}
    for target, label in outline.labels.items():
        if target in on_path and there.get(target) != label:
            added.append(Label(**_next([*path, *added], on_path, now), target_id=target, label=label))
    titles = [entry.name for entry in path if isinstance(entry, SessionInfo)]
    if outline.name and titles[-1:] != [outline.name]:
        added.append(SessionInfo(**_next([*path, *added], on_path, now), name=outline.name))
    return added


def _next(path: list[Told], taken: set[str], now: str) -> dict[str, Any]:
    id = new_entry_id(taken)
    taken.add(id)
    return {"id": id, "parent_id": path[-1].id if path else None, "timestamp": now}
