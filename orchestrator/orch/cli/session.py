"""`orch session`: conversations, wherever they are from and wherever they go."""

from __future__ import annotations

from . import session_audit, session_exchange, session_fsck, session_notes, session_prune, session_tree
from .verb import Group

__all__ = ["VERBS"]

VERBS = {
    "session": Group(
        "Conversations: look at their branches, go back in them, copy them, take them over from files, write them out.",
        "orch session show latest",
        session_tree.ACTIONS
        | session_notes.ACTIONS
        | session_exchange.ACTIONS
        | session_fsck.ACTIONS
        | session_audit.ACTIONS
        | session_prune.ACTIONS,
    )
}
