"""Services for steering messages and follow-ups: send, list and clear messages, and set how messages are delivered."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...agent.spec import QueueMode
from ..service import USERS_ONLY, AgentRef, Service

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
    """Send `text` to `ref` during its turn. The agent receives the text before its next model request.

    If `follow_up` is True, the agent receives the text when it would otherwise stop. An idle agent receives a steering
    message with its next query. A follow-up to an idle agent is a query.
    """

    ref: str
    text: str
    follow_up: bool = False


class AgentSteered(Struct, frozen=True):
    """The message was accepted.

    `steer_id` is the id of the message. If the message started a query, `query_id` is the id of this query.
    """

    id: str
    steer_id: str | None = None
    query_id: str | None = None


class Queued(Struct, frozen=True, gc=False):
    """A message that the agent has not received yet. `at` is the time at which the message was sent (ISO 8601 UTC)."""

    id: str
    text: str
    follow_up: bool
    at: str


class QueueShown(Struct, frozen=True):
    """The queued messages of the agent `id`, and how many messages of each kind the agent takes at once.

    The result of ClearQueue contains the removed messages instead.
    """

    id: str
    waiting: tuple[Queued, ...]
    steering: QueueMode
    follow_up: QueueMode


class ClearQueue(Struct, frozen=True, forbid_unknown_fields=True):
    """Remove the messages `ids` from the queue of `ref`. Unique prefixes of ids are allowed.

    None: remove all messages.
    """

    ref: str
    ids: tuple[str, ...] | None = None


class SetQueue(Struct, frozen=True, forbid_unknown_fields=True):
    """Set how many messages of each kind `ref` takes at once. None leaves a setting unchanged."""

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
