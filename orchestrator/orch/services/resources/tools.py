"""Services that run tools of the user's program for agents, and revoke tools of agents."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import AgentDiedError, ToolNotGrantedError
from orch_protocol.core.messages import ToolUse, images_in
from orch_protocol.services.agents.status import AgentRow
from orch_protocol.services.resources.tools import REVOKE_TOOLS, RUN_TOOL, RevokeAgentTools, RootToolResult, RunTool
from orch_worker.tools.api.base import Tool, ToolContext
from orch_worker.tools.api.executor import ToolSource
from orch_worker.tools.dispatch.presets import CATEGORIES, granted_tools
from orch_worker.tools.dispatch.result_limits import text_in
from orch_worker.tools.dispatch.toolbox import Toolbox

from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord
from ...tree.interface import events
from ..agents.status import row
from ..checks.reach import find_agent
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["revoke_tools", "run_tool"]

PING_TIMEOUT_SECONDS = 10.0


@handles(RUN_TOOL)
async def run_tool(root: Supervisor, caller: Caller, params: RunTool) -> RootToolResult:
    """Run the root tool `params.name` for the calling agent.

    If the tool fails, return the error text with `is_error`.
    """
    spec = caller.require_agent(root.tree.agents).spec
    granted = {tool.name for tool in spec.root_tools}
    tools: dict[str, Tool] = root.session_sources.program.tools | root.tools.get(spec.id, {})
    executors: tuple[ToolSource, ...] = ()
    if spec.executor is not None and any(tool.name == params.name for tool in spec.executor_tools):
        if spec.id not in root.executors:
            return _unavailable_result(params.name, f"the program that passed executor {spec.executor.name!r} ended")
        executors = (root.executors[spec.id],)
    elif params.name not in tools and params.name in granted:
        return _unavailable_result(params.name, "the program that registered it ended or removed it")
    context = ToolContext(
        cwd=Path(spec.cwd), env=spec.env, agent_id=spec.id, depth=spec.depth, seconds=spec.limits.tool_seconds
    )
    toolbox = Toolbox((tool for name, tool in tools.items() if name in granted), context, executors=executors)
    toolbox.withdraw(spec.withdrawn)
    try:
        outcome = await toolbox.dispatch(ToolUse("", params.name, params.input))
    finally:
        toolbox.close()
    result = outcome.result
    images = tuple(images_in(result.content))
    if (output := outcome.output) is None:
        return RootToolResult(text_in(result), result.is_error, images=images)
    return RootToolResult(
        text_in(result),
        result.is_error,
        output.files_changed,
        output.usage,
        output.local,
        output.origin,
        output.marks,
        images,
    )


def _unavailable_result(name: str, why: str) -> RootToolResult:
    return RootToolResult(f"Tool {name!r} is not available: {why}", is_error=True)


@handles(REVOKE_TOOLS)
async def revoke_tools(root: Supervisor, caller: Caller, params: RevokeAgentTools) -> AgentRow:
    """Revoke all tools of an agent except `keep`. The agent's descendants lose the same tools.

    After this call returns, revoked tools cannot be called any more, except in a process that does not respond to
    messages. Raises AgentError. Raises ToolNotGrantedError for a tool in `keep` that the agent may not use.
    """
    node = find_agent(root, caller, params.ref, "revoke the tools of")
    root.handle(events.RevokeTools(node.spec.id, _tools_to_keep(node.spec, params.keep)))
    running = [each for each in root.tree.agents.subtree(node.spec.id) if each.status in ("idle", "busy")]
    await asyncio.gather(*(_await_delivery(root, each) for each in running))
    return await row(root, node)


def _tools_to_keep(spec: AgentSpec, names: Sequence[str]) -> tuple[str, ...]:
    categories = [name for name in names if name in CATEGORIES and name not in spec.grant]
    named = [name for name in names if name not in categories]
    if not_granted := [name for name in named if name not in spec.active]:
        raise ToolNotGrantedError(
            f"agent {spec.name!r} may not use {', '.join(map(repr, not_granted))}, so they cannot be kept; it may use "
            f"{', '.join(spec.active) or 'no tools'}"
        )
    return (*named, *granted_tools(None, categories))


async def _await_delivery(root: Supervisor, node: AgentRecord) -> None:
    """Wait until the agent's process has handled all earlier messages. A process handles messages in order."""
    with contextlib.suppress(AgentDiedError):  # the next process gets the messages when it starts
        await root.ping(node, seconds=PING_TIMEOUT_SECONDS)
