"""Service that imports conversations from files of other programs."""

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
from orch_protocol.services.agents.spawn import Spawn
from orch_protocol.services.sessions.import_session import IMPORT_SESSION, Imported, ImportSession
from orch_protocol.session.entries import ArchiveEntry, MessageEntry, ModelChange, ThinkingLevelChange

from ...policy.caller import USER, Caller
from ...sessions.copy_session import copy_conversation
from ...sessions.formats.conversation import ImportedEntry, ImportedSession, path_to_leaf
from ...sessions.formats.detect import read_conversation
from ...sessions.import_ import has_messages, task_of, write_session
from ...tree.agents.state import iso_time
from ...tree.interface import events
from ..agents.spawn import spec_of
from ..agents.worktrees import remove_worktrees
from ..archives.archiving import register_archives
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["import_session"]


@handles(IMPORT_SESSION)
async def import_session(root: Supervisor, _: Caller, params: ImportSession) -> Imported:
    """Create agents without processes from a file. The conversation and each subagent's conversation get an agent.

    The file is not changed. Raises ForeignFileError, DamagedError, StoreError, ConfigError, SpawnError.
    """
    path = Path(params.here, params.path)
    found = await root.disk.do(_read, path, params, iso_time(root.clock()))
    spec, notice = await _create_agent(root, params, found, path, None)
    subagents: list[AgentSpec] = []
    skipped: list[str] = []
    for each in filter(has_messages, found.subagents):
        try:
            subagents.append((await _create_agent(root, params, each, path, spec))[0])
        except OrchError as error:  # the conversation itself is complete
            skipped.append(f"the subagent in {each.name} is left out: {error}")
    parents = {entry.parent_id for entry in found.entries}
    notes = dict.fromkeys((*found.notes, *(text for each in found.subagents for text in each.notes)))
    return Imported(
        id=spec.id,
        seq=root.tree.agents[spec.id].spec.seq,
        name=root.tree.agents[spec.id].spec.name,
        task=spec.task,
        shape=found.shape,
        entries=len(found.entries),
        messages=sum(isinstance(entry, MessageEntry) for entry in found.entries),
        branches=sum(entry.id not in parents for entry in found.entries) - 1,
        below=tuple(each.id for each in subagents),
        repairs=found.repairs,
        notes=(*notes, *skipped, *filter(None, (notice,))),
    )


def _read(path: Path, params: ImportSession, now: str) -> ImportedSession:
    if params.at is None and params.all:
        return read_conversation(path, params.which, repair=params.repair)
    return copy_conversation(path.parent, params.at, all=params.all, model=None, now=now)


async def _create_agent(
    root: Supervisor, params: ImportSession, found: ImportedSession, path: Path, parent: AgentSpec | None
) -> tuple[AgentSpec, str]:
    fields = {"task": task_of(found)} | params.agent | {"cwd": _folder(params, found)}
    try:
        request = msgspec.convert(fields, Spawn)
    except msgspec.ValidationError as error:
        raise ConfigError(f"cannot create an agent from this file: {error}") from error
    if parent is not None:
        request = msgspec.structs.replace(request, task=task_of(found), name=None)
    spec, notice = await spec_of(root, request, USER)
    if parent is not None:
        spec = msgspec.structs.replace(spec, parent_id=parent.id, depth=parent.depth + 1)
    folder, found = Path(spec.folder), _continue_with_model(found, spec, request.thinking, iso_time(root.clock()))
    try:
        await root.disk.do(write_session, folder, spec.id, spec.cwd, found, path)
        credentials = root.credentials.record() if parent is None else None
        root.handle(events.AddAgent(spec, "; ".join(found.repairs), credentials))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        await remove_worktrees(root, (spec,))
        raise
    if found.title:
        root.handle(events.ChangeTitle(spec.id, found.title))
    if any(isinstance(entry, ArchiveEntry) for entry in found.entries):
        with contextlib.suppress(OrchError):  # callers that ask for the archives get the error
            await register_archives(root, root.tree.agents[spec.id])
    return spec, notice


def _continue_with_model(found: ImportedSession, spec: AgentSpec, thinking: str | None, now: str) -> ImportedSession:
    """Return the conversation, with added entries for the agent's model and reasoning effort where they differ.

    The recorded model may belong to another machine with other API keys. The reasoning effort is changed only if
    `thinking` was requested.
    """
    added: list[ImportedEntry] = []
    backend, used_ids = spec.backend, {entry.id for entry in found.entries}

    def new_fields() -> dict[str, Any]:
        id = new_entry_id(used_ids)
        used_ids.add(id)
        return {"id": id, "parent_id": (added or found.entries)[-1].id, "timestamp": now}

    path = path_to_leaf(found)
    own_models = [(entry.provider, entry.model_id) for entry in path if isinstance(entry, ModelChange) and entry.own]
    if own_models and own_models[-1] != (backend.provider, backend.model):
        added.append(ModelChange(**new_fields(), provider=backend.provider, model_id=backend.model, own=True))
    levels = [entry.thinking_level for entry in path if isinstance(entry, ThinkingLevelChange)]
    if thinking and levels and levels[-1] != thinking:
        added.append(ThinkingLevelChange(**new_fields(), thinking_level=thinking))
    return msgspec.structs.replace(found, entries=(*found.entries, *added))


def _folder(params: ImportSession, found: ImportedSession) -> str:
    """Return the working folder.

    Without a requested folder, return the folder of the conversation if that folder exists.
    """
    recorded_cwd = found.cwd if found.cwd and os.path.isdir(found.cwd) else ""
    return os.path.join(params.here, params.agent.get("cwd") or recorded_cwd)
