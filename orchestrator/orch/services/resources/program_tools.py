"""Functions of the user's program, run for agents that were granted them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.core.messages import Text, ToolUse
from orch_protocol.services.requests import RUN_TOOL, RootToolResult, RunTool
from orch_worker.tools.api.base import Tool, ToolContext
from orch_worker.tools.dispatch.toolbox import Toolbox

from ...policy.caller import Caller
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["run_tool"]


@handles(RUN_TOOL)
async def run_tool(root: Supervisor, caller: Caller, params: RunTool) -> RootToolResult:
    """Run the root tool `params.name` of the calling agent. What goes wrong is its text, with `is_error`."""
    spec = caller.require_agent(root.tree.agents).spec
    tools: dict[str, Tool] = root.tools.get(spec.id, {})
    context = ToolContext(
        cwd=Path(spec.cwd), env=spec.env, agent_id=spec.id, depth=spec.depth, seconds=spec.limits.tool_seconds
    )
    box = Toolbox(tools.values(), context)
    box.withdraw(spec.withdrawn)
    try:
        outcome = await box.dispatch(ToolUse("", params.name, params.input))
    finally:
        box.close()
    texts = [block.text for block in outcome.result.content if isinstance(block, Text)]
    return RootToolResult("\n".join(texts), outcome.result.is_error)
