"""What is said in place of what was deleted for good."""

from __future__ import annotations

import msgspec

from orch_protocol.errors import ArchiveDeletedError, SessionDeletedError
from orch_protocol.messages import Message, Reply, Text
from orch_protocol.taint import bare
from orch_worker.stubs import marker

__all__ = ["emptied", "refusal", "session_refusal", "silent"]


def refusal(id: str, when: str) -> ArchiveDeletedError:
    """Return the error for who asks for the archive `id`."""
    return ArchiveDeletedError(
        f"what archive {id} held was deleted on {when[:10]} (at {when[11:19]} UTC, by prune): "
        "at most its record in the conversation is left"
    )


def session_refusal(name: str, id: str, when: str) -> SessionDeletedError:
    """Return the error for who asks for the session of the agent `id`."""
    return SessionDeletedError(
        f"the session of agent {name!r} ({id}) was deleted on {when[:10]} (at {when[11:19]} UTC, by prune): "
        "spawn another one"
    )


def emptied(message: Message, when: str) -> Message:
    """Return `message` without what it said."""
    return Message(message.role, (Text(marker(when)),))


def silent(reply: Reply, when: str) -> Reply:
    """Return `reply` without what it said."""
    return msgspec.structs.replace(reply, text=marker(when), files_changed=(), marks=bare(reply.marks))
