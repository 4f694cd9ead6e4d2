"""Handles requests that workers send to the root.

A task handles each request. When the worker ends, its tasks are canceled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

__all__ = ["WorkerRequests"]


class WorkerRequests:
    """Calls in progress, by agent id and call id.

    If the caller stops waiting, the call is canceled. Otherwise the call could take a reply that another caller needs.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[str, dict[str, asyncio.Task[None]]] = {}

    def start(self, agent_id: str, id: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a task for `work`, which answers the call `id` of the agent."""
        task = self._loop.create_task(work)
        self._tasks.setdefault(agent_id, {})[id] = task
        task.add_done_callback(partial(self._remove_task, agent_id, id))

    def count_active(self, agent_id: str) -> int:
        """Return the number of calls of the agent that are in progress."""
        return len(self._tasks.get(agent_id, ()))

    def cancel(self, agent_id: str, id: str) -> None:
        """Cancel the call `id`, which the agent no longer waits for."""
        if task := self._tasks.get(agent_id, {}).get(id):
            task.cancel()

    def cancel_all(self, agent_id: str | None = None) -> None:
        """Cancel all calls of the agent, or of all agents."""
        for id in [agent_id] if agent_id is not None else self._tasks:
            for task in self._tasks.get(id, {}).values():
                task.cancel()

    def _remove_task(self, agent_id: str, id: str, _: asyncio.Task[None]) -> None:
        tasks = self._tasks[agent_id]
        del tasks[id]
        if not tasks:
            del self._tasks[agent_id]
