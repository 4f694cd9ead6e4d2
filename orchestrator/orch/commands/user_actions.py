"""What commands let an agent's process do, without a model: run Python, a shell command, a tool that looks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from orch_protocol.core.errors import AgentDiedError, OrchError, QueryTimeoutError
from orch_protocol.core.ids import new_id
from orch_protocol.resources.slash_commands import Deed, RunUserTool, UserAction, UserActionResult
from orch_protocol.services.sessions import CHANGE_SESSION
from orch_protocol.wire.worker_messages import EmptyBody
from orch_worker.agent.user_actions import ENTRY, ran

from ..services.agents.processes import request_worker, start_process
from ..tree.agents.state import AgentRecord
from .parse import SHELL
from .registry import CommandResult, SessionContext, command, flag, remainder

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor

__all__ = ["COMMANDS", "perform", "use_tool"]

GROUP: Final = "code"
ENDED: Final = "[Your process ended before that was done; names in Python are gone.]"
GRACE_SECONDS: Final = 15.0
"""What a process may take beyond the deadline that its tools have."""


async def perform(root: Supervisor, node: AgentRecord, deed: Deed, seconds: float | None = None) -> UserActionResult:
    """Let the agent's process do `deed`, which is started for it if it had none, and return what came of it.

    When this is cancelled the deed ends. Raises AgentDiedError when that process does not live to tell,
    QueryTimeoutError, and what the deed raises.
    """
    await start_process(root, node)
    seconds = GRACE_SECONDS + (node.spec.limits.tool_seconds if seconds is None else seconds)
    id = new_id()
    try:
        did: UserActionResult | None = await request_worker(
            root, node, "do", UserAction(deed, root.hooks.rows), id, "did", seconds
        )
    except (asyncio.CancelledError, QueryTimeoutError):
        if (peer := root.workers.peer(node.spec.id)) is not None:
            peer.send("drop", EmptyBody(), id)  # nobody waits for it any more
        raise
    if did is None:
        raise AgentDiedError(f"the process of agent {node.spec.name!r} ({node.spec.id}) ended before it was done")
    return did


async def use_tool(here: SessionContext, name: str, input: dict[str, Any]) -> UserActionResult:
    """Let a tool that changes nothing run in the agent's process, and return what it says."""
    return await perform(here.root, here.node, RunUserTool(name, input, "", looks=True))


@command(
    "py",
    "run Python in the agent's namespace; it is told of that, unless --quiet",
    flag("quiet"),
    remainder("code", "code", required=True),
    group=GROUP,
)
async def py(here: SessionContext) -> CommandResult:
    return await _run(here, "run_python", {"code": here.said["code"]}, f"/py {here.said['code']}")


@command(
    SHELL,
    "run a shell command in the agent's folder and sandbox (also: !command); it is told of that, unless --quiet (!!)",
    flag("quiet"),
    remainder("command", "code", required=True),
    group=GROUP,
)
async def sh(here: SessionContext) -> CommandResult:
    return await _run(here, "bash", {"command": here.said["command"]}, f"!{here.said['command']}")


async def _run(here: SessionContext, tool: str, input: dict[str, Any], line: str) -> CommandResult:
    try:
        did = await perform(here.root, here.node, RunUserTool(tool, input, line, heard=here.get("quiet") is None))
    except AgentDiedError:
        told = {"type": "add_message", "custom_type": ENTRY, "text": f"{ran(line)}{ENDED}"}
        with suppress(OrchError):  # whoever asked is told in any case
            await here.ask(CHANGE_SESSION, ref=here.id, change=told)
        raise
    return CommandResult(did.text, {"text": did.text, "is_error": did.is_error}, is_error=did.is_error)


COMMANDS: Final = (py, sh)
