"""Merges the worktree of an agent into the work tree in which the agent was spawned.

The merge commit is created first, without a work tree. Then a fast-forward moves the work tree to the merge commit. Git
refuses the fast-forward if it would overwrite a file of the user. If the merge fails, or the process is killed before
the last step, nothing has changed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from orch_protocol.core.errors import WorktreeError
from orch_protocol.core.worktrees import WorktreeReport, WorktreeSpec

from .git import CHECKOUT_SECONDS, Git
from .report import compare, merge_trees
from .snapshot import Snapshot, identity, names, parent_git, snapshot, temporary_index, worktree_git

__all__ = ["merge"]

MAX_NAMED: Final = 10
FORWARD: Final = ("merge", "--quiet", "--ff-only", "--no-autostash")


def merge(spec: WorktreeSpec, author: str) -> tuple[WorktreeReport, str]:
    """Merge the worktree. Return its report and the merge commit. Raises WorktreeError.

    The report describes the worktree before the merge. The commit is "" if there was nothing to merge. A merge fails if
    there is a conflict. A merge also fails if the target has uncommitted changes, is on another branch, or is locked.
    """
    git, target = worktree_git(spec), parent_git(spec)
    tip = _check_target(target, spec)
    with temporary_index(git, os.path.dirname(spec.path), keep_objects=True) as env:
        shot = snapshot(git, env, author)
        report = compare(git, spec, shot, tip, env)
        if git.code("merge-base", "--is-ancestor", shot.commit, tip, codes=(0, 1)) == 0:
            return report, ""
        tree, conflicts = merge_trees(git, tip, shot.commit, env)
    if conflicts:
        raise WorktreeError(
            f"{spec.branch} conflicts with {spec.into or 'HEAD'} in {_listed(conflicts)}: nothing was merged. Let the "
            f"agent resolve it (git merge {spec.into or tip[:12]} in its worktree), or merge {spec.branch} yourself"
        )
    message = f"Merge work of {author}"
    parents = ("-p", tip, "-p", shot.commit)
    commit = target.output("commit-tree", tree, *parents, "-m", message, env=identity(target)).strip()
    target.output(*FORWARD, commit, seconds=CHECKOUT_SECONDS)
    with suppress(WorktreeError):  # the changes are merged; the agent continues from its own branch
        _catch_up(git, shot, commit)
    return report, commit


def _check_target(target: Git, spec: WorktreeSpec) -> str:
    """Return the commit of the work tree to merge into.

    Raises WorktreeError if the work tree cannot be changed safely.
    """
    target.check_unlocked()
    if doing := target.in_progress():
        raise WorktreeError(f"a {doing} is unfinished in {spec.top}: finish or abort it first")
    if (now := target.branch()) != spec.into:
        called = [f"branch {name}" if name else "a detached HEAD" for name in (now, spec.into)]
        raise WorktreeError(
            f"{spec.top} is on {called[0]}, and the agent started from {called[1]}: check out {called[1]} first, or "
            f"merge {spec.branch} yourself"
        )
    status = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=dirty")
    if dirty := [entry[3:] for entry in names(target.output(*status))]:
        raise WorktreeError(f"{spec.top} has uncommitted changes in {_listed(dirty)}: commit or stash them first")
    return target.commit("HEAD")


def _catch_up(git: Git, shot: Snapshot, commit: str) -> None:
    """Move the worktree to the merge commit, so that the agent continues from this commit."""
    git.output("reset", "--quiet", "--mixed", shot.commit)
    git.output(*FORWARD, commit, seconds=CHECKOUT_SECONDS)


def _listed(files: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(files) - MAX_NAMED} more" if len(files) > MAX_NAMED else ""
    return ", ".join(files[:MAX_NAMED]) + more
