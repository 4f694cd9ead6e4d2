"""`orch session`: conversations, wherever they are from and wherever they go."""

from __future__ import annotations

from ..command import CommandGroup
from . import audit, fsck, import_export, notes, prune, tree

__all__ = ["VERBS"]

VERBS = {
    "session": CommandGroup(
        "Conversations: look at their branches, go back in them, copy them, take them over from files, write them out.",
        "orch session show latest",
        tree.ACTIONS | notes.ACTIONS | import_export.ACTIONS | fsck.ACTIONS | audit.ACTIONS | prune.ACTIONS,
    )
}
