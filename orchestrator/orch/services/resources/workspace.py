"""Services that show and change the workspace of an agent."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import AmbiguousRefError, ConfigError, EntryNotFoundError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.core.workspace import DropArtifacts, PinArtifacts, Step, WorkspaceSpec
from orch_protocol.services.resources.workspace import (
    CHANGE_WORKSPACE,
    SHOW_WORKSPACE,
    ChangeWorkspace,
    ShowWorkspace,
    WorkspaceChanged,
    WorkspaceShown,
)
from orch_protocol.session.tree import ChangeArtifacts, SessionEdit

from ...policy.caller import Caller
from ..dispatch.handlers import handles
from ..sessions.sessions import record_edit, session_of

if TYPE_CHECKING:
    from orch_worker.workspace.state import Workspace

    from ...supervisor.supervisor import Supervisor

__all__ = ["change_workspace", "workspace"]

USER_REASON = "requested by the user"


@handles(SHOW_WORKSPACE)
async def workspace(root: Supervisor, caller: Caller, params: ShowWorkspace) -> WorkspaceShown:
    """Return the workspace of an agent, read from its session. Raises AgentNotFoundError, StoreError."""
    node = session_of(root, caller, params.ref, "look at", "read")
    return await root.disk.do(_describe_workspace, node.spec, params.about, node.running)


@handles(CHANGE_WORKSPACE)
async def change_workspace(root: Supervisor, caller: Caller, params: ChangeWorkspace) -> WorkspaceChanged:
    """Change the workspace of an agent between turns. The change is recorded when the call returns.

    Raises AgentBusyError while a turn runs. Raises EntryNotFoundError, AmbiguousRefError, ConfigError, StoreError.
    """
    node = session_of(root, caller, params.ref, "arrange the workspace of")
    steps, result = await root.disk.do(_plan_changes, node.spec, params)
    if steps:
        await record_edit(root, node, SessionEdit(new_entry_id(()), ChangeArtifacts(steps)))
    return result


# The functions below run in threads.


def _read_workspace(spec: AgentSpec) -> tuple[Workspace, int]:
    from orch_worker.session.session_reader import read_session
    from orch_worker.workspace.state import Workspace

    session = read_session(Path(spec.folder))
    return Workspace.of(session.workspace_data), session.turns


def _describe_workspace(spec: AgentSpec, topic: str | None, running: bool) -> WorkspaceShown:
    from orch_worker.workspace.python_cells import invalidate_unbound
    from orch_worker.workspace.ranking import count_line, rank_artifacts
    from orch_worker.workspace.source_files import changed_artifacts

    artifacts, turns = _read_workspace(spec)
    for step in (
        *(() if running else invalidate_unbound(artifacts, {}, 0)),
        *changed_artifacts(Path(spec.cwd), list(artifacts)),
    ):
        artifacts.apply(step)
    if topic is not None:
        rows = rank_artifacts(artifacts, topic, turns + 1)
    else:
        rows = sorted(artifacts, key=lambda each: (-each.used, -each.turn))
    summary = count_line(artifacts) if rows else ""
    return WorkspaceShown(spec.id, turns, tuple(rows), summary, spec.workspace is not None)


def _plan_changes(spec: AgentSpec, params: ChangeWorkspace) -> tuple[tuple[Step, ...], WorkspaceChanged]:
    """Return the requested steps, and the full names of the objects that they change."""
    from orch_worker.workspace.state import artifacts_to_prune

    if not (params.pin or params.unpin or params.drop or params.prune):
        raise ConfigError("no change requested: pass names to pin, unpin or drop, or request pruning")
    artifacts, turns = _read_workspace(spec)
    pins, unpins, drops = (_resolve_all(artifacts, names) for names in (params.pin, params.unpin, params.drop))
    requested = (PinArtifacts(pins), PinArtifacts(unpins, pinned=False), DropArtifacts(drops, USER_REASON))
    steps: list[Step] = [step for step in requested if step.names]
    if params.prune:
        rules = spec.workspace or WorkspaceSpec()
        limits = {"turns": params.turns or rules.prune_turns, "bytes": params.bytes or rules.prune_bytes}
        for step in steps:
            artifacts.apply(step)
        prune_steps = artifacts_to_prune(artifacts, turns, **limits, count=rules.prune_count)
        steps += prune_steps
        drops = (*drops, *(name for step in prune_steps for name in step.names))
    return tuple(steps), WorkspaceChanged(spec.id, pins, unpins, drops)


def _resolve_all(artifacts: Workspace, names: Iterable[str]) -> tuple[str, ...]:
    """Return the full names of the objects that `names` refers to. Raises EntryNotFoundError, AmbiguousRefError."""
    from orch_worker.workspace.state import resolve_names

    found = []
    for name in names:
        matches = resolve_names(artifacts, name)
        if not matches:
            raise EntryNotFoundError(
                f"no entry {name[:80]!r} in the workspace; list entries with `orch workspace list`"
            )
        if len(matches) > 1:
            raise AmbiguousRefError(f"{name[:80]!r} is ambiguous: {', '.join(matches)}. Write the whole name")
        found += matches
    return tuple(dict.fromkeys(found))
