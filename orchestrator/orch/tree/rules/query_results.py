"""Results of queries. This module notifies the callers that wait, wakes the askers, and gives results to callers."""

from __future__ import annotations

from collections.abc import Iterable

from orch_protocol.core.errors import AgentBusyError, NoResultError
from orch_protocol.core.messages import Reply

from ..agents.state import AgentRecord, QueryResult, TreeState, iso_time
from ..agents.wake_messages import WakeMessages
from ..interface.events import CollectReply
from ..interface.instructions import Decision, Instruction, Notify, Wake
from ..interface.topics import QueryTopic
from ..journal.entries import Entry, QueryFinished, ReplyCollected

__all__ = ["available_result", "collect", "finish_queries", "kept_reply", "uncollected"]


def finish_queries(agents: TreeState, finished_queries: Iterable[QueryFinished]) -> Decision:
    """Finish pending queries, notify the callers that wait for these queries, and wake agents that requested a wake
    message.
    """
    entries: list[Entry] = []
    instructions: list[Instruction] = []
    wake_messages = WakeMessages(agents.get)
    for finished in finished_queries:
        agent = agents[finished.id]
        entries.append(finished)
        instructions.append(Notify(QueryTopic(finished.query_id), finished.reply, finished.error))
        if agent.pending is not None and agent.pending.wake is not None:
            message = wake_messages.message_for(agent, finished)
            if message is not None:
                entries.append(message)
                if agents[message.id].pending is None:
                    instructions.append(Wake(message.id))
        if agent.inbox:
            instructions.append(Wake(agent.spec.id))
    return Decision(entries, instructions)


# --- Collecting results ---


def uncollected(agent: AgentRecord, asker: str | None) -> list[QueryResult]:
    """Return the results that `asker` has not collected yet, oldest first. A query may be in progress."""
    return [result for result in _results(agent) if result.stays and result.taken_by is None and result.asker == asker]


def kept_reply(agent: AgentRecord, item: str) -> Reply | None:
    """Return the complete reply to the question `item` of a map. Return None if the question must be asked."""
    replies = (result.reply for result in reversed(_results(agent)) if result.item == item)
    return next((reply for reply in replies if reply is not None and reply.is_complete), None)


def available_result(
    agent: AgentRecord, asker: str | None, *, again: bool = False, query: str = ""
) -> QueryResult | None:
    """Return the result that `asker` gets now. Return None if `asker` must wait.

    If `query` is set, return the result of that query. If it was already collected, `again` must be True. If `query` is
    "" and `again` is True, return the result that was collected last, if there is one.
    """
    results = _results(agent)
    if query:
        return next((each for each in results if each.query_id == query and (again or each.taken_by is None)), None)
    collected = [result for result in results if result.taken_by is not None]
    if again and collected and (agent.earlier or agent.pending is None):
        return max(collected, key=lambda result: result.taken_at or 0.0)
    if uncollected_results := uncollected(agent, asker):
        return uncollected_results[0]
    return (
        next((result for result in reversed(results) if result.taken_by is None), None) if not agent.pending else None
    )


def collect(agents: TreeState, event: CollectReply, now: float) -> Decision:
    """Return the decision that gives a result to the caller. Raises AgentBusyError or NoResultError."""
    agent = agents[event.id]
    agent_label = f"agent {agent.spec.name!r} ({event.id})"
    result = available_result(agent, event.asker, again=event.again, query=event.query)
    if result is not None and result.taken_by is not None:
        return Decision([], [], result)
    if result is not None:
        return Decision([ReplyCollected(at=now, id=event.id, query_id=result.query_id, by=event.by)], [], result)
    if agent.deleted:
        raise agent.refusal()
    if agent.pending is not None and event.query in ("", agent.pending.query_id):
        raise AgentBusyError(f"{agent_label} is still working on: {agent.pending.head}")
    if event.query:
        raise _missing_result_error(event.query, agent, agent_label)
    if agent.last is None:
        raise NoResultError(f"{agent_label} has no result to collect, because it was not queried")
    raise NoResultError(
        f"the last result of {agent_label} was already collected by {agent.last.taken_by} at "
        f"{iso_time(agent.last.taken_at or now)}; "
        f"`orch collect {agent.spec.seq} --again` (again=True) returns it once more"
    )


def _missing_result_error(query: str, agent: AgentRecord, agent_label: str) -> NoResultError:
    """Return the error for a missing result of `query`. The message lists the results that are stored."""
    results = _results(agent)
    if any(each.query_id == query for each in results):
        return NoResultError(
            f"the result of {agent_label} for query {query} was already collected; "
            f"`orch collect {agent.spec.seq} --query {query} --again` (again=True) returns it once more"
        )
    stored_results = [each.query_id + (" (collected)" if each.taken_by is not None else "") for each in results]
    return NoResultError(
        f"no result of {agent_label} for query {query[:40]} is stored; "
        f"stored results: {', '.join(stored_results) or 'none'}"
    )


def _results(agent: AgentRecord) -> list[QueryResult]:
    return [*agent.earlier, *([agent.last] if agent.last is not None else [])]
