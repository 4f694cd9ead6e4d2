"""What follows when queries are over: their waiters hear of it, and whoever asked to be woken."""

from __future__ import annotations

from collections.abc import Iterable

from orch_protocol.core.errors import AgentBusyError, NoResultError

from ..agents.state import AgentRecord, QueryResult, TreeState, iso_time
from ..agents.wake_messages import WakeMessages
from ..journal.entries import Entry, QueryFinished, ReplyCollected
from ..journal.events import CollectReply, Decision, Instruction, Notify

__all__ = ["available_result", "collect", "finish_queries", "uncollected"]


def finish_queries(nodes: TreeState, answers: Iterable[QueryFinished]) -> Decision:
    """Settle pending queries, tell their waiters, and wake whoever asked to be woken."""
    entries: list[Entry] = []
    instructions: list[Instruction] = []
    news = WakeMessages(nodes)
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


# --- Who takes which answer ---


def uncollected(node: AgentRecord, asker: str | None) -> list[QueryResult]:
    """Return the answers that wait for `asker` to take them, the oldest first, also while the agent is at work."""
    return [result for result in _results(node) if result.stays and result.taken_by is None and result.asker == asker]


def available_result(
    node: AgentRecord, asker: str | None, *, again: bool = False, query: str = ""
) -> QueryResult | None:
    """Return the answer that `asker` gets now, with `again` one that was taken last; None when it has to wait.

    With `query` it is the answer to that query, which was taken only with `again`.
    """
    known = _results(node)
    if query:
        return next((each for each in known if each.query_id == query and (again or each.taken_by is None)), None)
    taken = [result for result in known if result.taken_by is not None]
    if again and taken and (node.earlier or node.pending is None):
        return max(taken, key=lambda result: result.taken_at or 0.0)
    if own := uncollected(node, asker):
        return own[0]
    return next((result for result in reversed(known) if result.taken_by is None), None) if not node.pending else None


def collect(nodes: TreeState, event: CollectReply, now: float) -> Decision:
    """Let somebody have an answer. Raises AgentBusyError, NoResultError."""
    node = nodes[event.id]
    who = f"agent {node.spec.name!r} ({event.id})"
    result = available_result(node, event.asker, again=event.again, query=event.query)
    if result is not None and result.taken_by is not None:
        return Decision([], [], result)
    if result is not None:
        return Decision([ReplyCollected(at=now, id=event.id, query_id=result.query_id, by=event.by)], [], result)
    if node.deleted:
        raise node.refusal()
    if node.pending is not None and event.query in ("", node.pending.query_id):
        raise AgentBusyError(f"{who} is still at work on: {node.pending.head}")
    if event.query:
        raise _no_answer_to(event.query, who, _results(node))
    if node.last is None:
        raise NoResultError(f"{who} has nothing to collect: no query was put to it")
    raise NoResultError(
        f"the last answer of {who} was taken by {node.last.taken_by} at {iso_time(node.last.taken_at or now)}; "
        "`--again` (again=True) returns it once more"
    )


def _no_answer_to(query: str, who: str, known: list[QueryResult]) -> NoResultError:
    """Return the error for somebody who cannot have the answer to `query`; it names the answers that are kept."""
    if any(each.query_id == query for each in known):
        return NoResultError(
            f"the answer of {who} to query {query} was taken already; `--again` (again=True) returns it once more"
        )
    kept = [each.query_id + (" (taken)" if each.taken_by is not None else "") for each in known]
    return NoResultError(
        f"no answer of {who} to query {query[:40]} is kept; the answers that are kept: {', '.join(kept) or 'none'}"
    )


def _results(node: AgentRecord) -> list[QueryResult]:
    return [*node.earlier, *([node.last] if node.last is not None else [])]
