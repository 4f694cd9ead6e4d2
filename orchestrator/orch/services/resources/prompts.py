"""Service that shows the prompt of an agent. If the agent has no process, the prompt is read from the session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_protocol.agent.project import ProjectSurvey
from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.ids import new_id
from orch_protocol.core.prompts import PromptResult, PromptShown
from orch_protocol.services.resources.prompts import SHOW_PROMPT, SURVEY_PROJECT, ShowPrompt
from orch_protocol.services.service import Empty
from orch_protocol.wire.worker_messages import EmptyBody
from orch_worker.conversation.live_subagents import LiveSubagent, live_block
from orch_worker.tools.api.archive_texts import TEXT_FOLDER, TEXT_READERS

from ...policy.caller import AgentCaller, Caller
from ...tree.agents.state import AgentRecord
from ..agents.processes import request_worker
from ..agents.status import list_live_subagents
from ..archives.recall import find_agent_or_holder
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["prompt", "survey_project"]

TIMEOUT_SECONDS: Final = 30.0
"""Timeout for a process. The first answer takes longer, because the process reads its folder first."""


@handles(SHOW_PROMPT)
async def prompt(root: Supervisor, caller: Caller, params: ShowPrompt) -> PromptShown:
    """Return the prompt for the next request of an agent. No process is started.

    Raises AgentError, QueryTimeoutError.
    """
    node = await find_agent_or_holder(root, caller, params.ref, "look at", "read")
    if root.workers.peer(node.spec.id) is not None and node.status != "starting":
        reply: PromptResult | None = await request_worker(
            root, node, "prompt", EmptyBody(), new_id(), "prompted", TIMEOUT_SECONDS
        )
        if reply is not None and reply.shown is not None:
            return reply.shown
    children = await list_live_subagents(root, AgentCaller(node.spec.id), Empty()) if _may_spawn(node) else []
    has_prompt_hooks = bool(node.spec.hooks.load) or any(
        "before_system_prompt" in row.stages for row in root.hooks.rows
    )
    return await root.disk.do(
        _read_prompt, node.spec, [LiveSubagent(child.id, child.task) for child in children], has_prompt_hooks
    )


def _may_spawn(node: AgentRecord) -> bool:
    return "spawn_subagent" in node.spec.grant


# This function runs in a thread.


def _read_prompt(spec: AgentSpec, children: list[LiveSubagent], hooked: bool) -> PromptShown:
    from orch_worker.prompt.current_prompt import prompt_of_session
    from orch_worker.session.session_reader import read_session

    session = read_session(Path(spec.folder))
    holders, limit = [], 0
    if spec.archival is not None and not spec.archival.in_tail:
        holders = [LiveSubagent(id, f"Archive: {task}") for id, task in session.view.holders()]
        limit = spec.archival.block_entries
    block = live_block(
        holders,
        limit,
        children,
        may_spawn="spawn_subagent" in spec.grant,
        texts=str(Path(spec.folder) / TEXT_FOLDER) if not TEXT_READERS.isdisjoint(spec.active) else "",
    )
    return prompt_of_session(spec, session, block, hooked=hooked)


@handles(SURVEY_PROJECT)
async def survey_project(root: Supervisor, caller: Caller, _: Empty) -> ProjectSurvey:
    """Return facts about the calling agent's project.

    The agent's process removes facts that the agent's policy denies.
    """
    spec = caller.require_agent(root.tree.agents).spec
    return await root.projects.of(Path(spec.cwd), spec.context.rules)
