"""The service that compacts a conversation."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...session.tree import CompactionDone
from ..service import USERS_ONLY, Service

__all__ = ["COMPACT_SESSION", "CompactSession"]


class CompactSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Compact the conversation of `ref` now. `instructions` are instructions for the model that writes the summary."""

    ref: str
    instructions: str = ""


COMPACT_SESSION: Final = Service(
    "compact", CompactSession, CompactionDone, USERS_ONLY, "Replace the conversation so far by a summary."
)
