"""Prompts and deadlines of queries in progress."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from orch_protocol.core.messages import Image

__all__ = ["CHECK_SECONDS", "PATIENCE_SECONDS", "QueryDeadlines"]

MARGIN_SECONDS = 2.0
"""Margin between nested deadlines, in seconds.

A turn ends this much earlier than the turn that waits for its reply, because the waiting turn must still use the reply.
"""
GRACE_SECONDS = 60.0
"""Seconds by which a turn may exceed its limit before the root considers its process stuck."""
CHECK_SECONDS = 30.0
"""Interval in seconds between checks. A check finds overdue turns, and busy processes without signs of life."""
PATIENCE_SECONDS = GRACE_SECONDS + CHECK_SECONDS + 30.0
"""When a turn has reached its time limit, a caller waits this number of seconds for its end."""


class QueryDeadlines:
    """Prompts and deadlines by query id. The deadlines use the clock of the running event loop."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._prompts: dict[str, tuple[str, tuple[Image, ...], float | None]] = {}
        self._sent: dict[str, tuple[str, int, float]] = {}

    def accept(
        self, query_id: str, prompt: str, outer_query: str | None = None, *, images: tuple[Image, ...] = ()
    ) -> None:
        """Store `prompt` with its `images` until a process can receive it.

        If `outer_query` is set, the turn must end before the turn of the query `outer_query` ends.
        """
        deadline = self._sent[outer_query][2] - MARGIN_SECONDS if outer_query in self._sent else None
        self._prompts[query_id] = prompt, images, deadline

    def send(
        self, query_id: str, agent_id: str, incarnation: int, limit: float
    ) -> tuple[str, tuple[Image, ...], float | None]:
        """Return the prompt of the query, its images, and the seconds until its deadline (None if it has no deadline).

        The turn in the process number `incarnation` may take at most `limit` seconds.
        """
        prompt, images, deadline = self._prompts[query_id]
        now = self._now()
        end = now + limit if deadline is None else min(now + limit, max(now, deadline))
        self._sent[query_id] = agent_id, incarnation, end
        return prompt, images, None if deadline is None else end - now

    def forget(self, query_id: str) -> None:
        """Remove a query that ended or was rejected."""
        self._prompts.pop(query_id, None)
        self._sent.pop(query_id, None)

    def extend_all(self, seconds: float) -> None:
        """Extend the deadline of every turn in progress by `seconds`."""
        if seconds:
            self._sent = {
                query: (id, incarnation, end + seconds) for query, (id, incarnation, end) in self._sent.items()
            }

    def end_now(self, query_id: str) -> None:
        """Set the deadline of a turn to the current time, because the turn's worker is about to be asked to end the
        turn.
        """
        if query_id in self._sent:
            agent_id, incarnation, end = self._sent[query_id]
            self._sent[query_id] = agent_id, incarnation, min(end, self._now())

    def overdue(self) -> Iterator[tuple[str, str, int]]:
        """Yield the query id, agent id and incarnation of each turn that exceeded its deadline by more than the grace
        period.
        """
        now = self._now()
        for query_id, (agent_id, incarnation, end) in list(self._sent.items()):
            if now >= end + GRACE_SECONDS:
                yield query_id, agent_id, incarnation
