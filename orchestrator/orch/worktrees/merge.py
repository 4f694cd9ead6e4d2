"""Merges the worktree of an agent into the work tree in which the agent was spawned.

The merge commit is created first, without a work tree. Then a fast-forward moves the work tree to the merge commit. Git
refuses the fast-forward if it would overwrite a file of the user. If the merge fails, or the process is killed before
the last step, nothing has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import WorktreeError
from orch_protocol.core.worktrees import WorktreeReport, WorktreeSpec

from .git import CHECKOUT_SECONDS, Git, unfinished
from .lifecycle import find_worktree
from .report import compare, merge_trees, user_work_tree
from .snapshot import Worktree, identity, open_worktree, snapshot, temporary_index

__all__ = ["merge"]

MAX_NAMED: Final = 10
FORWARD: Final = ("merge", "--quiet", "--ff-only", "--no-autostash")
STATUS: Final = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=dirty")


def merge(spec: WorktreeSpec, author: str) -> tuple[WorktreeReport, str]:
    """Merge the worktree. Return its report and the merge commit. Raises WorktreeError.

    The report describes the worktree before the merge. The commit is "" if there was nothing to merge. A merge fails if
    there is a conflict. A merge also fails if the target has uncommitted changes, is on another branch, or is locked.
    """
    with open_worktree(spec) as worktree, _open_target(worktree) as target:
        git, tip = worktree.git, target.check(spec)
        with temporary_index(worktree, keep_objects=True) as env:
            shot = snapshot(worktree, env, author)
            report = compare(git, spec, shot, tip, env)
            if git.code("merge-base", "--is-ancestor", shot.commit, tip, codes=(0, 1)) == 0:
                return report, ""
            tree, conflicts = merge_trees(git, tip, shot.commit, env)
            if conflicts:
                raise WorktreeError(
                    f"{spec.branch} conflicts with {spec.into or 'HEAD'} in {_listed(conflicts)}: nothing was merged. "
                    f"Let the agent resolve it (git merge {spec.into or tip[:12]} in its worktree), or merge "
                    f"{spec.branch} yourself"
                )
            message, parents = f"Merge work of {author}", ("-p", tip, "-p", shot.commit)
            commit = git.output("commit-tree", tree, *parents, "-m", message, env=identity(git)).strip()
            target.forward(tip, commit)
            with suppress(WorktreeError):  # the changes are merged; the agent continues from its own branch
                git.output("read-tree", "-m", "-u", shot.commit, commit, env=env, seconds=CHECKOUT_SECONDS)
                worktree.move(commit, env["GIT_INDEX_FILE"])
    return report, commit


class _UserTarget(Struct, frozen=True):
    """The user's work tree, as the target of a merge."""

    git: Git

    def check(self, spec: WorktreeSpec) -> str:
        """Return the commit of the work tree. Raises WorktreeError if the work tree cannot be changed safely."""
        self.git.check_unlocked()
        _check_finished(spec, self.git.in_progress())
        _check_branch(spec, self.git.branch())
        _check_clean(spec, self.git.names(*STATUS))
        return self.git.commit("HEAD")

    def forward(self, tip: str, commit: str) -> None:  # noqa: ARG002
        """Move the work tree from `tip` to `commit`. Raises WorktreeError."""
        self.git.output(*FORWARD, commit, seconds=CHECKOUT_SECONDS)


class _AgentTarget(Struct, frozen=True):
    """The worktree of the parent of an agent, as the target of a merge."""

    worktree: Worktree

    def check(self, spec: WorktreeSpec) -> str:
        """Return the commit of the work tree. Raises WorktreeError if the work tree cannot be changed safely."""
        worktree = self.worktree
        if os.path.lexists(lock := os.path.join(worktree.part, "index.lock")):
            raise WorktreeError(
                f"the index of {spec.top} is locked by another git process: wait for it, or remove {lock}"
            )
        with temporary_index(worktree, keep_objects=False) as env:
            _check_finished(spec, unfinished(worktree.part) or worktree.git.in_progress(env))
            if worktree.head is not None:
                _check_branch(spec, worktree.head.ref.removeprefix("refs/heads/"))
            _check_clean(spec, worktree.git.names(*STATUS, env=env))
        return worktree.commit

    def forward(self, tip: str, commit: str) -> None:
        """Move the work tree from `tip` to `commit`. Raises WorktreeError."""
        with temporary_index(self.worktree, keep_objects=True) as env:
            self.worktree.git.output("read-tree", "-m", "-u", tip, commit, env=env, seconds=CHECKOUT_SECONDS)
            self.worktree.move(commit, env["GIT_INDEX_FILE"])


@contextmanager
def _open_target(worktree: Worktree) -> Iterator[_UserTarget | _AgentTarget]:
    """Yield the work tree in which the agent was spawned. Raises WorktreeError if it does not exist any more."""
    spec = worktree.spec
    if (above := find_worktree(spec.top, os.path.dirname(spec.path))) is not None:
        with open_worktree(above) as parent:
            yield _AgentTarget(parent)
    else:
        yield _UserTarget(worktree.private.in_work_tree(user_work_tree(spec)))


def _check_finished(spec: WorktreeSpec, doing: str) -> None:
    if doing:
        raise WorktreeError(f"a {doing} is unfinished in {spec.top}: finish or abort it first")


def _check_branch(spec: WorktreeSpec, now: str) -> None:
    if now != spec.into:
        called = [f"branch {name}" if name else "a detached HEAD" for name in (now, spec.into)]
        raise WorktreeError(
            f"{spec.top} is on {called[0]}, and the agent started from {called[1]}: check out {called[1]} first, or "
            f"merge {spec.branch} yourself"
        )


def _check_clean(spec: WorktreeSpec, status: list[str]) -> None:
    if dirty := [entry[3:] for entry in status]:
        raise WorktreeError(f"{spec.top} has uncommitted changes in {_listed(dirty)}: commit or stash them first")


def _listed(files: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(files) - MAX_NAMED} more" if len(files) > MAX_NAMED else ""
    return ", ".join(files[:MAX_NAMED]) + more
