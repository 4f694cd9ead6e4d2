"""Services that list and execute slash commands of a session."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from ...resources.slash_commands import CommandCatalog, Effect
from ..service import USERS_ONLY, Empty, Service

__all__ = ["EXECUTE_COMMAND", "LIST_COMMANDS", "REFRESH_CATALOGS", "Execute", "Executed", "ShowCommands"]


class ShowCommands(Struct, frozen=True, forbid_unknown_fields=True):
    """List the commands of the session of `ref`."""

    ref: str


class Execute(Struct, frozen=True, forbid_unknown_fields=True):
    """Execute the line `text` in the session of `ref`. The line begins with a slash, or with `!` for the shell.

    If `shows` is True, the front end needs the output for a widget. In this case, the result is not recorded, and only
    commands of extensions are allowed.
    """

    ref: str
    text: str
    shows: bool = False


class Executed(Struct, frozen=True):
    """The result of a command.

    `text` is the result for people. `data` is the same result for programs: rows or an object, as the CLI prints with
    `--json`. `effect` is an action for the front end, or None. `is_error`: the command failed.
    """

    command: str
    text: str = ""
    data: Any = None
    effect: Effect | None = None
    is_error: bool = False


LIST_COMMANDS: Final = Service(
    "commands", ShowCommands, CommandCatalog, USERS_ONLY, "List the slash commands of a session."
)
EXECUTE_COMMAND: Final = Service("execute", Execute, Executed, USERS_ONLY, "Execute a slash command in a session.")
REFRESH_CATALOGS: Final = Service(
    "refresh_catalogs", Empty, list[str], USERS_ONLY, "Reload the command catalogs that are in use."
)
