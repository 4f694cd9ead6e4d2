"""Deletion of archives and sessions. This module removes them from the tree and redacts the journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import AgentBusyError, error_info
from orch_protocol.core.taint import without_sources
from orch_worker.conversation.stubs import deletion_marker

from ..agents.agent_record import (
    AgentRecord,
    archive_deleted_error,
    erase_session,
    forget_deleted,
    mark_archive_deleted,
    redacted_reply,
    redacted_spec,
)
from ..agents.state import TreeState, iso_time
from ..interface.events import DiscardSessions, RecordDeletion
from ..interface.instructions import Decision, Instruction, Notify, Signal
from ..interface.topics import ReadyTopic
from ..journal.entries import (
    AgentSpawned,
    AgentWoken,
    ContentDeleted,
    CustomEventEmitted,
    Entry,
    LocalOnlySet,
    ModelChanged,
    QueryFinished,
    QueryStarted,
    Snapshot,
    SourceMoved,
    SteeringDelivered,
    SteeringQueued,
    TaintAdded,
    TitleChanged,
    TurnsArchived,
    WorkerExited,
    WorkerReady,
)
from .query_results import finish_queries

__all__ = ["discard", "record_deletion", "redacted", "unrecorded"]


def record_deletion(agents: TreeState, event: RecordDeletion, now: float) -> Decision:
    """Return the decision for deleted archives. The holders of these archives no longer answer."""
    agent = agents[event.id]
    holders = {id: event.holders[id] for id in unrecorded(agents, agent, event.holders)}
    turns = {id: when for id, when in event.turns.items() if id not in agent.forgotten}
    if not holders and not turns:
        return Decision()
    finished_queries: list[QueryFinished] = []
    instructions: list[Instruction] = []
    for id, when in holders.items():
        holder = agents.get(id)
        if holder is None:
            continue
        error = error_info(archive_deleted_error(id, when))
        if holder.pending is not None:
            finished_queries.append(QueryFinished(at=now, id=id, query_id=holder.pending.query_id, error=error))
        if holder.status == "starting":
            instructions.append(Notify(ReadyTopic(id), None, error))
        if holder.running:
            instructions.append(Signal(id, holder.incarnation, "kill"))
    decision = finish_queries(agents, finished_queries)
    deletion_entry = ContentDeleted(at=now, id=event.id, holders=holders, turns=turns)
    return Decision([*decision.entries, deletion_entry], [*decision.instructions, *instructions])


def unrecorded(agents: TreeState, agent: AgentRecord, ids: Iterable[str]) -> list[str]:
    """Return those of the deleted archives `ids` of `agent` whose deletion is not recorded yet."""
    return [
        id
        for id in ids
        if not (holder.deleted if (holder := agents.get(id)) else id in agent.archives and not agent.archives[id])
    ]


def discard(agents: TreeState, event: DiscardSessions, now: float) -> Decision:
    """Return the entries that delete the sessions and archives of agents.

    After the deletion, the agents and the holders of their archives refuse every query. Raises AgentBusyError,
    SessionDeletedError.
    """
    return Decision([_discard(agents, agents[id], now) for id in event.ids])


def _discard(agents: TreeState, agent: AgentRecord, now: float) -> ContentDeleted:
    if agent.deleted:
        raise agent.refusal()
    holders = {id: holder for id in agent.children if (holder := agents[id]).is_holder}
    for each in (agent, *holders.values()):
        if each.running or each.pending is not None:
            raise AgentBusyError(
                f"agent {each.spec.name!r} ({each.spec.id}) has a process, so its session was not deleted"
            )
    if agent.status not in ("killed", "failed"):
        raise AgentBusyError(f"agent {agent.spec.name!r} ({agent.spec.id}) was resumed, so its session was not deleted")
    times = dict.fromkeys((*agent.archives, *holders), iso_time(now))
    return ContentDeleted(at=now, id=agent.spec.id, holders=times, session="going")


def redacted(entries: Sequence[Entry]) -> list[Entry]:
    """Return `entries` without deleted content. The ContentDeleted entries in `entries` specify what was deleted.

    The redacted entries result in the same tree. Unchanged entries are the same objects as before.
    """
    redaction = _Redaction(entries)
    return [redaction.redact(entry) for entry in entries]


class _Redaction:
    """Redacts single entries. The redaction follows the ContentDeleted entries of the whole journal."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        deletions = [entry for entry in entries if isinstance(entry, ContentDeleted)]
        self._deletions = deletions
        self._holders = {id: when for entry in deletions for id, when in entry.holders.items()}
        self._turns = {(entry.id, query): when for entry in deletions for query, when in entry.turns.items()}
        self._sessions = {entry.id: iso_time(entry.at) for entry in deletions if entry.session == "going"}
        self._source_changes = {entry.id: entry for entry in entries if isinstance(entry, SourceMoved)}
        self._finished = {entry.query_id for entry in entries if isinstance(entry, QueryFinished)}
        deleted_messages = set()
        turn_by_agent: dict[str, str] = {}
        for entry in entries if self._turns else ():
            if isinstance(entry, QueryStarted):
                turn_by_agent[entry.id] = entry.query_id
            elif isinstance(entry, SteeringDelivered) and (entry.id, turn_by_agent.get(entry.id, "")) in self._turns:
                deleted_messages.add(entry.steer_id)
        self._deleted_messages = deleted_messages

    def redact(self, entry: Entry) -> Entry:
        """Return `entry` without deleted content."""
        entry = self._without_notes(entry)
        match entry:
            case AgentSpawned(spec=spec) if (kept := self._redact_spec(spec)) != spec:
                return msgspec.structs.replace(entry, spec=kept)
            case Snapshot(id=id, state=state):
                return self._redact_snapshot(id, state, entry)
            case SourceMoved(id=id, source=source) if source is not None and (
                id in self._holders or self._source_changes[id] is not entry
            ):
                return msgspec.structs.replace(entry, source=None)
            case TurnsArchived(holders=old_holders) if any(task and id in self._holders for id, task in old_holders):
                holders = tuple((id, "" if id in self._holders else task) for id, task in old_holders)
                return msgspec.structs.replace(entry, holders=holders)
            case QueryStarted():
                return self._redact_query(entry)
            case QueryFinished(id=id, query_id=turn, reply=reply) if reply is not None and (
                when := self._deletion_time(id, turn)
            ):
                kept_reply = redacted_reply(reply, when)
                return msgspec.structs.replace(entry, reply=kept_reply) if kept_reply != reply else entry
            case SteeringQueued(id=id, steer_id=message_id, text=text) if text and (
                message_id in self._deleted_messages or id in self._holders or id in self._sessions
            ):
                return msgspec.structs.replace(entry, text="")
            case TitleChanged(id=id, title=title) if title and id in self._sessions:
                return msgspec.structs.replace(entry, title="")
            case CustomEventEmitted(id=id, data=data, query_id=turn) if data and self._deletion_time(id, turn):
                return msgspec.structs.replace(entry, data={})
            case AgentWoken(id=id, text=text) if text and id in self._sessions:
                return msgspec.structs.replace(entry, text="")
            case LocalOnlySet(id=id, backend=backend) if id in self._sessions and _without_options(backend) != backend:
                return msgspec.structs.replace(entry, backend=_without_options(backend))
            case ModelChanged(id=id, answers=answers) if (
                id in self._sessions and _without_options(answers.backend) != answers.backend
            ):
                answers = msgspec.structs.replace(answers, backend=_without_options(answers.backend))
                return msgspec.structs.replace(entry, answers=answers)
        return entry

    def _without_notes(self, entry: Entry) -> Entry:
        """Return an entry of a deleted session without errors, findings and sources of taint.

        Errors, findings and sources may quote the session.
        """
        when = self._sessions.get(getattr(entry, "id", ""), "")
        if not when:
            return entry
        match entry:
            case QueryFinished(error=error) if error is not None and error.message != deletion_marker(when):
                error = msgspec.structs.replace(error, message=deletion_marker(when))
                return msgspec.structs.replace(entry, error=error)
            case WorkerExited(error=text) if text:
                return msgspec.structs.replace(entry, error=None)
            case WorkerReady(repaired=text) | AgentSpawned(repaired=text) if text:
                return msgspec.structs.replace(entry, repaired="")
            case TurnsArchived(problem=text) if text:
                return msgspec.structs.replace(entry, problem="")
            case TaintAdded(marks=marks) if without_sources(marks) != marks:
                return msgspec.structs.replace(entry, marks=without_sources(marks))
        return entry

    def _redact_query(self, query: QueryStarted) -> QueryStarted:
        """Return the query without deleted content.

        If the query has ended, the result has no prompt and no images. If the content of the query was deleted, the
        result has no head either.
        """
        when = self._deletion_time(query.id, query.query_id)
        head = deletion_marker(when) if when else query.head
        without_prompt = when or query.query_id in self._finished
        prompt, images = ("", ()) if without_prompt else (query.prompt, query.images)
        is_unchanged = (head, prompt) == (query.head, query.prompt)
        return query if is_unchanged else msgspec.structs.replace(query, head=head, prompt=prompt, images=images)

    def _redact_snapshot(self, id: str, state: msgspec.Raw, entry: Snapshot) -> Snapshot:
        agent = msgspec.json.decode(state, type=AgentRecord)
        if agent.pending is not None:
            agent.pending = self._redact_query(agent.pending)
        for deletion in self._deletions:
            if deletion.id == id:
                forget_deleted(agent, deletion)
            if id in deletion.holders:
                mark_archive_deleted(agent, deletion.holders[id])
        if (when := self._sessions.get(id)) is not None:
            erase_session(agent, when)
        agent.spec = self._redact_spec(agent.spec)
        for steer_id, message in agent.unheard.items():
            if steer_id in self._deleted_messages:
                agent.unheard[steer_id] = msgspec.structs.replace(message, text="")
        encoded = msgspec.json.encode(agent)
        return entry if encoded == bytes(state) else msgspec.structs.replace(entry, state=msgspec.Raw(encoded))

    def _deletion_time(self, id: str, turn: str) -> str:
        """Return the time at which the content of the query `turn` to agent `id` was deleted.

        Return "" if it was not deleted.
        """
        return self._holders.get(id) or self._sessions.get(id) or self._turns.get((id, turn), "")

    def _redact_spec(self, spec: AgentSpec) -> AgentSpec:
        if (when := self._holders.get(spec.id)) is not None:
            return msgspec.structs.replace(spec, task=deletion_marker(when), source=None)
        if (when := self._sessions.get(spec.id)) is not None:
            return redacted_spec(spec, when)
        return msgspec.structs.replace(spec, source=None) if spec.id in self._source_changes else spec


def _without_options(backend: BackendSpec) -> BackendSpec:
    """Return `backend` with only those options that the tree needs."""
    options = {name: backend.options[name] for name in ("api", "context") if name in backend.options}
    return msgspec.structs.replace(backend, options=options)
