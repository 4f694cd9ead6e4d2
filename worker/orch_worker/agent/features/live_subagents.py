"""The live-subagents block of an agent without archival.

If archival is on, the module `archiving` creates the block, and the block also lists archives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from .prompt import TurnPrompt
from .turn_extension import TurnExtension, TurnState

__all__ = ["LiveSubagentsExtension"]


class LiveSubagentsExtension(TurnExtension):
    """Passes the live-subagents block, which `block` returns, to `prompt` before each request."""

    def __init__(self, block: Callable[[], Awaitable[str]], prompt: TurnPrompt) -> None:
        self._block = block
        self._prompt = prompt

    async def before_request(self, turn: TurnState) -> None:  # noqa: ARG002
        """Update the block for the next request."""
        self._prompt.live = await self._block()
