"""Worktrees of agents.

A spawn creates a worktree, replies report it, the user merges it, and unchanged ones are removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import AgentBusyError, ConfigError, OrchError, SpawnError, WorktreeError
from orch_protocol.core.messages import Reply
from orch_protocol.core.worktrees import WorktreeReport, WorktreeSpec
from orch_protocol.services.agents.worktrees import MERGE, MergeAgent, Merged
from orch_worker.policy.taint import copy_file_taint, labels_file

from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord
from ...worktrees.agent_spec import check_readable, in_worktree
from ...worktrees.lifecycle import create, remove_if_clean, restore
from ...worktrees.merge import merge
from ...worktrees.report import report
from ...worktrees.repository import check_links
from ...worktrees.snapshot import commit_of
from ..checks.idle import AgentBusy, check_not_busy
from ..checks.reach import find_agent
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = [
    "fork_worktree",
    "in_restored_worktree",
    "isolate_agent",
    "merge_worktree",
    "remove_worktrees",
    "with_report",
]

REPORT_SECONDS = 60.0
ENDED = ("killed", "failed")


@handles(MERGE)
async def merge_worktree(root: Supervisor, caller: Caller, params: MergeAgent) -> Merged:
    """Merge the worktree of an agent.

    Raises AgentBusyError or WorktreeError; in both cases no work tree was changed.

    If the caller stops waiting, the merge continues.
    """
    node = find_agent(root, caller, params.ref, "merge")
    spec, id = node.spec.worktree, node.spec.id
    if spec is None:
        raise WorktreeError(f"agent {node.spec.name!r} ({id}) has no worktree: spawn it with isolation='worktree'")
    if params.dry_run:
        changes = await _report(root, node.spec, spec)
        return Merged(id, changes, text=changes.render())
    changes, commit = await root.steps.run(_merge(root, node, spec))
    result_text = f"merged into {spec.into or 'the detached HEAD'} as {commit[:12]}" if commit else "nothing to merge"
    return Merged(id, changes, commit, f"{changes.render()}\n{result_text}" if commit else result_text)


async def _merge(root: Supervisor, node: AgentRecord, spec: WorktreeSpec) -> tuple[WorktreeReport, str]:
    async with root.holds.lock:
        try:
            check_not_busy([node, *_agents_in_worktree(root, node, spec)])
        except AgentBusy as error:
            raise AgentBusyError(str(error)) from None
        merged = await root.disk.do(merge, spec, node.spec.name)
        if merged[1]:
            await _copy_labels(root, node.spec, (spec.path, spec.top), (spec.top, spec.path))
    if node.status == "killed":
        await remove_worktrees(root, (node.spec,))
    return merged


def _agents_in_worktree(root: Supervisor, node: AgentRecord, spec: WorktreeSpec) -> list[AgentRecord]:
    """Return the descendants of `node` that work in the worktree of `node`."""
    descendants = root.tree.agents.subtree(node.spec.id)[:-1]
    return [each for each in descendants if not each.is_holder and Path(each.spec.cwd).is_relative_to(spec.path)]


async def isolate_agent(
    root: Supervisor, spec: AgentSpec, commit: str = "", *, for_agent: bool = False
) -> tuple[AgentSpec, str]:
    """Return `spec` with a new worktree of the repository that contains its folder, and a note. Raises SpawnError.

    If an agent asks for the worktree (`for_agent`), the agent must be allowed to read the repository. If the call is
    canceled, the worktree is removed when git has created it.
    """
    creating = root.steps.start(_create_worktree(root, spec, commit, for_agent=for_agent))
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        # If git was ended instead, it would leave an incomplete worktree.
        await root.steps.undo(_remove_created(root, creating))
        raise


async def _remove_created(root: Supervisor, creating: Awaitable[tuple[AgentSpec, str]]) -> None:
    with suppress(OrchError):
        spec, _ = await creating
        await remove_worktrees(root, (spec,))


async def _create_worktree(root: Supervisor, spec: AgentSpec, commit: str, *, for_agent: bool) -> tuple[AgentSpec, str]:
    run = root.run_events.path.parent
    check = partial(check_readable, spec) if for_agent else check_links
    try:
        worktree, cwd, note = await root.disk.do(create, spec.cwd, run, spec.id, commit, check)
    except WorktreeError as error:
        raise SpawnError(f"cannot create a worktree: {error}") from error
    sources = (worktree.top, *([spec.worktree.path] if spec.worktree is not None else []))
    isolated_spec = in_worktree(spec, worktree, cwd)
    granted = {*isolated_spec.sandbox.read} - {*spec.sandbox.read, worktree.path}
    try:
        if for_agent:
            await root.disk.do(check_readable, spec, worktree.common, granted)
        await _copy_labels(root, spec, *((source, worktree.path) for source in sources))
    except WorktreeError as error:
        await remove_worktrees(root, (isolated_spec,))
        raise SpawnError(f"cannot create a worktree: {error}") from error
    except BaseException:
        await remove_worktrees(root, (isolated_spec,))
        raise
    return isolated_spec, note


async def fork_worktree(root: Supervisor, source: AgentSpec, copy: AgentSpec) -> AgentSpec:
    """Return `copy`, the spec of a fork, with a new worktree. The worktree contains the current files of `source`."""
    if source.worktree is None:
        return copy
    commit = await root.disk.do(commit_of, source.worktree, source.name)
    spec, _ = await isolate_agent(root, replace(copy, cwd=source.worktree.folder), commit)
    return spec


async def with_report(root: Supervisor, node: AgentRecord, reply: Reply) -> Reply:
    """Return `reply`. If the agent has a worktree, add a report of the worktree."""
    spec = node.spec.worktree
    return reply if spec is None else replace(reply, worktree=await _report(root, node.spec, spec))


async def remove_worktrees(root: Supervisor, specs: Iterable[AgentSpec]) -> None:
    """Remove the worktrees of agents that have ended. Worktrees with changes are kept."""
    if with_worktree := [spec for spec in specs if spec.worktree is not None]:
        await root.steps.run(_remove(root, with_worktree))


async def _remove(root: Supervisor, specs: Iterable[AgentSpec]) -> None:
    for spec in specs:
        async with root.holds.worktrees:
            node = root.tree.agents.get(spec.id)
            if spec.worktree is not None and (node is None or node.status in ENDED):  # it may have been resumed
                with suppress(OrchError):  # a worktree that cannot be examined stays, and fsck reports it
                    await root.disk.do(remove_if_clean, spec.worktree)


async def in_restored_worktree(root: Supervisor, node: AgentRecord, resume: Callable[[], None]) -> None:
    """Call `resume`, which makes the agent usable. If the worktree of the agent was removed, create it again first.

    If the caller stops waiting, the agent is resumed nevertheless. Raises WorktreeError, StoreError.
    """
    if node.spec.worktree is None:
        resume()
    else:
        await root.steps.run(_restore_and_resume(root, node.spec.worktree, resume))


async def _restore_and_resume(root: Supervisor, worktree: WorktreeSpec, resume: Callable[[], None]) -> None:
    async with root.holds.worktrees:
        await root.disk.do(restore, worktree)
        resume()


async def _copy_labels(root: Supervisor, spec: AgentSpec, *folders: tuple[str, str]) -> None:
    """Copy the taint labels of files between folders. `folders` contains pairs of a source folder and a target folder.

    Labels are added to the files with the same relative paths. Raises StoreError.
    """
    record = labels_file(Path(spec.folder))
    for source, target in folders:
        with suppress(ConfigError):  # if the labels cannot be read, every file counts as untrusted
            await root.disk.do(copy_file_taint, record, source, target)


async def _report(root: Supervisor, spec: AgentSpec, worktree: WorktreeSpec) -> WorktreeReport:
    try:
        async with asyncio.timeout(REPORT_SECONDS):
            return await root.disk.do(report, worktree, spec.name)
    except TimeoutError:
        timeout_text = f"git did not report the changes within {REPORT_SECONDS:g} s"
        return WorktreeReport(worktree.path, worktree.branch, worktree.into, problem=timeout_text)
