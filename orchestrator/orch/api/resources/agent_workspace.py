"""`agent.workspace`: the files, values and results that an agent has at hand."""

from __future__ import annotations

from orch_protocol.core.workspace import ChangeWorkspace, ShowWorkspace, WorkspaceChanged, WorkspaceShown
from orch_protocol.services.resources import CHANGE_WORKSPACE, SHOW_WORKSPACE

from .service_call import ServiceCall

__all__ = ["AsyncAgentWorkspace"]


class AsyncAgentWorkspace:
    """The workspace of one agent."""

    def __init__(self, call: ServiceCall, id: str) -> None:
        self._call = call
        self._id = id

    async def show(self, about: str | None = None) -> WorkspaceShown:
        """Return the objects in the workspace, most relevant to `about` first (None: latest first).

        Files are compared with the disk: an object made from a file that has changed is `stale`.
        """
        return await self._call(SHOW_WORKSPACE, ShowWorkspace(self._id, about))

    async def pin(self, *names: str) -> tuple[str, ...]:
        """Keep objects in the workspace and list them first in the prompt; return their full names.

        Raises AgentBusyError while a turn runs, EntryNotFoundError, AmbiguousRefError.
        """
        return (await self._arrange(ChangeWorkspace(self._id, pin=names))).pinned

    async def unpin(self, *names: str) -> tuple[str, ...]:
        """Undo `pin`; return the objects' full names."""
        return (await self._arrange(ChangeWorkspace(self._id, unpin=names))).unpinned

    async def prune(self, *names: str, turns: int | None = None, bytes: int | None = None) -> tuple[str, ...]:
        """Remove the objects `names`; without names, those that the workspace rules remove. Return their names.

        `turns` (without use) and `bytes` (of all objects) replace the configured limits. Raises as `pin` does.
        """
        request = ChangeWorkspace(self._id, drop=names, prune=not names, turns=turns, bytes=bytes)
        return (await self._arrange(request)).dropped

    async def _arrange(self, request: ChangeWorkspace) -> WorkspaceChanged:
        return await self._call(CHANGE_WORKSPACE, request)
