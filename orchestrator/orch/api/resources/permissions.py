"""`o.permissions`: approvals that the user gave for later calls."""

from __future__ import annotations

import builtins

from orch_protocol.policy.approval import ListPermissions, Permission, Revoke
from orch_protocol.services.approvals import LIST_PERMISSIONS, REVOKE_PERMISSIONS

from .service_call import ServiceCall

__all__ = ["AsyncPermissions"]


class AsyncPermissions:
    """Permissions that are in force."""

    def __init__(self, call: ServiceCall) -> None:
        self._call = call

    async def list(self, folder: str | None = None) -> builtins.list[Permission]:
        """Return the permissions in force in `folder` (None: anywhere), with when each expires."""
        return await self._call(LIST_PERMISSIONS, ListPermissions(folder))

    async def revoke(self, *ids: str) -> builtins.list[Permission]:
        """Revoke permissions and return them. Calls they covered need approval again. Raises ConfigError."""
        return await self._call(REVOKE_PERMISSIONS, Revoke(ids))
