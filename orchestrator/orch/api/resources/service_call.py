"""How the groups of the Python API reach the services of a running root."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

__all__ = ["ServiceCall"]


class ServiceCall(Protocol):
    """Call a service of the root as the user, and return its result."""

    async def __call__(self, method: str, params: Struct) -> Any: ...
