"""Commands of a session: which there are, and executing a line of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.slash import CommandCatalog, Execute, Executed, ShowCommands

from .sessions import session_of

if TYPE_CHECKING:
    from ..supervisor import Supervisor

__all__ = ["commands", "execute"]


async def commands(root: Supervisor, _: str | None, params: ShowCommands) -> CommandCatalog:
    """Return all that can be executed in a session. Raises AgentError."""
    # Here and below imported when it is asked for: most roots execute none.
    from ..commands.executing import catalog

    return await catalog(root, session_of(root, params.ref))


async def execute(root: Supervisor, _: str | None, params: Execute) -> Executed:
    """Execute a line in a session. Raises ConfigError, and what the command raises."""
    from ..commands.executing import execute

    return await execute(root, session_of(root, params.ref), params.text)
