"""The prompts of agents, part by part: as their processes have them, or as they would begin without one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.ids import new_id
from orch_protocol.core.prompts import PromptResult, PromptShown, ShowPrompt
from orch_protocol.services.resources import SHOW_PROMPT
from orch_protocol.services.service import Empty
from orch_protocol.wire.worker_messages import EmptyBody
from orch_worker.conversation.live_subagents import LiveSubagent, live_block

from ...policy.caller import AgentCaller, Caller
from ...tree.agents.state import AgentRecord
from ..agents.processes import request_worker
from ..archives.archiving import list_live_subagents
from ..archives.recall import find_agent_or_holder
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["prompt"]

SECONDS: Final = 30.0
"""A process that is asked for the first time looks at its folder before it answers."""


@handles(SHOW_PROMPT)
async def prompt(root: Supervisor, caller: Caller, params: ShowPrompt) -> PromptShown:
    """Return the prompt that the next request of an agent would have; no process is started for it.

    Raises AgentError, QueryTimeoutError.
    """
    node = await find_agent_or_holder(root, caller, params.ref, "look at", "read")
    if root.workers.peer(node.spec.id) is not None and node.status != "starting":
        answer: PromptResult | None = await request_worker(
            root, node, "prompt", EmptyBody(), new_id(), "prompted", SECONDS
        )
        if answer is not None and answer.shown is not None:
            return answer.shown
    children = await list_live_subagents(root, AgentCaller(node.spec.id), Empty()) if _tells(node) else []
    hooked = bool(node.spec.hooks.load) or any("before_system_prompt" in row.stages for row in root.hooks.rows)
    return await root.disk.do(
        _without_process, node.spec, [LiveSubagent(child.id, child.task) for child in children], hooked
    )


def _tells(node: AgentRecord) -> bool:
    return node.spec.archival is not None and "spawn_subagent" in node.spec.grant


# In a thread.


def _without_process(spec: AgentSpec, children: list[LiveSubagent], hooked: bool) -> PromptShown:
    from orch_worker.prompt.current_prompt import prompt_of_session
    from orch_worker.session.transcript import read_session

    session = read_session(Path(spec.folder))
    block = ""
    if spec.archival is not None:
        holders = [LiveSubagent(id, f"Archive: {task}") for id, task in session.view.holders()]
        block = live_block(holders, spec.archival.block_entries, children)
    return prompt_of_session(spec, session, block, hooked=hooked)
