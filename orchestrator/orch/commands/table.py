"""All commands that every session has, by name."""

from __future__ import annotations

from typing import Final

from . import agents, deeds, helping, looking, sessions, settings, talking
from .registry import Command

__all__ = ["BY_NAME", "COMMANDS"]

COMMANDS: Final[tuple[Command, ...]] = (
    *helping.COMMANDS,
    *talking.COMMANDS,
    *looking.COMMANDS,
    *agents.COMMANDS,
    *sessions.COMMANDS,
    *deeds.COMMANDS,
    *settings.COMMANDS,
)
BY_NAME: Final[dict[str, Command]] = {name: each for each in COMMANDS for name in (each.row.name, *each.row.aliases)}
"""Each command, by its name and by its aliases."""
