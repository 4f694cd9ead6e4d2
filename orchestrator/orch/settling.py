"""What follows when queries are over: their waiters hear of it, and whoever asked to be woken."""

from __future__ import annotations

from collections.abc import Iterable

from .events import Decision, Instruction, Notify
from .journaled import Answered, Entry
from .news import News
from .nodes import Nodes

__all__ = ["settle"]


def settle(nodes: Nodes, answers: Iterable[Answered]) -> Decision:
    """Settle pending queries, tell their waiters, and wake whoever asked to be woken."""
    entries: list[Entry] = []
    instructions: list[Instruction] = []
    news = News(nodes)
    for answered in answers:
        node = nodes[answered.id]
        entries.append(answered)
        instructions.append(Notify(f"query:{answered.query_id}", answered.reply, answered.error))
        if node.pending is not None and node.pending.wake is not None:
            woken = news.of(node, answered)
            if woken is not None:
                entries.append(woken)
                if nodes[woken.id].pending is None:
                    instructions.append(Notify(f"wake:{woken.id}"))
        if node.inbox:
            instructions.append(Notify(f"wake:{node.spec.id}"))
    return Decision(entries, instructions)
