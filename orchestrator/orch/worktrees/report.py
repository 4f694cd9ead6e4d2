"""The changes of an agent in its worktree, compared with the branch from which the agent was spawned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from orch_protocol.core.errors import WorktreeError
from orch_protocol.core.worktrees import WorktreeReport, WorktreeSpec
from orch_worker.tools.shell.git_repository import GitRepository

from .git import Git
from .repository import PrivateRepository, find_repository
from .snapshot import Snapshot, names, open_worktree, snapshot, temporary_index

__all__ = ["compare", "merge_trees", "report", "target_commit", "user_work_tree"]

MAX_COMMITS: Final = 100
STAT: Final = ("--stat=100", "--stat-count=40", "--no-ext-diff", "--no-textconv", "--no-renames")


def report(spec: WorktreeSpec, author: str) -> WorktreeReport:
    """Return the report of a worktree. Does not raise.

    If the report is not complete, its `problem` states the reason.
    """
    try:
        with open_worktree(spec) as worktree, temporary_index(worktree, keep_objects=False) as env:
            target = target_commit(worktree.private, spec)
            return compare(worktree.git, spec, snapshot(worktree, env, author), target, env)
    except WorktreeError as error:
        return WorktreeReport(spec.path, spec.branch, spec.into, problem=str(error))


def target_commit(private: PrivateRepository, spec: WorktreeSpec) -> str:
    """Return the last commit of the branch `into`, or of the user's work tree. Raises WorktreeError."""
    git = private.git if spec.into else private.in_work_tree(user_work_tree(spec))
    if not (commit := git.commit(f"refs/heads/{spec.into}" if spec.into else "HEAD")):
        raise WorktreeError(f"branch {spec.into} does not exist any more")
    return commit


def user_work_tree(spec: WorktreeSpec) -> GitRepository:
    """Return the repository of the work tree in which the agent was spawned.

    Raises WorktreeError if this work tree does not exist.
    """
    found = find_repository(spec.top) if os.path.isdir(spec.top) else None
    if found is None or (found.top, found.common) != (spec.top, spec.common):
        raise WorktreeError(f"{spec.top} is not a work tree of the repository {spec.common} any more")
    return found


def compare(git: Git, spec: WorktreeSpec, shot: Snapshot, target: str, env: Mapping[str, str]) -> WorktreeReport:
    """Return the report of the snapshot `shot` compared with the commit `target`. Raises WorktreeError."""
    base = git.output("merge-base", target, shot.commit, codes=(0, 1), env=env).strip()
    if not base:
        raise WorktreeError(f"{spec.branch} and {spec.into or 'HEAD'} have no common commit any more")
    files = names(git.output("diff-tree", "-r", "-z", "--name-only", "--no-renames", base, shot.commit, env=env))
    log = ("log", "-z", "--no-show-signature", "--format=%h %s", f"--max-count={MAX_COMMITS}")
    return WorktreeReport(
        spec.path,
        spec.branch,
        spec.into,
        files,
        len(shot.uncommitted),
        names(git.output(*log, f"{target}..{shot.head}", env=env)),
        git.output("diff", *STAT, base, shot.commit, env=env) if files else "",
        merge_trees(git, target, shot.commit, env)[1],
    )


def merge_trees(git: Git, target: str, commit: str, env: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the tree of a merge of two commits, and the files that have conflicts. Raises WorktreeError."""
    try:
        output = git.output(
            *("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", target, commit), codes=(0, 1), env=env
        )
    except WorktreeError as error:
        raise WorktreeError(f"{error}; orch needs git 2.38 or newer to merge") from error
    tree, *conflicts = names(output)
    return tree, tuple(dict.fromkeys(conflicts))
