"""What agents that asked to be woken hear: a line for each answer, and a prompt when enough of them are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..journal.entries import AgentWoken, QueryFinished

if TYPE_CHECKING:
    from .state import AgentRecord, TreeState

__all__ = ["WakeMessages", "finished_line"]


class WakeMessages:
    """Follows the answers of one decision, none of which is applied to `nodes` yet."""

    def __init__(self, nodes: TreeState) -> None:
        self._nodes = nodes
        self._watches: dict[str, tuple[dict[str, str | int], list[str]]] = {}

    def of(self, node: AgentRecord, answered: QueryFinished) -> AgentWoken | None:
        """Return what wakes the asker of `node`, or None while too few of the agents it watches are done."""
        asker = self._nodes.get(node.pending.asker if node.pending else None)
        if asker is None:
            return None
        watching, news = self._watches.setdefault(asker.spec.id, (dict(asker.watching), list(asker.news)))
        mode = watching.pop(node.spec.id, None)
        if mode is None:
            return None
        news.append(finished_line(node, answered))
        wanted = 1 if mode == "any" else int(mode) if isinstance(mode, int) else None
        if watching and (wanted is None or len(news) < wanted):
            return None
        text = "[subagents finished]\n" + "\n".join(news) + "\nTheir answers wait: collect_subagent(id)."
        news.clear()
        return AgentWoken(at=answered.at, id=asker.spec.id, text=text)


def finished_line(node: AgentRecord, answered: QueryFinished) -> str:
    """Return one line that tells how a query to `node` ended."""
    who = f"- {node.spec.id} ({node.spec.name})"
    if answered.reply is not None:
        return f"{who}: {answered.reply.stop_reason}, {answered.reply.tool_calls} tool calls"
    if node.spec.local:
        return f"{who}: failed"  # what an error says may quote, and is for local models alone
    return f"{who}: failed: {answered.error.message if answered.error else 'no answer'}"
