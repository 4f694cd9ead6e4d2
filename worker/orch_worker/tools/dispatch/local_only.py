"""Restricts an agent's conversation to models on this machine as soon as the conversation contains local-only data."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import OrchError
from orch_protocol.services.models.model_selection import RESTRICT_TO_LOCAL, RestrictToLocal

from ...backends.registry import is_remote
from ..api.base import ToolError
from ..api.root_client import CallRoot

__all__ = ["LocalOnlyGuard"]

ROOT_SECONDS: Final = 30.0


class LocalOnlyGuard:
    """Permanently restricts the conversation of the agent `spec` to local models.

    The root chooses the local model and stores the restriction. `switch_model` switches to this model from the next
    request on. `on_restricted` is called when the conversation becomes restricted.
    """

    def __init__(
        self,
        spec: AgentSpec,
        call_root: CallRoot,
        switch_model: Callable[[BackendSpec], Awaitable[None]],
        *,
        on_restricted: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_restricted = spec.local
        """Whether only local models may read the conversation."""
        self._is_remote = is_remote(spec.backend)
        self._call_root = call_root
        self._switch_model = switch_model
        self._on_restricted = on_restricted
        self._lock = asyncio.Lock()

    def set_backend(self, backend: BackendSpec) -> None:
        """Use `backend` as the current model."""
        self._is_remote = is_remote(backend)

    async def find_local_model(self) -> tuple[str, str]:
        """Return the local model to switch to. If switching is not possible, also return the reason.

        If the current model is local, return two empty strings.
        """
        if not self._is_remote:
            return "", ""
        try:
            backend = await self._call_root(RESTRICT_TO_LOCAL, RestrictToLocal(look=True), ROOT_SECONDS)
        except (OrchError, ToolError) as error:
            return "", str(error)
        return f"{backend.provider}:{backend.model}", ""

    async def restrict(self) -> str:
        """Permanently switch to a local model. If switching fails, return the reason, otherwise ""."""
        async with self._lock:
            if self.is_restricted and not self._is_remote:
                return ""
            try:
                backend = await self._call_root(RESTRICT_TO_LOCAL, RestrictToLocal(), ROOT_SECONDS)
                await self._switch_model(backend)
            except (OrchError, ToolError) as error:
                return str(error)
            self.is_restricted, self._is_remote = True, is_remote(backend)
            self._on_restricted()
            return ""
