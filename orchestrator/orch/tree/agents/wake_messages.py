"""Wake messages. A wake message is a prompt. The prompt lists the watched subagents that have finished."""

from __future__ import annotations

from collections.abc import Callable

from ..journal.entries import AgentWoken, QueryFinished
from .agent_record import AgentRecord

__all__ = ["WakeMessages", "finished_line"]


class WakeMessages:
    """Collects the finished queries of one decision before the decision is applied to the tree.

    `find` returns the agent with the given id, or None.
    """

    def __init__(self, find: Callable[[str | None], AgentRecord | None]) -> None:
        self._find = find
        self._watches: dict[str, tuple[dict[str, str | int], list[str]]] = {}

    def message_for(self, agent: AgentRecord, finished: QueryFinished) -> AgentWoken | None:
        """Return the message that wakes the asker of `agent`.

        Return None while too few of the subagents that the asker watches have finished.
        """
        asker = self._find(agent.pending.asker if agent.pending else None)
        if asker is None:
            return None
        watching, lines = self._watches.setdefault(asker.spec.id, (dict(asker.watching), list(asker.news)))
        mode = watching.pop(agent.spec.id, None)
        if mode is None:
            return None
        lines.append(finished_line(agent, finished))
        needed_count = 1 if mode == "any" else int(mode) if isinstance(mode, int) else None
        if watching and (needed_count is None or len(lines) < needed_count):
            return None
        text = "[subagents finished]\n" + "\n".join(lines) + "\nTheir answers wait: collect_subagent(id)."
        lines.clear()
        return AgentWoken(at=finished.at, id=asker.spec.id, text=text)


def finished_line(agent: AgentRecord, finished: QueryFinished) -> str:
    """Return one line that states how a query to `agent` ended."""
    agent_label = f"- {agent.spec.id} ({agent.spec.name})"
    if finished.reply is not None:
        return f"{agent_label}: {finished.reply.stop_reason}, {finished.reply.tool_calls} tool calls"
    if agent.spec.local:
        return f"{agent_label}: failed"  # an error may quote the conversation, which only local models may see
    return f"{agent_label}: failed: {finished.error.message if finished.error else 'no answer'}"
