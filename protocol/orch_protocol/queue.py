"""What is said to agents that work, and waits until they hear it."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["AgentSteered", "SteerAgent"]


class SteerAgent(Struct, frozen=True, forbid_unknown_fields=True):
    """Say `text` to `ref` while it works: before its next model request, or (`follow_up`) when it would stop.

    An agent that does not work hears it with its next query; a follow-up to such an agent is a query.
    """

    ref: str
    text: str
    follow_up: bool = False


class AgentSteered(Struct, frozen=True):
    """It will be heard: `steer_id` names it, or `query_id` the query that it became."""

    id: str
    steer_id: str | None = None
    query_id: str | None = None
