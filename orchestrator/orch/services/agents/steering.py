"""What is done about agents while they work: what is said to them, what is taken from them, turns ended early."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import AgentDiedError, ConfigError, ToolNotGrantedError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Usage
from orch_protocol.core.text import scrub
from orch_protocol.services.requests import CANCEL_TURN, REVOKE_TOOLS, AgentRow, CancelTurn, RevokeAgentTools
from orch_protocol.services.steering_queue import STEER, AgentSteered, SteerAgent
from orch_worker.tools.dispatch.presets import CATEGORIES, granted_tools

from ...policy.caller import Caller
from ...supervisor.recovery.crash_recovery import recover_query
from ...tree.agents.state import AgentRecord
from ...tree.journal import events
from ..checks.reach import find_agent
from ..dispatch.handlers import handles
from .status import row

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["cancel", "revoke_tools", "steer"]

HEARD_SECONDS = 10.0


@handles(STEER)
async def steer(root: Supervisor, caller: Caller, params: SteerAgent) -> AgentSteered:
    """Say something to an agent that works. Raises AgentError."""
    node = find_agent(root, caller, params.ref, "steer")
    if not params.text.strip():
        raise ConfigError(f"the message to agent {node.spec.name!r} is empty")
    if params.follow_up and node.pending is None:
        return AgentSteered(node.spec.id, query_id=root.ask(node, params.text, asker=caller.agent_id, stays=True))
    steer_id: str = root.handle(events.QueueSteering(node.spec.id, new_id(), scrub(params.text), params.follow_up))
    return AgentSteered(node.spec.id, steer_id)


@handles(REVOKE_TOOLS)
async def revoke_tools(root: Supervisor, caller: Caller, params: RevokeAgentTools) -> AgentRow:
    """Take all tools from an agent but those of `tools`, and from everybody below it what it has not any more.

    When this returns nothing that was taken begins to run, in any process that answers. Raises AgentError, and
    ToolNotGrantedError for a tool that the agent may not use: narrowing never widens.
    """
    node = find_agent(root, caller, params.ref, "revoke the tools of")
    root.handle(events.RevokeTools(node.spec.id, _kept(node.spec, params.keep)))
    running = [each for each in root.tree.agents.subtree(node.spec.id) if each.status in ("idle", "busy")]
    await asyncio.gather(*(_heard(root, each) for each in running))
    return row(root, node)


def _kept(spec: AgentSpec, names: Sequence[str]) -> tuple[str, ...]:
    categories = [name for name in names if name in CATEGORIES and name not in spec.grant]
    named = [name for name in names if name not in categories]
    if wider := [name for name in named if name not in spec.active]:
        raise ToolNotGrantedError(
            f"agent {spec.name!r} may not use {', '.join(map(repr, wider))}, and narrowing never widens; it may use "
            f"{', '.join(spec.active) or 'no tools'}"
        )
    return (*named, *granted_tools(None, categories))


async def _heard(root: Supervisor, node: AgentRecord) -> None:
    """Wait until the agent's process has heard what was sent to it: it answers in order."""
    with contextlib.suppress(AgentDiedError):  # the next process is told as it comes up
        await root.ping(node, seconds=HEARD_SECONDS)


@handles(CANCEL_TURN)
async def cancel(root: Supervisor, caller: Caller, params: CancelTurn) -> AgentRow:
    """End an agent's turn: its query is answered with stop reason `cancelled`, or, when hard, fails."""
    node = find_agent(root, caller, params.ref, "cancel")
    root.handle(
        events.CancelRequested(node.spec.id, params.hard, recover_query(node).usage if params.hard else Usage())
    )
    return row(root, node)
