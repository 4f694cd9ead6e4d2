"""The type of a function that calls services of a running root. The method groups of the Python API use it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from msgspec import Struct

from orch_protocol.services.service import Service

__all__ = ["ServiceCall"]

P = TypeVar("P", bound=Struct)
R = TypeVar("R")


class ServiceCall(Protocol):
    """Calls a service of the root as the user, and returns its result."""

    async def __call__(self, service: Service[P, R], params: P) -> R: ...
