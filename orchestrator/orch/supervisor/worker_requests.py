"""What workers ask of the root just now, each a task that ends with its asker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

__all__ = ["WorkerRequests"]


class WorkerRequests:
    """Calls under way on the running event loop, by agent and call id.

    One that nobody waits for any more is cancelled: it would take an answer along that somebody else can have.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[str, dict[str, asyncio.Task[None]]] = {}

    def start(self, agent_id: str, id: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which answers the call `id` of the agent."""
        task = self._loop.create_task(work)
        self._tasks.setdefault(agent_id, {})[id] = task
        task.add_done_callback(partial(self._done, agent_id, id))

    def under_way(self, agent_id: str) -> int:
        """Return how many calls of the agent are."""
        return len(self._tasks.get(agent_id, ()))

    def cancel(self, agent_id: str, id: str) -> None:
        """The agent does not wait for the call `id` any more."""
        if task := self._tasks.get(agent_id, {}).get(id):
            task.cancel()

    def cancel_all(self, agent_id: str | None = None) -> None:
        """The agent, or every one, is gone."""
        for id in [agent_id] if agent_id is not None else self._tasks:
            for task in self._tasks.get(id, {}).values():
                task.cancel()

    def _done(self, agent_id: str, id: str, _: asyncio.Task[None]) -> None:
        tasks = self._tasks[agent_id]
        del tasks[id]
        if not tasks:
            del self._tasks[agent_id]
