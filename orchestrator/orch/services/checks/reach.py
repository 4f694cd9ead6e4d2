"""Which agents a caller may reach: the one place that decides it, for every service.

The user (a program, the CLI, a slash command) reaches every agent. An agent reaches the agents and holders below
itself. It may also ask the peers that the user named for it, and the archives that it was handed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from orch_protocol.core.errors import AgentNotFoundError, ToolNotGrantedError

from ...tree.agents.agent_refs import resolve
from ...tree.agents.state import AgentRecord, TreeState

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["Scope", "check_recall", "find_agent", "is_below", "reaches", "unreachable"]

Scope: TypeAlias = Literal["control", "read", "ask"]
"""What the caller wants to do: `control` reaches below the caller only, `read` also the caller itself, `ask` also its
peers and the archives that it was handed."""


def reaches(nodes: TreeState, caller: str | None, id: str, scope: Scope) -> bool:
    """Return whether `caller` reaches the agent, or the archive, with exactly this id."""
    if caller is None:
        return True
    if is_below(nodes, caller, id):
        return True
    if scope == "control":
        return False
    if id == caller:
        return True
    spec = nodes[caller].spec
    return scope == "ask" and (id in spec.peers or id in spec.archives)


def is_below(nodes: TreeState, caller: str, id: str) -> bool:
    """Return whether the agent or archive `id` is below `caller`, at any depth."""
    node = nodes.get(id)
    parent = node.spec.parent_id if node is not None else nodes.holders.get(id)
    return any(above.spec.id == caller for above in nodes.chain(parent))


def find_agent(root: Supervisor, caller: str | None, ref: str, action: str, scope: Scope = "control") -> AgentRecord:
    """Return the agent that `ref` means to `caller`. Raises AgentNotFoundError, AmbiguousRefError.

    `action` says in the error what the caller may not do. For an agent the error is the same whether an agent that it
    does not reach exists or not.
    """
    nodes = root.tree.agents
    if caller is None:
        return resolve(nodes, ref)
    try:
        return resolve(nodes, ref, lambda id: reaches(nodes, caller, id, scope))
    except AgentNotFoundError:
        raise unreachable(root, caller, ref, action, scope) from None


def unreachable(root: Supervisor, caller: str, ref: str, action: str, scope: Scope) -> AgentNotFoundError:
    """Return the error for an agent that names one that it does not reach."""
    name, shown = root.tree.agents[caller].spec.name, ref[:80]
    if scope == "ask":
        return AgentNotFoundError(
            f"agent {name!r} may only {action} agents below itself and its peers, and {shown!r} is none of them; "
            "the user can allow another one with spawn(peers=[...]) or --peers"
        )
    return AgentNotFoundError(f"agent {name!r} may only {action} agents below itself, and {shown!r} is none of them")


def check_recall(root: Supervisor, caller: str | None, node: AgentRecord) -> None:
    """Raise ToolNotGrantedError when the caller was granted query_subagent for archives only, and `node` is none."""
    spec = root.tree.agents[caller].spec if caller is not None else None
    if spec is None or not spec.recall_only or "spawn_subagent" in spec.active:
        return
    if not node.is_holder:
        raise ToolNotGrantedError(
            f"agent {spec.name!r} was granted query_subagent for archives only, and {node.spec.name!r} is an agent"
        )
