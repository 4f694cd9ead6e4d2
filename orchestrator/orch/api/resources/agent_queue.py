"""`agent.queue` contains the steering messages and follow-ups that an agent has not received yet."""

from __future__ import annotations

import builtins

from orch_protocol.agent.spec import QueueMode
from orch_protocol.services.agents.steering import CLEAR_QUEUE, SET_QUEUE, SHOW_QUEUE, ClearQueue, Queued, SetQueue
from orch_protocol.services.service import AgentRef

from .service_call import ServiceCall

__all__ = ["AsyncAgentQueue"]


class AsyncAgentQueue:
    """The queue of one agent; `agent.steer` and `agent.follow_up` add to it."""

    def __init__(self, call: ServiceCall, id: str) -> None:
        self._call = call
        self._id = id

    async def list(self) -> builtins.list[Queued]:
        """Return the queued messages in delivery order: steering messages, then follow-ups."""
        shown = await self._call(SHOW_QUEUE, AgentRef(self._id))
        return list(shown.waiting)

    async def clear(self, *ids: str) -> builtins.list[Queued]:
        """Remove the messages `ids` from the queue and return them. Without ids, remove all messages.

        If a message is missing in the result, the agent has just received this message. Raises EntryNotFoundError for
        an id that is not in the queue.
        """
        cleared = await self._call(CLEAR_QUEUE, ClearQueue(self._id, ids or None))
        return list(cleared.waiting)

    async def set_modes(self, *, steering: QueueMode | None = None, follow_up: QueueMode | None = None) -> None:
        """Set whether queued messages are delivered one at a time or all at once; None leaves a mode unchanged."""
        await self._call(SET_QUEUE, SetQueue(self._id, steering, follow_up))
