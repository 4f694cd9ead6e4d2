"""Deleting for good what nobody needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from orch_protocol.services import Prune, Pruned
from orch_protocol.sessions import PrunedSessions, PruneSessions

if TYPE_CHECKING:
    from .aio import AsyncOrchestrator

__all__ = ["Prunable"]


class Prunable:
    """An orchestrator whose old archives and sessions can be deleted."""

    async def prune_archives(
        self, *, older: float | str, ref: str | int | None = None, dry_run: bool = False
    ) -> Pruned:
        """Delete for good what was archived longer ago than `older` (seconds, or a text such as "30d"): of the agent
        `ref` and those below it, None: of all. With `dry_run` only tell what would go.

        Agents that idle go cold for it; one that works keeps its archives, and is told of in `busy`. Raises
        ConfigError, StoreError.
        """
        asked = Prune(older, None if ref is None else str(ref), dry_run)
        pruned: Pruned = await cast("AsyncOrchestrator", self)._call("prune", asked)
        return pruned

    async def prune_sessions(
        self, *, older: float | str, keep: int = 0, idle: bool = False, dry_run: bool = False
    ) -> PrunedSessions:
        """Delete for good the sessions of agents that were killed, or never came up, and that nobody touched for longer
        than `older` (seconds, or a text such as "30d"); the `keep` of these that were active last stay. With
        `idle` also of those that nobody ended and nobody asked for as long, which have no process: they are killed.

        One below which something is not over stays, too. With `dry_run` only tell what would go. The agents keep their
        numbers and what they used; whoever asks for more of them gets a SessionDeletedError. Raises ConfigError,
        StoreError.
        """
        pruned: PrunedSessions = await cast("AsyncOrchestrator", self)._call(
            "prune_sessions", PruneSessions(older, keep, dry_run, idle)
        )
        return pruned
