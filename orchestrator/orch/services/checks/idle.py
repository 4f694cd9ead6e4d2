"""Stops the processes of idle agents before the root changes their files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...tree.agents.state import AgentRecord
from ...tree.interface import events
from ...tree.interface.topics import ExitTopic

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["AgentBusy", "check_not_busy", "holders_of", "stop_processes"]

STOP_TIMEOUT_SECONDS = 10.0


class AgentBusy(Exception):
    """An agent is busy and its process cannot be stopped; the message names the agent and its query."""


def holders_of(root: Supervisor, owner: AgentRecord) -> list[AgentRecord]:
    """Return the holders of an agent's archives that are in the tree."""
    return [node for node in (root.tree.agents[id] for id in owner.children) if node.is_holder]


def check_not_busy(nodes: Iterable[AgentRecord]) -> None:
    """Raise AgentBusy if one of the agents has a query or has a process that is starting."""
    for node in nodes:
        if node.pending is not None or node.status in ("starting", "busy"):
            task_text = f": {node.pending.head}" if node.pending is not None else ""
            raise AgentBusy(f"{_describe(node)} is at work{task_text}; wait for it, or cancel it, and try again")


async def stop_processes(root: Supervisor, nodes: Iterable[AgentRecord], starting: Iterable[AgentRecord]) -> None:
    """Stop the processes of the idle agents `nodes`. Raises AgentBusy if one of them is busy.

    Also raises AgentBusy if a process of an agent in `starting` is about to start, because that process will read the
    files.
    """
    check_not_busy([*nodes, *(node for node in starting if node.status == "starting")])
    exits = {}
    for node in nodes:
        if node.running:
            exits[root.waiters.watch(ExitTopic(node.spec.id, node.incarnation))] = node
            root.handle(events.StopIfIdle(node.spec.id))
    try:
        if exits:
            _, running = await asyncio.wait(exits, timeout=STOP_TIMEOUT_SECONDS)
            for watcher in running:
                raise AgentBusy(f"the process of {_describe(exits[watcher])} does not end: kill the agent, then retry")
    finally:
        for watcher in exits:
            watcher.cancel()


def _describe(node: AgentRecord) -> str:
    return f"the holder of {node.spec.id}" if node.is_holder else f"agent {node.spec.name!r} ({node.spec.id})"
