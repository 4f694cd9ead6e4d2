"""The service that deletes sessions older than a given age."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ..service import USERS_ONLY, Service
from .deletion import PrunedSession

__all__ = ["PRUNE_SESSIONS", "PruneSessions", "PrunedSessions"]


class PruneSessions(Struct, frozen=True, forbid_unknown_fields=True):
    """Permanently delete the sessions of agents that ended longer ago than `older`.

    `older` is a number of seconds or text such as "30d". The `keep` most recently active sessions are not deleted. If
    `dry_run` is True, nothing is deleted. If `idle` is True, also delete the sessions of agents that have not ended but
    had no process and no query during that time.
    """

    older: float | str
    keep: int = 0
    dry_run: bool = False
    idle: bool = False


class PrunedSessions(Struct, frozen=True):
    """The deleted sessions, oldest first, and their size in bytes.

    If `dry_run` was True, these sessions would be deleted.

    `busy` maps ids of agents to the reason why their sessions were not deleted.
    """

    sessions: tuple[PrunedSession, ...] = ()
    bytes: int = 0
    busy: dict[str, str] = {}


PRUNE_SESSIONS: Final = Service(
    "prune_sessions", PruneSessions, PrunedSessions, USERS_ONLY, "Delete sessions older than a given age."
)
