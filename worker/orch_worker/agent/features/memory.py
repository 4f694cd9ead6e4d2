"""Memory in a turn: notes from earlier conversations that match the prompt."""

from __future__ import annotations

from orch_protocol.wire.worker_messages import Query

from ...memory.memory_session import MemorySession
from ...prompt.builder import PromptBuilder
from .turn_extension import TurnExtension, TurnState

__all__ = ["MemoryExtension"]


class MemoryExtension(TurnExtension):
    """Adds notes of `memory` to the end of each request. `prompt` builds the requests."""

    def __init__(self, memory: MemorySession, prompt: PromptBuilder) -> None:
        self._memory = memory
        self._prompt = prompt
        self._user_prompt = ""

    async def turn_began(self, query_id: str, query: Query) -> None:  # noqa: ARG002
        """Store the user's original prompt."""
        self._user_prompt = query.prompt

    async def before_prompt(self, turn: TurnState) -> None:
        """Choose the notes for the turn."""
        self._prompt.memory = await self._memory.turn_began(turn.id, self._user_prompt)
