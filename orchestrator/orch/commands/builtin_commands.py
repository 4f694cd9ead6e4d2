"""All commands that every session has, by name."""

from __future__ import annotations

from typing import Final

from . import agents, help, service_commands, session, settings, user_actions
from .registry import BuiltinCommand

__all__ = ["BY_NAME", "COMMANDS"]

COMMANDS: Final[tuple[BuiltinCommand, ...]] = (
    *help.COMMANDS,
    *session.TALKING_COMMANDS,
    *agents.LOOKING_COMMANDS,
    *agents.COMMANDS,
    *session.SESSIONS_COMMANDS,
    *user_actions.COMMANDS,
    *settings.COMMANDS,
    *service_commands.COMMANDS,
)
BY_NAME: Final[dict[str, BuiltinCommand]] = {
    name: each for each in COMMANDS for name in (each.row.name, *each.row.aliases)
}
"""Each command, by its name and by its aliases."""
