"""Who takes which answer. Pure.

The answer to a query that was put without waiting stays until somebody takes it, however many queries follow; any other
one until the next is there. Whoever collects gets first what it asked itself, the oldest before the others.
"""

from __future__ import annotations

from orch_protocol.errors import AgentBusyError, NoResultError

from .events import Collect, Decision
from .journaled import Collected
from .nodes import Node, Nodes, Result, iso

__all__ = ["at_hand", "collect", "uncollected"]


def uncollected(node: Node, asker: str | None) -> list[Result]:
    """Return the answers that wait for `asker` to take them, the oldest first, also while the agent is at work."""
    return [result for result in _known(node) if result.stays and result.taken_by is None and result.asker == asker]


def at_hand(node: Node, asker: str | None, *, again: bool = False) -> Result | None:
    """Return the answer that `asker` gets now, with `again` one that was taken last; None when it has to wait."""
    known = _known(node)
    taken = [result for result in known if result.taken_by is not None]
    if again and taken and (node.earlier or node.pending is None):
        return max(taken, key=lambda result: result.taken_at or 0.0)
    if own := uncollected(node, asker):
        return own[0]
    return next((result for result in reversed(known) if result.taken_by is None), None) if not node.pending else None


def collect(nodes: Nodes, event: Collect, now: float) -> Decision:
    """Let somebody have an answer. Raises AgentBusyError, NoResultError."""
    node = nodes[event.id]
    who = f"agent {node.spec.name!r} ({event.id})"
    result = at_hand(node, event.asker, again=event.again)
    if result is not None and result.taken_by is not None:
        return Decision([], [], result)
    if result is not None:
        return Decision([Collected(at=now, id=event.id, query_id=result.query_id, by=event.by)], [], result)
    if node.deleted:
        raise node.refusal()
    if node.pending is not None:
        raise AgentBusyError(f"{who} is still at work on: {node.pending.head}")
    if node.last is None:
        raise NoResultError(f"{who} has nothing to collect: no query was put to it")
    raise NoResultError(
        f"the last answer of {who} was taken by {node.last.taken_by} at {iso(node.last.taken_at or now)}; "
        "`--again` (again=True) returns it once more"
    )


def _known(node: Node) -> list[Result]:
    return [*node.earlier, *([node.last] if node.last is not None else [])]
