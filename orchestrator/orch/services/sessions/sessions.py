"""Sessions as trees: what is in them, and what changes in them between turns."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import replace

from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import AgentBusyError, ConfigError, OrchError, StoreError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.core.text import scrub
from orch_protocol.core.workspace import WORKSPACE
from orch_protocol.hooks.stages import ACTED
from orch_protocol.resources.skills import SKILL_READ
from orch_protocol.services.service import Empty
from orch_protocol.services.sessions import CHANGE_SESSION, LIST_SESSION_METADATA, SHOW_SESSION
from orch_protocol.session.entries import Custom
from orch_protocol.session.tree import (
    AddMessage,
    ChangeSession,
    ListMetadata,
    MoveLeaf,
    SessionChanged,
    SessionEdit,
    SessionMetadata,
    SessionTree,
    SetLabel,
    SetMetadata,
    SetModel,
    SetThinking,
    SetTitle,
    ShowSession,
)
from orch_protocol.wire.worker_messages import BranchSummarized, SummarizeBranch
from orch_worker.agent.model_selection import model_of
from orch_worker.context.branch_summary import extract_branch_summary, left_behind
from orch_worker.context.summarizer import writer_of
from orch_worker.session.session_index import read_prompt, read_session_index
from orch_worker.session.transcript import Transcript, read_session

from ...policy.caller import AgentCaller, Caller, Scope
from ...sessions.stored import check_label, read_tree
from ...tree.agents.state import AgentRecord
from ...tree.journal import events
from ...tree.journal.events import BOOT_SECONDS
from ..agents.processes import request_worker, start_process
from ..checks.reach import find_agent
from ..dispatch.handlers import handles
from ..models import model_selection

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["change_session", "check_idle", "list_metadata", "put", "session", "session_of"]

SUM_UP_SECONDS: Final = 100.0
EDIT_SECONDS: Final = 30.0
OWN: Final = frozenset({WORKSPACE, SKILL_READ, ACTED})
"""The types of entries that orch itself keeps with sessions."""
"""A process reads its whole file again when its conversation goes back: large ones take seconds."""


@handles(SHOW_SESSION)
async def session(root: Supervisor, caller: Caller, params: ShowSession) -> SessionTree:
    """Return what is in a session, read from its file. Raises AgentNotFoundError, AmbiguousRefError, StoreError."""
    node = session_of(root, caller, params.ref, "look at", "read")
    return await root.disk.do(_shown, node.spec, node.model, params.most)


@handles(LIST_SESSION_METADATA)
async def list_metadata(root: Supervisor, caller: Caller, params: ListMetadata) -> list[SessionMetadata]:
    """Return what programs keep with a session, as far as it is on the way that the conversation went, in order."""
    node = session_of(root, caller, params.ref, "look at", "read")
    return await root.disk.do(_kept, Path(node.spec.folder), params.custom_type)


@handles(CHANGE_SESSION)
async def change_session(root: Supervisor, caller: Caller, params: ChangeSession) -> SessionChanged:
    """Change a session between turns; it is on record when this returns, also when whoever asks has given up by then.

    Raises AgentBusyError while a turn runs, EntryNotFoundError, AmbiguousRefError, ConfigError, StoreError.
    """
    node = session_of(root, caller, params.ref, "change sessions of")
    check_idle(node)
    was = node.spec
    if isinstance(params.change, SetModel):
        params = replace(params, change=SetModel(await model_selection.chosen(root, node.spec, params.change.model)))
    edit, text, recorded = await root.disk.do(_resolved, node.spec, params)
    left: BranchSummarized | None = None
    if isinstance(edit.change, MoveLeaf) and edit.change.summarize:
        left = await _summed(root, node, edit.change.to)
        edit = SessionEdit(edit.entry, MoveLeaf(edit.change.to, left.text or None))
    told: str | None = None
    chosen = isinstance(edit.change, SetModel | SetThinking)
    moved = isinstance(edit.change, MoveLeaf) and not model_selection.holds(node.spec, *recorded)
    if chosen or moved:
        try:
            answers = await model_selection.answers_at(root, node.spec, *recorded)
        except ConfigError:
            if chosen:
                raise
            # Nobody is kept from going there: whoever asks is told why that model does not answer.
        else:
            told = model_selection.announced_model(answers, wanted=isinstance(edit.change, SetThinking))
            await model_selection.make_way(root, node, answers)
            edit = replace(edit, answers=answers)
    putting = asyncio.ensure_future(_made(root, node, edit, was))
    putting.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.shield(putting)
    summary = left.text or None if left is not None else None
    model = model_of(edit.answers.backend) if edit.answers is not None else None
    return SessionChanged(node.spec.id, edit.entry, text, summary, left is not None and left.by_model, model, told)


def session_of(root: Supervisor, caller: Caller, ref: str, action: str, scope: Scope = "control") -> AgentRecord:
    """Return the agent that `ref` means to `caller`, which is no holder. Raises AgentError, ConfigError."""
    node = find_agent(root, caller, ref, action, scope)
    if node.is_holder:
        raise ConfigError(f"{ref!r} is an archive without a session; read it with `orch archive read`")
    if node.deleted:
        raise node.refusal()
    return node


def check_idle(node: AgentRecord) -> None:
    """Raise AgentBusyError while a turn of the agent runs."""
    if node.pending is not None:
        raise AgentBusyError(
            f"agent {node.spec.name!r} ({node.spec.id}) is busy with: {node.pending.head}; its session changes between "
            "turns: wait for it, or cancel it"
        )


async def _made(root: Supervisor, node: AgentRecord, edit: SessionEdit, was: AgentSpec) -> None:
    await put(root, node, edit)
    if isinstance(edit.change, SetTitle):
        root.handle(events.ChangeTitle(node.spec.id, edit.change.name or ""))
    if edit.answers is None:
        return
    if node.spec == was:
        model_selection.true_now(root, node, edit.answers)
        return
    # Somebody else's change came in between, or what it is told may not leave this machine any more.
    with contextlib.suppress(ConfigError, StoreError):  # whoever asks next is told
        await model_selection.resolve_model(root, AgentCaller(node.spec.id), Empty())


async def put(root: Supervisor, node: AgentRecord, edit: SessionEdit) -> None:
    """Let the owner of the session record `edit`: the agent's process, or the root as long as it has none.

    Each attempt is for the same entry, so that it does not matter whether one that nobody confirmed was made. Raises
    AgentBusyError while a turn runs, StoreError.
    """
    id = node.spec.id
    while True:
        check_idle(node)
        gone = f"gone:{id}:{node.incarnation}"
        if not node.running:
            async with root.holds.turn:
                if node.running:
                    continue  # somebody asked it meanwhile
                with root.holds.hold(id):
                    await root.disk.do(_edited, node.spec, edit)
            return
        if node.status == "starting":
            await root.waiters.until(f"up:{id}", BOOT_SECONDS)
        elif node.stopping:
            await root.waiters.until(gone, EDIT_SECONDS)
        elif (edited := await request_worker(root, node, "edit", edit, edit.entry, "edited", EDIT_SECONDS)) is not None:
            if edited.context_tokens:
                root.handle(events.RecordArchives(id, (), edited.context_tokens))
            return


async def _summed(root: Supervisor, node: AgentRecord, to: str | None) -> BranchSummarized:
    """Return what is to be said of what the conversation leaves when it goes back to `to`.

    The agent's process asks its model; one that has none gets one. Where that cannot be, or there is no model, it is
    what was asked and answered.
    """
    spec = node.spec
    if writer_of(spec.backend) is not None:
        with contextlib.suppress(OrchError):  # it is killed, or there is no room, or it does not come up
            await start_process(root, node)
            asked = SummarizeBranch(to, root.budgets.kinds_for(spec.id))
            left = await request_worker(root, node, "sum_up", asked, new_entry_id(()), "summed", SUM_UP_SECONDS)
            if left is not None:
                root.handle(events.RecordUsage(spec.id, left.usage))
                return cast("BranchSummarized", left)
    return await root.disk.do(_extracted, Path(spec.folder), to)


# In threads.


def _extracted(folder: Path, to: str | None) -> BranchSummarized:
    return BranchSummarized(extract_branch_summary(left_behind(read_session(folder), to)).text)


def _kept(folder: Path, kind: str | None) -> list[SessionMetadata]:
    return [
        SessionMetadata(entry.id, entry.timestamp, entry.custom_type, entry.data)
        for entry in read_session(folder).entries
        if isinstance(entry, Custom) and (entry.custom_type == kind or (kind is None and entry.custom_type != ACTED))
    ]


def _shown(spec: AgentSpec, model: str, most: int | None) -> SessionTree:
    tree = read_tree(Path(spec.folder), most)
    recorded = tree.model, tree.thinking
    if model_selection.holds(spec, *recorded):
        thinking = (
            spec.backend.thinking
            if model_selection.announced_model(RecordModel(spec.backend, ""), wanted=False)
            else ""
        )
    else:  # the next query uses the recorded model, or fails and says why it cannot
        born = spec.born or spec.backend
        model, thinking = recorded[0] or model_of(born), recorded[1] or born.thinking
    cwd = tree.cwd or spec.cwd
    return replace(tree, id=spec.id, name=spec.name, folder=spec.folder, cwd=cwd, model=model, thinking=thinking)


def _resolved(spec: AgentSpec, params: ChangeSession) -> tuple[SessionEdit, str | None, tuple[str, str]]:
    """Return what is to be recorded, what was asked where a move goes before a question, and which model and level of
    thinking the conversation has on record then."""
    folder = Path(spec.folder)
    outline = read_session_index(folder)
    change, text, to_be = params.change, None, outline.answers(outline.leaf)
    if isinstance(change, MoveLeaf):
        to = outline.find(change.to, prompt=params.ask_anew) if change.to is not None else None
        if params.ask_anew and to is not None and (text := read_prompt(folder, to)) is not None:
            to = outline.row(to).parent_id
        change = MoveLeaf(
            to, scrub(change.summary) if change.summary else None, change.summarize and not change.summary
        )
        to_be = outline.answers(to)
    elif isinstance(change, SetModel):
        to_be = change.model, to_be[1]
    elif isinstance(change, SetThinking):
        to_be = to_be[0], change.level
    elif isinstance(change, SetLabel):
        change = check_label(outline, change)
    elif isinstance(change, AddMessage) and not change.text.strip():
        raise ConfigError("the message is empty")
    elif isinstance(change, SetMetadata) and not change.custom_type.strip():
        raise ConfigError("custom_type is empty: pass a name to find the entry by")
    elif isinstance(change, SetMetadata) and change.custom_type in OWN:
        raise ConfigError(f"under {change.custom_type!r} sessions have what orch itself keeps: choose another kind")
    return SessionEdit(new_entry_id(outline.lineage.places), change), text, to_be


def _edited(spec: AgentSpec, edit: SessionEdit) -> None:
    transcript = Transcript.open(Path(spec.folder), agent=spec.id, cwd=spec.cwd, durability=spec.durability)
    try:
        transcript.change(edit)
    finally:
        transcript.close()
