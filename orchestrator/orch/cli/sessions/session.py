"""`orch session`: show, change, copy, import, export and delete conversations."""

from __future__ import annotations

from .. import service_verbs
from ..command import CliCommand, CommandGroup
from . import audit, fsck, import_export, prune, tree

__all__ = ["VERBS"]

META: dict[str, tuple[str, CliCommand | CommandGroup]] = {
    "meta": (
        "attach JSON metadata to a session (not sent to the model)",
        CommandGroup(
            "JSON metadata of a session, for programs. It is not sent to the model.",
            "orch session meta get reader",
            service_verbs.actions("session meta"),
        ),
    )
}
OWN = tree.ACTIONS | import_export.ACTIONS | fsck.ACTIONS | audit.ACTIONS | prune.ACTIONS

VERBS = {
    "session": CommandGroup(
        "Conversations: look at their branches, go back in them, copy them, import, export and delete them.",
        "orch session show latest",
        OWN | service_verbs.actions("session") | META,
    )
}
