"""Git worktrees of agents: their location, and the changes that agents make in them."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

__all__ = ["Isolation", "WorktreeReport", "WorktreeSpec"]

Isolation: TypeAlias = Literal["worktree"]
"""How an agent is separated from its parent. "worktree": the agent gets its own git worktree and branch."""
MAX_NAMED: Final = 20


class WorktreeSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The worktree of one agent. Paths are absolute and contain no symbolic links.

    - `path`: the top folder of the worktree. `branch`: the branch of the worktree.
    - `top`: the top folder of the work tree where the agent was spawned. A merge changes this work tree. `common`: the
      folder of the repository. `folder`: the working folder that the agent would have without a worktree.
    - `into`: the branch that was checked out in `top`, or "" for a detached HEAD. `base`: the commit of that branch.
    """

    path: str
    branch: str
    top: str
    common: str
    folder: str
    into: str
    base: str


class WorktreeReport(Struct, frozen=True):
    """The changes in an agent's worktree since its branch left the branch `into`. `into` is "" for a detached HEAD.

    - `files`: changed files, as paths relative to the worktree. `uncommitted`: the number of these files with changes
      that are not committed.
    - `commits`: hash and subject of the agent's commits, newest first, at most 100. `diffstat`: output of `git diff
      --stat`.
    - `conflicts`: files that git cannot merge automatically into the current state of `into`.
    - `problem`: why the report is incomplete; "" if the report is complete.
    """

    path: str
    branch: str
    into: str
    files: tuple[str, ...] = ()
    uncommitted: int = 0
    commits: tuple[str, ...] = ()
    diffstat: str = ""
    conflicts: tuple[str, ...] = ()
    problem: str = ""

    def render(self) -> str:
        """Return the report as text."""
        if self.problem:
            return f"worktree {self.path} (branch {self.branch}): {self.problem}"
        if not self.files:
            return f"worktree (branch {self.branch}): no changes"
        counts = f"{_count(len(self.files), 'file')} changed, {_count(len(self.commits), 'commit')}"
        uncommitted = f", {self.uncommitted} uncommitted" if self.uncommitted else ""
        target = self.into or "the detached HEAD"
        more = f" and {len(self.conflicts) - MAX_NAMED} more" if len(self.conflicts) > MAX_NAMED else ""
        conflicts = f"conflicts with {target}: {', '.join(self.conflicts[:MAX_NAMED])}{more}"
        return "\n".join(
            (
                f"worktree (branch {self.branch}): {counts}{uncommitted}",
                *([self.diffstat.rstrip("\n")] if self.diffstat else []),
                conflicts if self.conflicts else f"no conflicts with {target}",
            )
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
