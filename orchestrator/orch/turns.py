"""Queries under way: their prompts until they are answered, and the time by which they must be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from orch_protocol.commands import Query

__all__ = ["CHECK_SECONDS", "PATIENCE_SECONDS", "Turns"]

GRACE_SECONDS = 60.0
"""What a turn may take over its limit before its process is taken for stuck."""
CHECK_SECONDS = 60.0
"""How often that is looked at."""
PATIENCE_SECONDS = GRACE_SECONDS + CHECK_SECONDS + 30.0
"""How much longer than a turn's limit to wait for its end, whatever that is."""


class Turns:
    """By query id, on the clock of the running event loop."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._prompts: dict[str, tuple[str, float | None]] = {}
        self._sent: dict[str, tuple[str, int, float]] = {}

    def accept(self, query_id: str, prompt: str, seconds: float | None) -> None:
        """Keep `prompt` for when a process is there to send it to; the turn is to end in `seconds` from now."""
        self._prompts[query_id] = prompt, None if seconds is None else self._now() + seconds

    def send(self, query_id: str, agent_id: str, incarnation: int, limit: float) -> Query:
        """Return the query for the process `incarnation` of the agent, whose turns end within `limit` seconds."""
        prompt, deadline = self._prompts[query_id]
        now = self._now()
        self._sent[query_id] = agent_id, incarnation, now + limit + GRACE_SECONDS
        return Query(prompt, None if deadline is None else max(0.0, deadline - now))

    def forget(self, query_id: str) -> None:
        """It is over, or was never accepted."""
        self._prompts.pop(query_id, None)
        self._sent.pop(query_id, None)

    def overdue(self) -> Iterator[tuple[str, str, int]]:
        """Yield query id, agent id and incarnation of each turn that did not end by itself."""
        now = self._now()
        for query_id, (agent_id, incarnation, deadline) in list(self._sent.items()):
            if now >= deadline:
                yield query_id, agent_id, incarnation
