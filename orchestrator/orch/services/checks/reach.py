"""Finds the agent for a reference within the caller's reach.

The user (a program, the CLI, a slash command) reaches every agent. An agent reaches its descendants and their archive
holders. An agent may also query the peers that the user named, and the archives that were given to it. See
`policy.caller`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.core.errors import AgentNotFoundError
from orch_protocol.services.service import Reach, Scope

from ...policy.caller import Caller
from ...policy.permissions import unreachable_error
from ...tree.agents.agent_refs import LATEST, resolve
from ...tree.agents.state import AgentRecord

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["find_agent"]


def find_agent(root: Supervisor, caller: Caller, ref: str, action: str, scope: Scope = "control") -> AgentRecord:
    """Return the agent that the reference `ref` means for `caller`. Raises AgentNotFoundError, AmbiguousRefError.

    `action` describes the operation in the error message. If an agent is outside the caller's reach, the error does not
    show whether that agent exists.
    """
    nodes = root.tree.agents
    agent = caller.find_agent(nodes)
    if agent is None:
        return resolve(nodes, ref)
    own_id = agent.spec.id if ref.strip() == LATEST else ""  # An agent that calls is active, but does not mean itself.
    try:
        return resolve(nodes, ref, lambda id: id != own_id and caller.reaches(nodes, id, scope))
    except AgentNotFoundError:
        raise unreachable_error(agent.spec, ref, Reach(action, scope)) from None
