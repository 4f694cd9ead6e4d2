"""Services that show session trees, and change sessions between turns."""

from __future__ import annotations

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
from orch_protocol.services.sessions.sessions import (
    CHANGE_SESSION,
    LIST_SESSION_METADATA,
    SHOW_SESSION,
    ChangeSession,
    ListMetadata,
    SessionChanged,
    SessionMetadata,
    SessionTree,
    ShowSession,
)
from orch_protocol.session.entries import Custom
from orch_protocol.session.tree import (
    AddMessage,
    MoveLeaf,
    SessionEdit,
    SetLabel,
    SetMetadata,
    SetModel,
    SetThinking,
    SetTitle,
)
from orch_protocol.wire.worker_messages import BranchSummarized, SummarizeBranch
from orch_worker.agent.model_selection import model_of
from orch_worker.context.branch_summary import extract_branch_summary, left_behind
from orch_worker.context.summarizer import writer_of
from orch_worker.session.session_index import read_prompt, read_session_index
from orch_worker.session.session_reader import read_session
from orch_worker.session.transcript import Transcript

from ...policy.caller import AgentCaller, Caller, Scope
from ...sessions.stored import check_label, read_tree
from ...tree.agents.state import AgentRecord
from ...tree.interface import events
from ...tree.interface.events import BOOT_SECONDS
from ...tree.interface.topics import ExitTopic, ReadyTopic
from ..agents.processes import request_worker, start_process
from ..checks.reach import find_agent
from ..dispatch.handlers import handles
from ..models import model_selection

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["change_session", "check_idle", "list_metadata", "record_edit", "session", "session_of"]

SUMMARY_TIMEOUT_SECONDS: Final = 100.0
EDIT_SECONDS: Final = 30.0
"""Time limit of a change. After going back, a process reads its whole file again, which can take seconds."""
RESERVED_TYPES: Final = frozenset({WORKSPACE, SKILL_READ, ACTED})
"""Types of the metadata that orch itself writes to sessions."""


@handles(SHOW_SESSION)
async def session(root: Supervisor, caller: Caller, params: ShowSession) -> SessionTree:
    """Return a session tree.

    The tree is read from the session file. Raises AgentNotFoundError, AmbiguousRefError, StoreError.
    """
    node = session_of(root, caller, params.ref, "look at", "read")
    return await root.disk.do(_session_tree, node.spec, node.model, params.limit)


@handles(LIST_SESSION_METADATA)
async def list_metadata(root: Supervisor, caller: Caller, params: ListMetadata) -> list[SessionMetadata]:
    """Return the metadata entries on the current branch of a session, in order."""
    node = session_of(root, caller, params.ref, "look at", "read")
    return await root.disk.do(_read_metadata, Path(node.spec.folder), params.custom_type)


@handles(CHANGE_SESSION)
async def change_session(root: Supervisor, caller: Caller, params: ChangeSession) -> SessionChanged:
    """Change a session between turns. The change is recorded when the call returns, even if the caller stopped waiting.

    Raises AgentBusyError while a turn runs. Raises EntryNotFoundError, AmbiguousRefError, ConfigError, StoreError.
    """
    node = session_of(root, caller, params.ref, "change sessions of")
    check_idle(node)
    old_spec = node.spec
    if isinstance(params.change, SetModel):
        params = replace(
            params, change=SetModel(await model_selection.qualified_model(root, node.spec, params.change.model))
        )
    edit, text, recorded = await root.disk.do(_resolve_change, node.spec, params)
    branch_summary: BranchSummarized | None = None
    if isinstance(edit.change, MoveLeaf) and edit.change.summarize:
        branch_summary = await _summarize_branch(root, node, edit.change.to)
        edit = SessionEdit(edit.entry, MoveLeaf(edit.change.to, branch_summary.text or None))
    notice: str | None = None
    changes_model, chosen_by_user = (
        isinstance(edit.change, SetModel | SetThinking),
        isinstance(edit.change, SetModel) and caller.is_user,
    )
    moved = isinstance(edit.change, MoveLeaf) and not model_selection.matches_session(node.spec, *recorded)
    if changes_model or moved:
        try:
            new_model = await model_selection.resolve_recorded_model(
                root, node.spec, *recorded, chosen_by_user=chosen_by_user
            )
        except ConfigError:
            if changes_model:
                raise
            # Going back is allowed. The next query reports why the recorded model is not available.
        else:
            notice = model_selection.effective_thinking(new_model, required=isinstance(edit.change, SetThinking))
            await model_selection.stop_for_model_change(root, node, new_model)
            edit = replace(edit, answers=new_model)
    await root.steps.run(_apply(root, node, edit, old_spec))
    summary = branch_summary.text or None if branch_summary is not None else None
    model = model_of(edit.answers.backend) if edit.answers is not None else None
    return SessionChanged(
        node.spec.id, edit.entry, text, summary, branch_summary is not None and branch_summary.by_model, model, notice
    )


def session_of(root: Supervisor, caller: Caller, ref: str, action: str, scope: Scope = "control") -> AgentRecord:
    """Return the agent that the reference `ref` means for `caller`.

    Raises AgentError. Raises ConfigError for a holder.
    """
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
            f"agent {node.spec.name!r} ({node.spec.id}) is busy with: {node.pending.head}; its session changes only "
            "between turns: wait for the turn, or cancel it"
        )


