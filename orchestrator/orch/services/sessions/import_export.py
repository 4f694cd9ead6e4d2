"""Conversations taken over from other programs' files."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError, OrchError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.services.import_export import IMPORT_SESSION, Imported, ImportSession
from orch_protocol.services.requests import Spawn
from orch_protocol.session.entries import ArchiveEntry, MessageEntry, ModelChange, ThinkingLevelChange

from ...policy.caller import USER, Caller
from ...sessions.copy_session import copy_conversation
from ...sessions.formats.conversation import ImportedSession, Told, path_of
from ...sessions.formats.detect import read_conversation
from ...sessions.import_ import has_messages, plant, task_of
from ...tree.agents.state import iso_time
from ...tree.journal import events
from ..agents.spawn import spec_of
from ..archives.archiving import note
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["import_session"]


@handles(IMPORT_SESSION)
async def import_session(root: Supervisor, _: Caller, params: ImportSession) -> Imported:
    """Make a cold agent of the conversation in a file, and of each that it had started. The file is only read.

    Raises ForeignFileError, DamagedError, StoreError, ConfigError, SpawnError.
    """
    path = Path(params.here, params.path)
    found = await root.disk.do(_read, path, params, iso_time(root.clock()))
    spec, said = await _adopt(root, params, found, path, None)
    below: list[AgentSpec] = []
    left: list[str] = []
    for each in filter(has_messages, found.below):
        try:
            below.append((await _adopt(root, params, each, path, spec))[0])
        except OrchError as error:  # the conversation itself is there, and goes on
            left.append(f"the subagent in {each.name} is left out: {error}")
    parents = {entry.parent_id for entry in found.entries}
    notes = dict.fromkeys((*found.notes, *(note for each in found.below for note in each.notes)))
    return Imported(
        id=spec.id,
        seq=root.tree.agents[spec.id].spec.seq,
        name=root.tree.agents[spec.id].spec.name,
        task=spec.task,
        shape=found.shape,
        entries=len(found.entries),
        messages=sum(isinstance(entry, MessageEntry) for entry in found.entries),
        branches=sum(entry.id not in parents for entry in found.entries) - 1,
        below=tuple(each.id for each in below),
        repairs=found.repairs,
        notes=(*notes, *left, *filter(None, (said,))),
    )


def _read(path: Path, params: ImportSession, now: str) -> ImportedSession:
    if params.at is None and params.all:
        return read_conversation(path, params.which, repair=params.repair)
    return copy_conversation(path.parent, params.at, all=params.all, model=None, now=now)


async def _adopt(
    root: Supervisor, params: ImportSession, found: ImportedSession, path: Path, above: AgentSpec | None
) -> tuple[AgentSpec, str]:
    asked = {"task": task_of(found)} | params.agent | {"cwd": _folder(params, found)}
    try:
        request = msgspec.convert(asked, Spawn)
    except msgspec.ValidationError as error:
        raise ConfigError(f"no agent can be made of that: {error}") from error
    if above is not None:
        request = msgspec.structs.replace(request, task=task_of(found), name=None)
    spec, said = await spec_of(root, request, USER)
    if above is not None:
        spec = msgspec.structs.replace(spec, parent_id=above.id, depth=above.depth + 1)
    folder, found = Path(spec.folder), _gone_on_with(found, spec, request.thinking, iso_time(root.clock()))
    await root.disk.do(plant, folder, spec.id, spec.cwd, found, path)
    try:
        credentials = root.credentials.record() if above is None else None
        root.handle(events.AddAgent(spec, "; ".join(found.repairs), credentials))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if found.title:
        root.handle(events.ChangeTitle(spec.id, found.title))
    if any(isinstance(entry, ArchiveEntry) for entry in found.entries):
        with contextlib.suppress(OrchError):  # whoever asks for them is told
            await note(root, root.tree.agents[spec.id])
    return spec, said


def _gone_on_with(found: ImportedSession, spec: AgentSpec, thinking: str | None, now: str) -> ImportedSession:
    """Return the conversation with what the agent `spec` is to be as what holds in it from now on, where it has
    something else on record: a model as its own, which was there, where there may be other keys; or how much it thinks,
    where `thinking` was asked for."""
    added: list[Told] = []
    backend, taken = spec.backend, {entry.id for entry in found.entries}

    def base() -> dict[str, Any]:
        id = new_entry_id(taken)
        taken.add(id)
        return {"id": id, "parent_id": (added or found.entries)[-1].id, "timestamp": now}

    path = path_of(found)
    own = [(entry.provider, entry.model_id) for entry in path if isinstance(entry, ModelChange) and entry.own]
    if own and own[-1] != (backend.provider, backend.model):
        added.append(ModelChange(**base(), provider=backend.provider, model_id=backend.model, own=True))
    levels = [entry.thinking_level for entry in path if isinstance(entry, ThinkingLevelChange)]
    if thinking and levels and levels[-1] != thinking:
        added.append(ThinkingLevelChange(**base(), thinking_level=thinking))
    return msgspec.structs.replace(found, entries=(*found.entries, *added))


def _folder(params: ImportSession, found: ImportedSession) -> str:
    """Return where the agent works: as asked, else where its conversation was, if that is there."""
    theirs = found.cwd if found.cwd and os.path.isdir(found.cwd) else ""
    return os.path.join(params.here, params.agent.get("cwd") or theirs)
