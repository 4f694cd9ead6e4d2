"""The queue of requests that need a process while the maximum number of agents is alive.

A request gets a place when an agent becomes idle or ends. Requests get places in the order in which they arrived.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from orch_protocol.core.errors import ConcurrencyLimitError

from ..tree.interface.topics import RunEventTopic
from ..tree.rules.admission import check_dead_end
from .timing.query_deadlines import PATIENCE_SECONDS

if TYPE_CHECKING:
    from .supervisor import Supervisor

__all__ = ["PlaceQueue"]

R = TypeVar("R")


class _Ticket:
    """A request in the queue. `asker` is the agent that waits, None for the user."""

    __slots__ = ("asker", "is_first")

    def __init__(self, asker: str | None) -> None:
        self.asker = asker
        self.is_first = asyncio.Event()


class PlaceQueue:
    """The waiting requests of one root, in order."""

    def __init__(self) -> None:
        self._tickets: deque[_Ticket] = deque()

    def __len__(self) -> int:
        return len(self._tickets)

    async def request(self, root: Supervisor, asker: str | None, send: Callable[[], R], *, needs: bool = True) -> R:
        """Call `send` as soon as a process may start, and return its result. The call may be immediate.

        If `needs` is False, `send` needs no process and is called at once. Raises the errors of `send`. Raises
        ConcurrencyLimitError if no agent can become idle, or if no agent becomes idle within the longest time limit
        of a turn.
        """
        if not needs:
            return send()
        if not self._tickets:
            try:
                return send()
            except ConcurrencyLimitError:
                if not root.tree.is_full:
                    raise
        ticket = _Ticket(asker)
        self._check_dead_end(root, ticket)
        self._tickets.append(ticket)
        try:
            if self._tickets[0] is not ticket:
                await ticket.is_first.wait()
            return await self._first(root, ticket, send)
        finally:
            was_first = self._tickets[0] is ticket
            self._tickets.remove(ticket)
            if was_first and self._tickets:
                self._tickets[0].is_first.set()

    async def _first(self, root: Supervisor, ticket: _Ticket, send: Callable[[], R]) -> R:
        loop = asyncio.get_running_loop()
        seconds = max((agent.spec.limits.turn_seconds for agent in root.tree.agents.alive.values()), default=0.0)
        deadline = loop.time() + seconds + PATIENCE_SECONDS
        while True:
            try:
                return send()
            except ConcurrencyLimitError:
                if not root.tree.is_full or loop.time() >= deadline:
                    raise
            self._check_dead_end(root, ticket)
            try:
                await root.waiters.until(RunEventTopic(), deadline - loop.time())
            except TimeoutError:
                pass  # `send` raises the error

    def _check_dead_end(self, root: Supervisor, ticket: _Ticket) -> None:
        waiting = [each.asker for each in self._tickets if each.asker is not None]
        check_dead_end(root.tree.config, root.tree.agents, ticket.asker, waiting)
