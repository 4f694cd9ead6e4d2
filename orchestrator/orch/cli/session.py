"""`orch session`: conversations, wherever they are from and wherever they go."""

from __future__ import annotations

from .session_exchange import ACTIONS
from .verb import Group

__all__ = ["VERBS"]

VERBS = {
    "session": Group(
        "Conversations: take them over from other programs' files, and write them out.",
        "orch session import talk.jsonl",
        dict(ACTIONS),
    )
}
