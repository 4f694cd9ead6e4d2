"""What is said to agents that work, and waits until they hear it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ..agent.spec import QueueMode
from .requests import AgentRef
from .service import USERS_ONLY, Service

__all__ = [
    "CLEAR_QUEUE",
    "SET_QUEUE",
    "SHOW_QUEUE",
    "STEER",
    "AgentSteered",
    "ClearQueue",
    "QueueShown",
    "Queued",
    "SetQueue",
    "SteerAgent",
]


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


class Queued(Struct, frozen=True, gc=False):
    """Something said to an agent that it has not heard yet, since `at` (ISO 8601 UTC)."""

    id: str
    text: str
    follow_up: bool
    at: str


class QueueShown(Struct, frozen=True):
    """What waits to be heard by the agent `id`, in order; how many things of each kind it hears at once."""

    id: str
    waiting: tuple[Queued, ...]
    steering: QueueMode
    follow_up: QueueMode


class ClearQueue(Struct, frozen=True, forbid_unknown_fields=True):
    """Take back what waits to be heard by `ref`: what `ids` name (the beginning of one does), None: all of it."""

    ref: str
    ids: tuple[str, ...] | None = None


class SetQueue(Struct, frozen=True, forbid_unknown_fields=True):
    """From now on `ref` hears so many things of a kind at once; None leaves that as it is."""

    ref: str
    steering: QueueMode | None = None
    follow_up: QueueMode | None = None


STEER: Final = Service("steer", SteerAgent, AgentSteered, USERS_ONLY, "Send a message to a running agent.")
CLEAR_QUEUE: Final = Service(
    "clear_queue", ClearQueue, QueueShown, USERS_ONLY, "Remove messages from an agent's steering queue."
)
SET_QUEUE: Final = Service(
    "set_queue", SetQueue, QueueShown, USERS_ONLY, "Set how an agent takes messages from its steering queue."
)
SHOW_QUEUE: Final = Service("queue", AgentRef, QueueShown, USERS_ONLY, "Show an agent's steering queue.")
