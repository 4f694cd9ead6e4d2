"""Service that turns plan mode of an existing agent on or off. The agent's conversation continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.core.errors import AgentBusyError, ConfigError
from orch_protocol.core.ids import new_id
from orch_protocol.services.agents.status import AgentRow
from orch_protocol.services.sessions.plan_mode import SET_PLAN_MODE, SetPlanMode

from ...policy.caller import Caller
from ...tree.interface import events
from ..agents.status import row
from ..checks.idle import AgentBusy, stop_processes
from ..dispatch.handlers import handles
from ..policy.approvals import lineage_of
from .sessions import session_of

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["set_plan_mode"]


@handles(SET_PLAN_MODE)
async def set_plan_mode(root: Supervisor, caller: Caller, params: SetPlanMode) -> AgentRow:
    """Turn plan mode of an idle agent on or off.

    The agent's process is stopped. The next process of the agent starts in the new mode. Raises AgentBusyError. Raises
    ConfigError when plan mode cannot end because an ancestor of the agent is in plan mode.
    """
    node = session_of(root, caller, params.ref, "set plan mode of")
    if params.on == node.spec.plan:
        return await row(root, node)
    ancestor = next((each for each in lineage_of(root, node)[1:] if each.spec.plan), None)
    if not params.on and ancestor is not None:
        raise ConfigError(
            f"agent {node.spec.name!r} is below {ancestor.spec.name!r}, which is in plan mode: end its plan mode first"
        )
    try:
        await stop_processes(root, [node], [])
    except AgentBusy as error:
        raise AgentBusyError(str(error)) from error
    id = node.spec.id
    if root.tree.agents[id].running:
        raise AgentBusyError(f"agent {node.spec.name!r} ({id}) received a query: wait until it ends, then retry")
    root.handle(events.StartPlan(id, new_id()) if params.on else events.ApprovePlan(id))
    return await row(root, root.tree.agents[id])
