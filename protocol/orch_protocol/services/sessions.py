"""Services for sessions: show, change, compact, fork, check and delete them."""

from __future__ import annotations

from typing import Final

from ..session.tree import (
    ChangeSession,
    CheckSession,
    CompactionDone,
    CompactSession,
    ForkResult,
    ForkSession,
    ListMetadata,
    PrunedSessions,
    PruneSessions,
    SessionChanged,
    SessionChecked,
    SessionMetadata,
    SessionTree,
    SetPlanMode,
    ShowSession,
)
from .requests import AgentRow
from .service import USERS_ONLY, Service

__all__ = [
    "CHANGE_SESSION",
    "CHECK_SESSION",
    "COMPACT_SESSION",
    "FORK_SESSION",
    "LIST_SESSION_METADATA",
    "PRUNE_SESSIONS",
    "SET_PLAN_MODE",
    "SHOW_SESSION",
]

SHOW_SESSION: Final = Service("session", ShowSession, SessionTree, USERS_ONLY, "Show the entries of a session.")
CHANGE_SESSION: Final = Service(
    "change_session", ChangeSession, SessionChanged, USERS_ONLY, "Change a session: label, move, add a message."
)
COMPACT_SESSION: Final = Service(
    "compact", CompactSession, CompactionDone, USERS_ONLY, "Replace the conversation so far by a summary."
)
LIST_SESSION_METADATA: Final = Service(
    "list_session_metadata", ListMetadata, list[SessionMetadata], USERS_ONLY, "List the metadata of a session."
)
FORK_SESSION: Final = Service(
    "fork", ForkSession, ForkResult, USERS_ONLY, "Copy a session, up to an entry, to a new agent."
)
CHECK_SESSION: Final = Service(
    "check_session", CheckSession, SessionChecked, USERS_ONLY, "Check the files of a session, and repair them."
)
PRUNE_SESSIONS: Final = Service(
    "prune_sessions", PruneSessions, PrunedSessions, USERS_ONLY, "Delete sessions older than a given age."
)
SET_PLAN_MODE: Final = Service(
    "set_plan_mode", SetPlanMode, AgentRow, USERS_ONLY, "Switch plan mode of an agent on or off."
)
