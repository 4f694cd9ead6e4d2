"""Queries under way: their prompts until they are answered, and the time by which they must be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

__all__ = ["CHECK_SECONDS", "PATIENCE_SECONDS", "QueryDeadlines"]

MARGIN_SECONDS = 2.0
"""How much earlier a turn ends than the one that waits for it, which has something to make of the answer."""
GRACE_SECONDS = 60.0
"""What a turn may take over its limit before its process is taken for stuck."""
CHECK_SECONDS = 30.0
"""How often that is looked at, and every process at work is asked for a sign of life."""
PATIENCE_SECONDS = GRACE_SECONDS + CHECK_SECONDS + 30.0
"""How much longer than a turn's limit to wait for its end, whatever that is."""


class QueryDeadlines:
    """By query id, on the clock of the running event loop."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._prompts: dict[str, tuple[str, float | None]] = {}
        self._sent: dict[str, tuple[str, int, float]] = {}

    def accept(self, query_id: str, prompt: str, within: str | None = None) -> None:
        """Keep `prompt` for when a process is there to send it to; its turn is to end before the turn `within` does."""
        self._prompts[query_id] = prompt, self._sent[within][2] - MARGIN_SECONDS if within in self._sent else None

    def send(self, query_id: str, agent_id: str, incarnation: int, limit: float) -> tuple[str, float | None]:
        """Return what the process `incarnation` of the agent is to be asked, and how many seconds it has if those are
        less than `limit`, within which its turns end."""
        prompt, deadline = self._prompts[query_id]
        now = self._now()
        end = now + limit if deadline is None else min(now + limit, max(now, deadline))
        self._sent[query_id] = agent_id, incarnation, end
        return prompt, None if deadline is None else end - now

    def forget(self, query_id: str) -> None:
        """It is over, or was never accepted."""
        self._prompts.pop(query_id, None)
        self._sent.pop(query_id, None)

    def grant(self, seconds: float) -> None:
        """Let every turn under way take so much longer."""
        if seconds:
            self._sent = {query: (id, number, end + seconds) for query, (id, number, end) in self._sent.items()}

    def end_now(self, query_id: str) -> None:
        """Its turn is to end: it was told so."""
        if query_id in self._sent:
            agent_id, incarnation, end = self._sent[query_id]
            self._sent[query_id] = agent_id, incarnation, min(end, self._now())

    def overdue(self) -> Iterator[tuple[str, str, int]]:
        """Yield query id, agent id and incarnation of each turn that did not end by itself."""
        now = self._now()
        for query_id, (agent_id, incarnation, end) in list(self._sent.items()):
            if now >= end + GRACE_SECONDS:
                yield query_id, agent_id, incarnation
