"""The service that copies a session to a new agent."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ..service import USERS_ONLY, Service

__all__ = ["FORK_SESSION", "ForkResult", "ForkSession"]


class ForkSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Create an agent whose session is a copy of the path to the entry or turn `at`. None means the current path.

    If `all` is True, the copy has every branch. `model` is the model of the new agent. None means the same model as
    before.
    """

    ref: str
    at: str | None = None
    name: str | None = None
    model: str | None = None
    all: bool = False


class ForkResult(Struct, frozen=True):
    """The new agent `id`. The entries of the copy have the same ids as the original entries.

    The process of the new agent starts with the first query.
    """

    id: str
    seq: int
    name: str
    leaf: str | None


FORK_SESSION: Final = Service(
    "fork", ForkSession, ForkResult, USERS_ONLY, "Copy a session, up to an entry, to a new agent."
)
