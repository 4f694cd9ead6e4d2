"""Services that list and execute slash commands of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.resources.slash_commands import CommandCatalog
from orch_protocol.services.resources.slash_commands import (
    EXECUTE_COMMAND,
    LIST_COMMANDS,
    REFRESH_CATALOGS,
    Execute,
    Executed,
    ShowCommands,
)
from orch_protocol.services.service import Empty

from ...policy.caller import USER, Caller
from ..dispatch.handlers import handles
from ..sessions.sessions import session_of

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["commands", "execute", "refresh_catalogs"]


@handles(LIST_COMMANDS)
async def commands(root: Supervisor, caller: Caller, params: ShowCommands) -> CommandCatalog:
    """Return all commands of a session. Raises AgentError."""
    # These functions import modules on first use, because most roots execute no commands.
    from ...commands.dispatch import catalog

    return await catalog(root, session_of(root, caller, params.ref, "look at", "read"))


@handles(EXECUTE_COMMAND)
async def execute(root: Supervisor, caller: Caller, params: Execute) -> Executed:
    """Execute a command line in a session. Raises ConfigError, and the errors of the command."""
    from ...commands.dispatch import execute

    return await execute(
        root, session_of(root, caller, params.ref, "execute commands in"), params.text, shows=params.shows
    )


@handles(REFRESH_CATALOGS)
async def refresh_catalogs(root: Supervisor, _: Caller, __: Empty) -> list[str]:
    """Reload the catalogs that clients have requested, and return the ids of agents with a changed catalog.

    Each changed catalog causes an event `catalog_changed`. Call this service after changing commands, keys or widgets.
    """
    changed = []
    for id, digest in list(root.session_sources.digests.items()):
        node = root.tree.agents.get(id)
        if node is None or node.status == "killed":
            root.session_sources.forget(id)
        elif (await commands(root, USER, ShowCommands(id))).digest != digest:
            changed.append(id)
    return changed
