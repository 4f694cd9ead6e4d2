"""Archiving in a turn. Finished parts are archived between requests, and the end of a turn plans more archives."""

from __future__ import annotations

from orch_protocol.core.messages import StopReason
from orch_protocol.session.tree import CompactionDone
from orch_protocol.wire.worker_messages import Query

from ...context.archiving import TurnArchiver
from .prompt import TurnPrompt
from .turn_extension import ShorteningReason, TurnExtension, TurnState

__all__ = ["ArchivingExtension"]


class ArchivingExtension(TurnExtension):
    """Calls `archiver` during a turn, and passes the list of live subagents to `prompt`."""

    def __init__(self, archiver: TurnArchiver, prompt: TurnPrompt) -> None:
        self._archiver = archiver
        self._prompt = prompt
        self._in_turn = False

    async def turn_began(self, query_id: str, query: Query) -> None:  # noqa: ARG002
        """Inform the archiver that a turn began.

        From now on, the archiver changes the conversation only between requests.
        """
        self._archiver.turn_began()
        self._in_turn = True

    async def before_request(self, turn: TurnState) -> None:  # noqa: ARG002
        """Apply archives that are ready to the conversation."""
        self._prompt.live = await self._archiver.before_request()

    async def shorten_conversation(self, turn: TurnState, why: ShorteningReason) -> CompactionDone | None:  # noqa: ARG002
        """Archive finished parts if a hook requested it, or if the provider refused the request as too long."""
        if why in ("archive", "refused"):
            await self._archiver.shorten()
        return None

    async def pause(self) -> None:
        """Archive the steps so far before the turn continues."""
        await self._archiver.turn_paused()

    async def after_turn(self, stop: StopReason | None) -> None:
        """Plan the archiving of the turn."""
        if self._in_turn:
            self._in_turn = False
            await self._archiver.turn_ended(stop)
