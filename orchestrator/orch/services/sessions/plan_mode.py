"""Plan mode of an agent that is there: it goes on in it, or without it, with all that was said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.core.errors import AgentBusyError, ConfigError
from orch_protocol.core.ids import new_id
from orch_protocol.services.requests import AgentRow
from orch_protocol.services.sessions import SET_PLAN_MODE
from orch_protocol.session.tree import SetPlanMode

from ...policy.caller import Caller
from ...tree.journal import events
from ..agents.status import row
from ..checks.idle import AgentBusy, stop_processes
from ..dispatch.handlers import handles
from ..models.approvals import lineage_of
from .sessions import session_of

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["set_plan_mode"]


@handles(SET_PLAN_MODE)
async def set_plan_mode(root: Supervisor, caller: Caller, params: SetPlanMode) -> AgentRow:
    """Let an agent go on in plan mode, or without; it is in no turn, and its process ends: the next knows.

    Raises AgentBusyError, and ConfigError for one that is to be let out before somebody above it is.
    """
    node = session_of(root, caller, params.ref, "set plan mode of")
    if params.on == node.spec.plan:
        return row(root, node)
    still = next((each for each in lineage_of(root, node)[1:] if each.spec.plan), None)
    if not params.on and still is not None:
        raise ConfigError(
            f"agent {node.spec.name!r} is below {still.spec.name!r}, which is in plan mode: let that one out first"
        )
    try:
        await stop_processes(root, [node], [])
    except AgentBusy as error:
        raise AgentBusyError(str(error)) from error
    id = node.spec.id
    if root.tree.agents[id].running:
        raise AgentBusyError(f"agent {node.spec.name!r} ({id}) received a query: wait until it ends, then retry")
    root.handle(events.StartPlan(id, new_id()) if params.on else events.ApprovePlan(id))
    return row(root, root.tree.agents[id])
