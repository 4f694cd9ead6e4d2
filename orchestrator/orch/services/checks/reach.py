"""Resolve references to agents, within what the caller reaches.

The user (a program, the CLI, a slash command) reaches every agent. An agent reaches the agents and holders below
itself. It may also ask the peers that the user named for it, and the archives that it was given. See
`policy.caller`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.core.errors import AgentNotFoundError, ToolNotGrantedError

from ...policy.caller import Caller, Scope
from ...tree.agents.agent_refs import resolve
from ...tree.agents.state import AgentRecord

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["check_recall", "find_agent", "unreachable"]


def find_agent(root: Supervisor, caller: Caller, ref: str, action: str, scope: Scope = "control") -> AgentRecord:
    """Return the agent that `ref` means to `caller`. Raises AgentNotFoundError, AmbiguousRefError.

    `action` says in the error what the caller may not do. For an agent the error is the same whether an agent that it
    does not reach exists or not.
    """
    nodes = root.tree.agents
    agent = caller.find_agent(nodes)
    if agent is None:
        return resolve(nodes, ref)
    try:
        return resolve(nodes, ref, lambda id: caller.reaches(nodes, id, scope))
    except AgentNotFoundError:
        raise unreachable(agent, ref, action, scope) from None


def unreachable(agent: AgentRecord, ref: str, action: str, scope: Scope) -> AgentNotFoundError:
    """Return the error for a reference of `agent` to an agent that it does not reach."""
    name, shown = agent.spec.name, ref[:80]
    if scope == "ask":
        return AgentNotFoundError(
            f"agent {name!r} may only {action} agents below itself and its peers, and {shown!r} is none of them; "
            "the user can allow another one with spawn(peers=[...]) or --peers"
        )
    return AgentNotFoundError(f"agent {name!r} may only {action} agents below itself, and {shown!r} is none of them")


def check_recall(root: Supervisor, caller: Caller, node: AgentRecord) -> None:
    """Raise ToolNotGrantedError when the caller was granted query_subagent for archives only, and `node` is none."""
    agent = caller.find_agent(root.tree.agents)
    spec = agent.spec if agent is not None else None
    if spec is None or not spec.recall_only or "spawn_subagent" in spec.active:
        return
    if not node.is_holder:
        raise ToolNotGrantedError(
            f"agent {spec.name!r} was granted query_subagent for archives only, and {node.spec.name!r} is an agent"
        )