async def _apply(root: Supervisor, node: AgentRecord, edit: SessionEdit, old_spec: AgentSpec) -> None:
    await record_edit(root, node, edit)
    if isinstance(edit.change, SetTitle):
        root.handle(events.ChangeTitle(node.spec.id, edit.change.name or ""))
    if edit.answers is None:
        return
    if node.spec == old_spec:
        model_selection.apply_model(root, node, edit.answers)
        return
    # The agent was changed while the edit was recorded, for example to local models only.
    with contextlib.suppress(ConfigError, StoreError):  # the next query reports the error
        await model_selection.resolve_model(root, AgentCaller(node.spec.id), Empty())


async def record_edit(root: Supervisor, node: AgentRecord, edit: SessionEdit) -> None:
    """Record `edit` in the session.

    The agent's process records the edit. If there is no process, the root records the edit. An unconfirmed attempt may
    be repeated, because each attempt writes the same entry. Raises AgentBusyError while a turn runs. Raises StoreError.
    """
    id = node.spec.id
    while True:
        check_idle(node)
        exit_topic = ExitTopic(id, node.incarnation)
        if not node.running:
            async with root.holds.lock:
                if node.running:
                    continue  # a query has just arrived
                with root.holds.hold(id):
                    await root.disk.do(_write_edit, node.spec, edit)
            return
        if node.status == "starting":
            await root.waiters.until(ReadyTopic(id), BOOT_SECONDS)
        elif node.stopping:
            await root.waiters.until(exit_topic, EDIT_SECONDS)
        elif (result := await request_worker(root, node, "edit", edit, edit.entry, "edited", EDIT_SECONDS)) is not None:
            if result.context_tokens:
                root.handle(events.RecordArchives(id, (), result.context_tokens))
            return


async def _summarize_branch(root: Supervisor, node: AgentRecord, to: str | None) -> BranchSummarized:
    """Return a summary of the branch that the conversation leaves when it goes back to the entry `to`.

    The agent's process asks the model for the summary. If there is no process, a process is started. If the request
    fails or the agent has no model, the summary is extracted from prompts and replies.
    """
    spec = node.spec
    if writer_of(spec.backend) is not None:
        with contextlib.suppress(OrchError):  # the agent is killed, or no process can be started
            await start_process(root, node)
            request = SummarizeBranch(to, root.budgets.kinds_for(spec.id))
            summary = await request_worker(
                root, node, "sum_up", request, new_entry_id(()), "summed", SUMMARY_TIMEOUT_SECONDS
            )
            if summary is not None:
                root.handle(events.RecordUsage(spec.id, summary.usage))
                return cast("BranchSummarized", summary)
    return await root.disk.do(_extract_summary, Path(spec.folder), to)


# The functions below run in threads.


def _extract_summary(folder: Path, to: str | None) -> BranchSummarized:
    return BranchSummarized(extract_branch_summary(left_behind(read_session(folder), to)).text)


def _read_metadata(folder: Path, kind: str | None) -> list[SessionMetadata]:
    return [
        SessionMetadata(entry.id, entry.timestamp, entry.custom_type, entry.data)
        for entry in read_session(folder).entries
        if isinstance(entry, Custom) and (entry.custom_type == kind or (kind is None and entry.custom_type != ACTED))
    ]


def _session_tree(spec: AgentSpec, model: str, limit: int | None) -> SessionTree:
    tree = read_tree(Path(spec.folder), limit)
    recorded = tree.model, tree.thinking
    if model_selection.matches_session(spec, *recorded):
        thinking = (
            spec.backend.thinking
            if model_selection.effective_thinking(RecordModel(spec.backend, ""), required=False)
            else ""
        )
    else:  # the next query uses the recorded model, or fails with the reason
        initial = spec.born or spec.backend
        model, thinking = recorded[0] or model_of(initial), recorded[1] or initial.thinking
    cwd = tree.cwd or spec.cwd
    return replace(tree, id=spec.id, name=spec.name, folder=spec.folder, cwd=cwd, model=model, thinking=thinking)


def _resolve_change(spec: AgentSpec, params: ChangeSession) -> tuple[SessionEdit, str | None, tuple[str, str]]:
    """Return the change to record, the text of a prompt, and the model and reasoning effort after the change.

    If the change goes back to the entry before a prompt, the text is the text of this prompt. For all other changes,
    the text is None.
    """
    folder = Path(spec.folder)
    outline = read_session_index(folder)
    change, text, recorded = params.change, None, outline.model_at(outline.leaf)
    if isinstance(change, MoveLeaf):
        to = outline.find(change.to, prompt=params.ask_anew) if change.to is not None else None
        if params.ask_anew and to is not None and (text := read_prompt(folder, to)) is not None:
            to = outline.row(to).parent_id
        change = MoveLeaf(
            to, scrub(change.summary) if change.summary else None, change.summarize and not change.summary
        )
        recorded = outline.model_at(to)
    elif isinstance(change, SetModel):
        recorded = change.model, recorded[1]
    elif isinstance(change, SetThinking):
        recorded = recorded[0], change.level
    elif isinstance(change, SetLabel):
        change = check_label(outline, change)
    elif isinstance(change, AddMessage) and not change.text.strip():
        raise ConfigError("the message is empty")
    elif isinstance(change, SetMetadata) and not change.custom_type.strip():
        raise ConfigError("custom_type is empty: pass a name for the kind of entry")
    elif isinstance(change, SetMetadata) and change.custom_type in RESERVED_TYPES:
        raise ConfigError(f"kind {change.custom_type!r} is reserved for metadata of orch: choose another kind")
    return SessionEdit(new_entry_id(outline.lineage.places), change), text, recorded


def _write_edit(spec: AgentSpec, edit: SessionEdit) -> None:
    transcript = Transcript.open(Path(spec.folder), agent=spec.id, cwd=spec.cwd, durability=spec.durability)
    try:
        transcript.change(edit)
    finally:
        transcript.close()
