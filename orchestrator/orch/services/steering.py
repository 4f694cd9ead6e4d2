"""What is said to agents while they work, and turns that are ended early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch_protocol.errors import ConfigError
from orch_protocol.ids import new_id
from orch_protocol.messages import Usage
from orch_protocol.services import AgentRow, AgentSteered, CancelTurn, SteerAgent
from orch_protocol.text import scrub

from .. import events
from ..refs import resolve
from ..remains import remains_of
from .ending import own_subtree
from .looking import row

if TYPE_CHECKING:
    from ..supervisor import Supervisor

__all__ = ["cancel", "steer"]


async def steer(root: Supervisor, caller: str | None, params: SteerAgent) -> AgentSteered:
    """Say something to an agent that works. Raises AgentError."""
    node = resolve(root.tree.nodes, params.ref)
    own_subtree(root, caller, node, "steer")
    if not params.text.strip():
        raise ConfigError(f"there is nothing to say to agent {node.spec.name!r}: the text is empty")
    if params.follow_up and node.pending is None:
        return AgentSteered(node.spec.id, query_id=root.ask(node, params.text, asker=caller))
    steer_id: str = root.handle(events.Steer(node.spec.id, new_id(), scrub(params.text), params.follow_up))
    return AgentSteered(node.spec.id, steer_id)


async def cancel(root: Supervisor, caller: str | None, params: CancelTurn) -> AgentRow:
    """End an agent's turn: its query is answered with stop reason `cancelled`, or, when hard, fails."""
    node = resolve(root.tree.nodes, params.ref)
    own_subtree(root, caller, node, "cancel")
    root.handle(events.Cancel(node.spec.id, params.hard, remains_of(node).usage if params.hard else Usage()))
    return row(root, node)
