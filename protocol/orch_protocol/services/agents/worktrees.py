"""The service that merges the worktree of an agent."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...core.worktrees import WorktreeReport
from ..service import USERS_ONLY, Service

__all__ = ["MERGE", "MergeAgent", "Merged"]


class MergeAgent(Struct, frozen=True, forbid_unknown_fields=True):
    """Merge the worktree of the agent `ref` into the work tree where the agent was spawned.

    If `dry_run` is True, nothing is changed, and the result is the report.
    """

    ref: str
    dry_run: bool = False


class Merged(Struct, frozen=True):
    """The changes of agent `id`. `commit` is the merge commit, or "" if nothing was merged. `text` is for people."""

    id: str
    report: WorktreeReport
    commit: str = ""
    text: str = ""


MERGE: Final = Service("merge", MergeAgent, Merged, USERS_ONLY, "Merge the worktree of an agent.")
