"""Agents whose processes have to end before the root works on their files, and end only when they do nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...tree.agents.state import AgentRecord
from ...tree.journal import events

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["AgentBusy", "holders_of", "stop_processes"]

REST_SECONDS = 10.0


class AgentBusy(Exception):
    """Somebody has to end what he does first; the message says who, and what."""


def holders_of(root: Supervisor, owner: AgentRecord) -> list[AgentRecord]:
    """Return the holders of an agent's archives that are in the tree."""
    return [node for node in (root.tree.agents[id] for id in owner.children) if node.is_holder]


async def stop_processes(root: Supervisor, resting: Iterable[AgentRecord], starting: Iterable[AgentRecord]) -> None:
    """Let the agents `resting` go cold, who get no process meanwhile. Raises AgentBusy for one that works.

    Those of `starting` that have just been asked are about to read what would move under them.
    """
    for node in [*resting, *(node for node in starting if node.status == "starting")]:
        if node.pending is not None or node.status in ("starting", "busy"):
            doing = f": {node.pending.head}" if node.pending is not None else ""
            raise AgentBusy(f"{_named(node)} is at work{doing}; wait for it, or cancel it, and try again")
    waiting = {}
    for node in resting:
        if node.running:
            waiting[root.waiters.watch(f"gone:{node.spec.id}:{node.incarnation}")] = node
            root.handle(events.StopIfIdle(node.spec.id))
    try:
        if waiting:
            _, still = await asyncio.wait(waiting, timeout=REST_SECONDS)
            for watcher in still:
                raise AgentBusy(f"the process of {_named(waiting[watcher])} does not end; kill it, and try again")
    finally:
        for watcher in waiting:
            watcher.cancel()


def _named(node: AgentRecord) -> str:
    return f"the holder of {node.spec.id}" if node.is_holder else f"agent {node.spec.name!r} ({node.spec.id})"
