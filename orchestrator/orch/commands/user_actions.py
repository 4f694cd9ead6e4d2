"""Actions that the user runs in an agent's process without a model, such as Python code, a shell command, or a tool."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from orch_protocol.core.errors import AgentDiedError, OrchError, QueryTimeoutError
from orch_protocol.core.ids import new_id
from orch_protocol.resources.slash_commands import AgentAction, RecordCommand, RunUserTool, UserAction, UserActionResult
from orch_protocol.services.sessions.sessions import CHANGE_SESSION
from orch_protocol.wire.worker_messages import EmptyBody
from orch_worker.agent.user_actions import ENTRY_TYPE, command_text
from orch_worker.extensions.slash_commands import SlashCommand

from ..services.agents.processes import request_worker, start_process
from ..tree.agents.state import AgentRecord
from .parse import SHELL
from .registry import CommandResult, SessionContext, command, flag, remainder

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor

__all__ = ["COMMANDS", "perform", "run_program_command", "use_tool"]

GROUP: Final = "code"
PROCESS_ENDED_NOTE: Final = "[Your process ended before this action was done. Its Python variables are lost.]"
GRACE_SECONDS: Final = 15.0
"""The time in seconds that a process may take in addition to the deadline of its tools."""


async def perform(
    root: Supervisor, node: AgentRecord, action: AgentAction, seconds: float | None = None
) -> UserActionResult:
    """Run the action `action` in the agent's process, and return the result. If necessary, start the process.

    If the caller is canceled, the action is ended. Raises AgentDiedError when the process ends before the action is
    done. Raises QueryTimeoutError. Raises the errors of the action.
    """
    await start_process(root, node)
    seconds = GRACE_SECONDS + (node.spec.limits.tool_seconds if seconds is None else seconds)
    id = new_id()
    try:
        result: UserActionResult | None = await request_worker(
            root, node, "do", UserAction(action, root.hooks.rows), id, "did", seconds
        )
    except (asyncio.CancelledError, QueryTimeoutError):
        if (peer := root.workers.peer(node.spec.id)) is not None:
            peer.send("drop", EmptyBody(), id)  # the caller has stopped waiting
        raise
    if result is None:
        raise AgentDiedError(f"the process of agent {node.spec.name!r} ({node.spec.id}) ended before it was done")
    return result


async def run_program_command(
    ctx: SessionContext, command: SlashCommand, arguments: dict[str, str], typed: str
) -> CommandResult:
    """Call a command of this program, and record the call in the session with the line `typed`.

    If `typed` is empty, the call is not recorded. Raises AgentError when the agent cannot have a process, because the
    process records the command.
    """
    root, node = ctx.root, ctx.node
    if typed:
        await start_process(root, node)
    context = root.hooks.context(f"/{command.row.name}", node.spec, "")
    result = await root.session_sources.program.runner.run(command, arguments, context)
    if typed:
        await perform(root, node, RecordCommand(typed, result.text, result.is_error))
    return CommandResult(result.text, result.data, result.effect, result.is_error)


async def use_tool(ctx: SessionContext, name: str, input: dict[str, Any]) -> UserActionResult:
    """Run a read-only tool in the agent's process and return its result."""
    return await perform(ctx.root, ctx.node, RunUserTool(name, input, "", looks=True))


@command(
    "py",
    "run Python in the agent's namespace; the agent sees code and output, unless --quiet",
    flag("quiet"),
    remainder("code", "code", required=True),
    group=GROUP,
)
async def py(ctx: SessionContext) -> CommandResult:
    return await _run(ctx, "run_python", {"code": ctx.arguments["code"]}, f"/py {ctx.arguments['code']}")


@command(
    SHELL,
    "run a shell command in the agent's folder and sandbox (also: !COMMAND); the agent sees its output, "
    "unless --quiet (also: !!COMMAND)",
    flag("quiet"),
    remainder("command", "code", required=True),
    group=GROUP,
)
async def sh(ctx: SessionContext) -> CommandResult:
    return await _run(ctx, "bash", {"command": ctx.arguments["command"]}, f"!{ctx.arguments['command']}")


async def _run(ctx: SessionContext, tool: str, input: dict[str, Any], line: str) -> CommandResult:
    try:
        result = await perform(ctx.root, ctx.node, RunUserTool(tool, input, line, heard=ctx.get("quiet") is None))
    except AgentDiedError:
        change = {"type": "add_message", "custom_type": ENTRY_TYPE, "text": f"{command_text(line)}{PROCESS_ENDED_NOTE}"}
        with suppress(OrchError):  # the caller gets the error of the command in any case
            await ctx.ask(CHANGE_SESSION, ref=ctx.id, change=change)
        raise
    return CommandResult(result.text, {"text": result.text, "is_error": result.is_error}, is_error=result.is_error)


COMMANDS: Final = (py, sh)
