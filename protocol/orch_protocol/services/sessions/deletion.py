"""The service that deletes the session of an agent and of its subagents."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ..service import USERS_ONLY, Service

__all__ = ["FORGET_SESSION", "ForgetSession", "ForgottenSessions", "PrunedSession"]


class ForgetSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Permanently delete the session of an agent, and the sessions of all its subagents.

    `ref` is an agent of the run, or the agent id of any session below `ORCH_HOME`. If `dry_run` is True, nothing is
    deleted.
    """

    ref: str
    dry_run: bool = False


class PrunedSession(Struct, frozen=True):
    """An agent whose session was deleted. `title` is its title or task. `bytes` is the size of its folder."""

    id: str
    seq: int
    name: str
    title: str
    last_activity: str
    bytes: int


class ForgottenSessions(Struct, frozen=True):
    """The deleted sessions, parents first. If `dry_run` was True, these sessions would be deleted.

    `archives` is the number of archives of these sessions. `bytes` is the total size of the session folders.
    """

    sessions: tuple[PrunedSession, ...]
    archives: int
    bytes: int


FORGET_SESSION: Final = Service(
    "forget_session", ForgetSession, ForgottenSessions, USERS_ONLY, "Delete a session with all agents below it."
)
