"""Times and file contents for tests of deletion."""

from __future__ import annotations

import time
from typing import Any

from agent_history import Life
from orch.tree.agents.state import iso_time

EVER = "9999-01-01T00:00:00.000Z"
NEVER = "2000-01-01T00:00:00.000Z"
MARK = "[deleted on 2026-11-21]"


def file(life: Life) -> str:
    return life.transcript.path.read_text()


def later(life: Life) -> str:
    """Wait until the clock has passed the creation time of the first archive. Return this creation time."""
    first = life.records()[0].timestamp
    while iso_time(time.time()) <= first:
        pass
    return first


def session(life: Life) -> dict[str, Any]:
    """Return the session's data that pruning must not change."""
    session = life.transcript.session
    return {
        "messages": session.messages,
        "ids": [entry.id for entry in session.entries if not hasattr(entry, "cwd")],
        "leaf": session.leaf,
        "usage": session.usage,
        "turns": session.turns,
        "asked": session.was_queried,
        "responses": session.responses,
        "interrupted": session.interrupted,
        "replies": {id: (reply.usage, reply.stop_reason, reply.archived_to) for id, reply in session.replies.items()},
        "holders": set(session.view.holders()),
    }
