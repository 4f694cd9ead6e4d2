"""Local-only conversations in a turn. Remote models are not used, and replies are marked as local-only."""

from __future__ import annotations

from msgspec.structs import replace

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Reply
from orch_protocol.wire.worker_messages import Query

from ...tools.dispatch.local_only import LocalOnlyGuard
from .turn_extension import TurnExtension

__all__ = ["LocalOnlyExtension"]


class LocalOnlyExtension(TurnExtension):
    """The feature is on if the conversation is restricted to local models, or if the query restricts it."""

    def __init__(self, guard: LocalOnlyGuard) -> None:
        self._guard = guard

    async def turn_began(self, query_id: str, query: Query) -> None:  # noqa: ARG002
        """Restrict the conversation to local models. Raise ConfigError if no local model is available."""
        if why := await self._guard.restrict():
            raise ConfigError(f"this conversation may be sent only to a model on this machine: {why}")

    async def reply(self, reply: Reply) -> Reply:
        """Mark the reply as local-only."""
        return replace(reply, local=self._guard.is_restricted)
