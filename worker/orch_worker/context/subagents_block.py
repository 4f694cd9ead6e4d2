"""Finds the live subagents of an agent by asking the root, and builds their block in the prompt."""

from __future__ import annotations

from typing import Final

from orch_protocol.core.errors import OrchError
from orch_protocol.services.agents.status import LIST_LIVE_SUBAGENTS
from orch_protocol.services.service import Empty

from ..conversation.live_subagents import LiveSubagent, live_block
from ..tools.api.root_client import CallRoot

__all__ = ["live_subagents", "subagents_block"]

LIVE_SECONDS: Final = 10.0


async def live_subagents(call: CallRoot) -> list[LiveSubagent]:
    """Return the subagents that the agent spawned and can query. If the root does not answer, return an empty list."""
    try:
        children = await call(LIST_LIVE_SUBAGENTS, Empty(), LIVE_SECONDS)
    except OrchError as error:
        print(f"live subagents are unknown: {error}", flush=True)
        return []
    return [LiveSubagent(child.id, child.task) for child in children]


async def subagents_block(call: CallRoot) -> str:
    """Return the block of an agent without archives, or "" if there are no subagents."""
    return live_block((), 0, await live_subagents(call))
