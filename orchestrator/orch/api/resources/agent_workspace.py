"""`agent.workspace` contains the files, values and results of an agent."""

from __future__ import annotations

from orch_protocol.services.resources.workspace import (
    CHANGE_WORKSPACE,
    SHOW_WORKSPACE,
    ChangeWorkspace,
    ShowWorkspace,
    WorkspaceChanged,
    WorkspaceShown,
)

from .service_call import ServiceCall

__all__ = ["AsyncAgentWorkspace"]


class AsyncAgentWorkspace:
    """The workspace of one agent."""

    def __init__(self, call: ServiceCall, id: str) -> None:
        self._call = call
        self._id = id

    async def show(self, about: str | None = None) -> WorkspaceShown:
        """Return the objects in the workspace. Objects that are relevant to the text `about` come first.

        With None, the latest objects come first. Files are compared with the disk. An object made from a file that has
        changed is `stale`.
        """
        return await self._call(SHOW_WORKSPACE, ShowWorkspace(self._id, about))

    async def pin(self, *names: str) -> tuple[str, ...]:
        """Keep objects in the workspace and list them first in the prompt. Return the full names of the objects.

        Raises AgentBusyError while a turn runs. Raises EntryNotFoundError, AmbiguousRefError.
        """
        return (await self._change(ChangeWorkspace(self._id, pin=names))).pinned

    async def unpin(self, *names: str) -> tuple[str, ...]:
        """Undo `pin`. Return the full names of the objects."""
        return (await self._change(ChangeWorkspace(self._id, unpin=names))).unpinned

    async def prune(self, *names: str, turns: int | None = None, bytes: int | None = None) -> tuple[str, ...]:
        """Remove the objects `names`. Without names, remove objects until the workspace meets its limits.

        Return the removed names. `turns` replaces the configured number of turns after which unused objects are
        removed. `bytes` replaces the limit on the size of all objects. Raises the errors of `pin`.
        """
        request = ChangeWorkspace(self._id, drop=names, prune=not names, turns=turns, bytes=bytes)
        return (await self._change(request)).dropped

    async def _change(self, request: ChangeWorkspace) -> WorkspaceChanged:
        return await self._call(CHANGE_WORKSPACE, request)
