"""What a root forgets when archives are deleted: in its tree, and in its journal, where nothing may tell of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import AgentBusyError, error_info
from orch_worker.conversation.stubs import deletion_marker

from ..agents.agent_record import (
    AgentRecord,
    archive_deleted_error,
    forget_deleted,
    mark_archive_deleted,
    redacted_reply,
    redacted_spec,
)
from ..agents.agent_record import erase_session as empty
from ..agents.state import TreeState, iso_time
from ..journal.entries import (
    AgentSpawned,
    AgentWoken,
    ContentDeleted,
    Entry,
    LocalOnlySet,
    ModelChanged,
    QueryFinished,
    QueryStarted,
    Snapshot,
    SourceMoved,
    SteeringDelivered,
    SteeringQueued,
    TitleChanged,
    TurnsArchived,
    decode_state,
)
from ..journal.events import Decision, DiscardSession, Instruction, Notify, RecordDeletion, Signal
from .query_results import finish_queries

__all__ = ["discard", "record_deletion", "redacted"]


def record_deletion(nodes: TreeState, event: RecordDeletion, now: float) -> Decision:
    """Return what follows when archives are deleted: their holders answer nobody any more."""
    node = nodes[event.id]
    known = {id for id in event.holders if (holder := nodes.get(id)) is not None and holder.deleted}
    known |= {id for id in event.holders if id in node.archives and not node.archives[id] and id not in nodes.by_id}
    holders = {id: when for id, when in event.holders.items() if id not in known}
    turns = {id: when for id, when in event.turns.items() if id not in node.forgotten}
    if not holders and not turns:
        return Decision()
    answers: list[QueryFinished] = []
    instructions: list[Instruction] = []
    for id, when in holders.items():
        holder = nodes.get(id)
        if holder is None:
            continue
        why = error_info(archive_deleted_error(id, when))
        if holder.pending is not None:
            answers.append(QueryFinished(at=now, id=id, query_id=holder.pending.query_id, error=why))
        if holder.status == "starting":
            instructions.append(Notify(f"up:{id}", None, why))
        if holder.running:
            instructions.append(Signal(id, holder.incarnation, "kill"))
    settled = finish_queries(nodes, answers)
    pruned = ContentDeleted(at=now, id=event.id, holders=holders, turns=turns)
    return Decision([*settled.entries, pruned], [*settled.instructions, *instructions])


def discard(nodes: TreeState, event: DiscardSession, now: float) -> Decision:
    """Return what follows when all that was said to an agent is to be deleted: it answers nobody any more, and neither
    does what holds its archives. Raises AgentBusyError, SessionDeletedError."""
    node = nodes[event.id]
    if node.deleted:
        raise node.refusal()
    holders = {id: holder for id in node.children if (holder := nodes[id]).is_holder}
    for each in (node, *holders.values()):
        if each.running or each.pending is not None:
            raise AgentBusyError(f"agent {each.spec.name!r} ({each.spec.id}) has a process: its session stays")
    if node.status not in ("killed", "failed"):
        raise AgentBusyError(f"agent {node.spec.name!r} ({node.spec.id}) was resumed: its session stays")
    when = dict.fromkeys((*node.archives, *holders), iso_time(now))
    return Decision([ContentDeleted(at=now, id=event.id, holders=when, session="going")])


def redacted(entries: Sequence[Entry]) -> list[Entry]:
    """Return a journal's `entries` without what they tell of what others among them say was deleted.

    Folded they make the same tree. An entry that stays as it is is the same object.
    """
    redaction = _Redaction(entries)
    return [redaction.of(entry) for entry in entries]


class _Redaction:
    """Goes through the entries in order, knowing all of them."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        pruned = [entry for entry in entries if isinstance(entry, ContentDeleted)]
        self._pruned = pruned
        self._holders = {id: when for entry in pruned for id, when in entry.holders.items()}
        self._turns = {(entry.id, turn): when for entry in pruned for turn, when in entry.turns.items()}
        self._sessions = {entry.id: iso_time(entry.at) for entry in pruned if entry.session == "going"}
        self._moved = {entry.id: entry for entry in entries if isinstance(entry, SourceMoved)}
        self._over = {entry.query_id for entry in entries if isinstance(entry, QueryFinished)}
        heard = set()
        turn: dict[str, str] = {}
        for entry in entries if self._turns else ():
            if isinstance(entry, QueryStarted):
                turn[entry.id] = entry.query_id
            elif isinstance(entry, SteeringDelivered) and (entry.id, turn.get(entry.id, "")) in self._turns:
                heard.add(entry.steer_id)
        self._heard = heard

    def of(self, entry: Entry) -> Entry:
        """Return the entry as it may be kept."""
        match entry:
            case AgentSpawned(spec=spec) if (kept := self._spec(spec)) != spec:
                return msgspec.structs.replace(entry, spec=kept)
            case Snapshot(id=id, state=state):
                return self._kept(id, state, entry)
            case SourceMoved(id=id, source=source) if source is not None and (
                id in self._holders or self._moved[id] is not entry
            ):
                return msgspec.structs.replace(entry, source=None)
            case TurnsArchived(holders=told) if any(task and id in self._holders for id, task in told):
                holders = tuple((id, "" if id in self._holders else task) for id, task in told)
                return msgspec.structs.replace(entry, holders=holders)
            case QueryStarted():
                return self._query(entry)
            case QueryFinished(id=id, query_id=turn, reply=reply) if reply is not None and (
                when := self._when(id, turn)
            ):
                kept_reply = redacted_reply(reply, when)
                return msgspec.structs.replace(entry, reply=kept_reply) if kept_reply != reply else entry
            case SteeringQueued(id=id, steer_id=steered, text=text) if text and (
                steered in self._heard or id in self._holders or id in self._sessions
            ):
                return msgspec.structs.replace(entry, text="")
            case TitleChanged(id=id, title=title) if title and id in self._sessions:
                return msgspec.structs.replace(entry, title="")
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

    def _query(self, asked: QueryStarted) -> QueryStarted:
        """Return the query without its prompt if it is over, and without its head if what it said was deleted."""
        when = self._when(asked.id, asked.query_id)
        head = deletion_marker(when) if when else asked.head
        prompt = "" if when or asked.query_id in self._over else asked.prompt
        same = (head, prompt) == (asked.head, asked.prompt)
        return asked if same else msgspec.structs.replace(asked, head=head, prompt=prompt)

    def _kept(self, id: str, state: msgspec.Raw, entry: Snapshot) -> Snapshot:
        node = decode_state(state, AgentRecord)
        if node.pending is not None:
            node.pending = self._query(node.pending)
        for pruned in self._pruned:
            if pruned.id == id:
                forget_deleted(node, pruned)
            if id in pruned.holders:
                mark_archive_deleted(node, pruned.holders[id])
        if (when := self._sessions.get(id)) is not None:
            empty(node, when)
        node.spec = self._spec(node.spec)
        for steer_id, steered in node.unheard.items():
            if steer_id in self._heard:
                node.unheard[steer_id] = msgspec.structs.replace(steered, text="")
        kept = msgspec.json.encode(node)
        return entry if kept == bytes(state) else msgspec.structs.replace(entry, state=msgspec.Raw(kept))

    def _when(self, id: str, turn: str) -> str:
        """Return when what agent `id` was asked by the query `turn` was deleted, "" when it was not."""
        return self._holders.get(id) or self._sessions.get(id) or self._turns.get((id, turn), "")

    def _spec(self, spec: AgentSpec) -> AgentSpec:
        if (when := self._holders.get(spec.id)) is not None:
            return msgspec.structs.replace(spec, task=deletion_marker(when), source=None)
        if (when := self._sessions.get(spec.id)) is not None:
            return redacted_spec(spec, when)
        return msgspec.structs.replace(spec, source=None) if spec.id in self._moved else spec


def _without_options(backend: BackendSpec) -> BackendSpec:
    """Return `backend` without what it is given to say, and with what the tree goes by."""
    options = {name: backend.options[name] for name in ("api", "context") if name in backend.options}
    return msgspec.structs.replace(backend, options=options)
