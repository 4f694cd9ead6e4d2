"""What agents have at hand: shown from their sessions, and changed between turns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import AmbiguousRefError, ConfigError, EntryNotFoundError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.core.workspace import (
    ChangeWorkspace,
    DropArtifacts,
    PinArtifacts,
    ShowWorkspace,
    Step,
    WorkspaceChanged,
    WorkspaceShown,
    WorkspaceSpec,
)
from orch_protocol.services.resources import CHANGE_WORKSPACE, SHOW_WORKSPACE
from orch_protocol.session.tree import ArrangeArtifacts, SessionEdit

from ...policy.caller import Caller
from ..dispatch.handlers import handles
from ..sessions.sessions import put, session_of

if TYPE_CHECKING:
    from orch_worker.workspace.state import Workspace

    from ...supervisor.supervisor import Supervisor

__all__ = ["change_workspace", "workspace"]

ASKED_FOR = "somebody asked for that"


@handles(SHOW_WORKSPACE)
async def workspace(root: Supervisor, caller: Caller, params: ShowWorkspace) -> WorkspaceShown:
    """Return what an agent has at hand, as its session has it. Raises AgentNotFoundError, StoreError."""
    node = session_of(root, caller, params.ref, "look at", "read")
    return await root.disk.do(_shown, node.spec, params.about, node.running)


@handles(CHANGE_WORKSPACE)
async def change_workspace(root: Supervisor, caller: Caller, params: ChangeWorkspace) -> WorkspaceChanged:
    """Change what an agent has at hand, between turns; it is on record when this returns.

    Raises AgentBusyError while a turn runs, EntryNotFoundError, AmbiguousRefError, ConfigError, StoreError.
    """
    node = session_of(root, caller, params.ref, "arrange the workspace of")
    steps, arranged = await root.disk.do(_resolved, node.spec, params)
    if steps:
        await put(root, node, SessionEdit(new_entry_id(()), ArrangeArtifacts(steps)))
    return arranged


# In threads.


def _read(spec: AgentSpec) -> tuple[Workspace, int]:
    from orch_worker.session.transcript import read_session
    from orch_worker.workspace.state import Workspace

    session = read_session(Path(spec.folder))
    return Workspace.of(session.at_hand), session.turns


def _shown(spec: AgentSpec, about: str | None, running: bool) -> WorkspaceShown:
    from orch_worker.workspace.python_cells import invalidate_unbound
    from orch_worker.workspace.ranking import count_line, rank_artifacts
    from orch_worker.workspace.source_files import changed_artifacts

    there, turns = _read(spec)
    for step in (
        *(() if running else invalidate_unbound(there, {}, 0)),
        *changed_artifacts(Path(spec.cwd), list(there)),
    ):
        there.apply(step)
    if about is not None:
        rows = rank_artifacts(there, about, turns + 1)
    else:
        rows = sorted(there, key=lambda each: (-each.used, -each.turn))
    said = count_line(there) if rows else ""
    return WorkspaceShown(spec.id, turns, tuple(rows), said, spec.workspace is not None)


def _resolved(spec: AgentSpec, params: ChangeWorkspace) -> tuple[tuple[Step, ...], WorkspaceChanged]:
    """Return the steps that do what was asked for, and the full names of what they are about."""
    from orch_worker.workspace.state import artifacts_to_prune

    if not (params.pin or params.unpin or params.drop or params.prune):
        raise ConfigError("nothing to do: name what to pin, unpin or drop, or ask for pruning")
    there, turns = _read(spec)
    pins, unpins, drops = (_found(there, names) for names in (params.pin, params.unpin, params.drop))
    asked = (PinArtifacts(pins), PinArtifacts(unpins, pinned=False), DropArtifacts(drops, ASKED_FOR))
    steps: list[Step] = [step for step in asked if step.names]
    if params.prune:
        rules = spec.workspace or WorkspaceSpec()
        bounds = {"turns": params.turns or rules.prune_turns, "bytes": params.bytes or rules.prune_bytes}
        for step in steps:
            there.apply(step)
        old = artifacts_to_prune(there, turns, **bounds, count=rules.prune_count)
        steps += old
        drops = (*drops, *(name for step in old for name in step.names))
    return tuple(steps), WorkspaceChanged(spec.id, pins, unpins, drops)


def _found(there: Workspace, names: Iterable[str]) -> tuple[str, ...]:
    """Return the full names of what `names` mean. Raises EntryNotFoundError, AmbiguousRefError."""
    from orch_worker.workspace.state import resolve_names

    found = []
    for name in names:
        meant = resolve_names(there, name)
        if not meant:
            raise EntryNotFoundError(
                f"no entry {name[:80]!r} in the workspace; list entries with `orch workspace list`"
            )
        if len(meant) > 1:
            raise AmbiguousRefError(f"{name[:80]!r} may be any of {', '.join(meant)}: write the whole name")
        found += meant
    return tuple(dict.fromkeys(found))
