"""Where one agent's conversation may be read: once it holds what is for local models, on this machine alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from orch_protocol.agent.models import RestrictToLocal
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import OrchError
from orch_protocol.services.models import RESTRICT_TO_LOCAL

from ...backends.registry import is_remote
from ..api.base import ToolError
from ..api.root_client import CallRoot

__all__ = ["LocalOnlyGuard"]

LOOK_SECONDS: Final = 30.0


class LocalOnlyGuard:
    """Binds the conversation of the agent that `spec` describes to models of this machine, for good.

    The root says which one, and remembers it; `move` lets it answer from the next request on.
    """

    def __init__(self, spec: AgentSpec, call_root: CallRoot, move: Callable[[BackendSpec], Awaitable[None]]) -> None:
        self.bound = spec.local
        """Whether only models of this machine may be shown the conversation."""
        self._is_remote = is_remote(spec.backend)
        self._call_root = call_root
        self._move = move
        self._turn = asyncio.Lock()

    def answered_by(self, backend: BackendSpec) -> None:
        """The model behind `backend` answers from now on."""
        self._is_remote = is_remote(backend)

    async def look(self) -> tuple[str, str]:
        """Return the model that the conversation would move to ("" when it is here), and why it cannot stay here."""
        if not self._is_remote:
            return "", ""
        try:
            backend = await self._call_root(RESTRICT_TO_LOCAL, RestrictToLocal(look=True), LOOK_SECONDS)
        except (OrchError, ToolError) as error:
            return "", str(error)
        return f"{backend.provider}:{backend.model}", ""

    async def bind(self) -> str:
        """Let the conversation go on here alone; return why it cannot, "" when it does."""
        async with self._turn:
            if self.bound and not self._is_remote:
                return ""
            try:
                backend = await self._call_root(RESTRICT_TO_LOCAL, RestrictToLocal(), LOOK_SECONDS)
                await self._move(backend)
            except (OrchError, ToolError) as error:
                return str(error)
            self.bound, self._is_remote = True, is_remote(backend)
            return ""
