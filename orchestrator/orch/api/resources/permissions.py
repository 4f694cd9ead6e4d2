"""`o.permissions` contains approvals that also cover later tool calls."""

from __future__ import annotations

import builtins

from orch_protocol.policy.approval import Permission
from orch_protocol.services.policy.approvals import LIST_PERMISSIONS, REVOKE_PERMISSIONS, ListPermissions, Revoke

from .service_call import ServiceCall

__all__ = ["AsyncPermissions"]


class AsyncPermissions:
    """The permissions that are valid now."""

    def __init__(self, call: ServiceCall) -> None:
        self._call = call

    async def list(self, folder: str | None = None) -> builtins.list[Permission]:
        """Return the valid permissions for `folder` with their expiry times.

        If `folder` is None, return the permissions for all folders.
        """
        return await self._call(LIST_PERMISSIONS, ListPermissions(folder))

    async def revoke(self, *ids: str) -> builtins.list[Permission]:
        """Revoke permissions and return them. After a permission is revoked, its tool calls need approval again.

        Raises ConfigError, EntryNotFoundError.
        """
        return await self._call(REVOKE_PERMISSIONS, Revoke(ids))
