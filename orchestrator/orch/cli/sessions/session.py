"""The command `orch session` shows, changes, copies, imports, exports and deletes conversations."""

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
SESSION_ACTIONS = tree.ACTIONS | import_export.ACTIONS | fsck.ACTIONS | audit.ACTIONS | prune.ACTIONS

VERBS = {
    "session": CommandGroup(
        "Show, branch, fork, import, export and delete the sessions of agents.",
        "orch session show latest",
        SESSION_ACTIONS | service_verbs.actions("session") | META,
    )
}
