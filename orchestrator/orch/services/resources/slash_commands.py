"""Commands of a session: which there are, and executing a line of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.resources.slash_commands import CommandCatalog, Execute, Executed, ShowCommands
from orch_protocol.services.resources import EXECUTE_COMMAND, LIST_COMMANDS, REFRESH_CATALOGS
from orch_protocol.services.service import Empty

from ...policy.caller import USER, Caller
from ..dispatch.handlers import handles
from ..sessions.sessions import session_of

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["commands", "execute", "refresh_catalogs"]


@handles(LIST_COMMANDS)
async def commands(root: Supervisor, caller: Caller, params: ShowCommands) -> CommandCatalog:
    """Return all that can be executed in a session. Raises AgentError."""
    # Here and below imported when it is asked for: most roots execute none.
    from ...commands.dispatch import catalog

    return await catalog(root, session_of(root, caller, params.ref, "look at", "read"))


@handles(EXECUTE_COMMAND)
async def execute(root: Supervisor, caller: Caller, params: Execute) -> Executed:
    """Execute a line in a session. Raises ConfigError, and what the command raises."""
    from ...commands.dispatch import execute

    return await execute(
        root, session_of(root, caller, params.ref, "execute commands in"), params.text, shows=params.shows
    )


@handles(REFRESH_CATALOGS)
async def refresh_catalogs(root: Supervisor, _: Caller, __: Empty) -> list[str]:
    """Look again at the catalogs that somebody has asked for, and return the ids of those agents whose has changed.

    That is an event then, `catalog_changed`. Whoever changes what is on offer asks for this.
    """
    changed = []
    for id, digest in list(root.offers.digests.items()):
        node = root.tree.agents.get(id)
        if node is None or node.status == "killed":
            root.offers.forget(id)
        elif (await commands(root, USER, ShowCommands(id))).digest != digest:
            changed.append(id)
    return changed
