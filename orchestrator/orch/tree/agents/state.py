"""The agents of a run, as the fold of its journal. Nothing here is assigned except by applying an entry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import assert_never

import msgspec

from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.messages import Usage
from orch_protocol.policy.budget import BudgetAmounts, apply_change
from orch_worker.backends.registry import template_for

from ..journal.entries import (
    AgentEntry,
    AgentKilled,
    AgentPlanApproved,
    AgentResumed,
    AgentSpawned,
    AgentWoken,
    BudgetChanged,
    BudgetReleased,
    BudgetReserved,
    CatalogChanged,
    ContentDeleted,
    CredentialsSet,
    Entry,
    LocalOnlySet,
    ModelChanged,
    PlanStarted,
    QueryFinished,
    QueryStarted,
    QueueModesChanged,
    ReplyCollected,
    RootBudgetChanged,
    RunSnapshot,
    RunStarted,
    Snapshot,
    SourceMoved,
    SteeringDelivered,
    SteeringQueued,
    SteeringRetracted,
    TaintAdded,
    TitleChanged,
    ToolsRevoked,
    TranscriptRewritten,
    TurnsArchived,
    UsageRecorded,
    WorkerExited,
    WorkerLaunched,
    WorkerReady,
    WorkerStopping,
    decode_state,
)
from .agent_record import (
    AgentRecord,
    BusyTime,
    QueryResult,
    erase_session,
    forget_deleted,
    in_plan_mode,
    mark_archive_deleted,
)
from .agent_table import AgentTable
from .wake_messages import finished_line

__all__ = ["AgentRecord", "BudgetReservations", "QueryResult", "TreeState", "answered_by", "head_of", "iso_time"]

HEAD_CHARS = 80
MAX_UNCOLLECTED = 16
"""Answers that wait to be taken, of one agent, beside its last."""
MAX_REQUESTS = 4096
DEFAULT_NAME = re.compile(r"agent-([1-9][0-9]{0,17})")


@dataclass(slots=True)
class BudgetReservations:
    """What is put aside for a query: the least that each hold takes, and what was let go, the least of each too."""

    held: dict[str, BudgetAmounts] = field(default_factory=dict)
    let_go: list[BudgetAmounts] = field(default_factory=list)


class _RunState(msgspec.Struct):
    """What is no agent's; see the fields of Nodes."""

    at: float
    usage: Usage
    processes: int
    worked: BusyTime
    failed_starts: list[float]
    root_budgets: list[RootBudgetChanged]
    requests: dict[str, str]
    names: dict[str, str]
    past_names: dict[str, str]
    going: dict[str, str] = {}
    unlooked: set[str] = set()


def _encoded(state: AgentRecord | _RunState) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(state))


class TreeState:
    """All agents, by id, in the order they were spawned, with the indexes that questions about all of them need."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.by_id = AgentTable()
        self.names: dict[str, str] = {}
        """Ids of agents by name; a killed agent's name is free again."""
        self._past_names: dict[str, str] = {}
        """Ids of the youngest killed agents that had such a name, where that does not say their number."""
        self.alive: dict[str, AgentRecord] = {}
        self.pending: dict[str, AgentRecord] = {}
        self.warm: dict[str, AgentRecord] = {}
        """Holders that have a process."""
        self.holders: dict[str, str] = {}
        """Whose conversation each holder has a part of: ids by ids, of holders that were never asked too."""
        self.unlooked: set[str] = set()
        """Agents that may have archives of which nobody has told: their processes ended before they could, say."""
        self.requests: dict[str, str] = {}
        """What was spawned for whose request, of the youngest."""
        self.going: dict[str, str] = {}
        """The folders of agents whose sessions were deleted, as far as they may be there still, by id."""
        self.usage = Usage()
        """What all of them have used in turns that are over."""
        self.processes = 0
        """How many processes they have had; holders' are none."""
        self.failed_starts: list[float] = []
        """When processes ended before they were up, whosever they were, since one came up."""
        self.worked = BusyTime()
        """For how long any of them was at work."""
        self.root_budgets: list[RootBudgetChanged] = []
        """How the budget of all of them was changed, in order."""
        self.aside: dict[str, BudgetReservations] = {}
        """What is put aside for queries under way, by agent."""
        self._touched: list[AgentRecord] = []
        self._at = 0.0
        for entry in entries:
            self.apply(entry)

    def __getitem__(self, id: str) -> AgentRecord:
        return self.by_id[id]

    def __iter__(self) -> Iterator[AgentRecord]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, id: str | None) -> AgentRecord | None:
        """Return the agent with exactly that id, if there is one."""
        return self.by_id.find(id) if id is not None else None

    def called(self, name: str) -> AgentRecord | None:
        """Return the agent that goes by `name`; else the youngest that did before it was killed."""
        id = self.names.get(name) or self._past_names.get(name)
        found = self.get(id)
        said = DEFAULT_NAME.fullmatch(name)
        if said is None or name in self.names:
            return found
        numbered = self.by_id.at(int(said[1]))
        if numbered is None or numbered.spec.name != name or (found and found.spec.seq > numbered.spec.seq):
            return found
        return numbered

    def subtree(self, id: str) -> list[AgentRecord]:
        """Return the agent and everything below it, children before parents, youngest first."""
        node = self.by_id[id]
        below = [grandchild for child in reversed(node.children) for grandchild in self.subtree(child)]
        return [*below, node]

    def tree_usage(self, id: str) -> Usage:
        """Return what the agent and everything below it has used; the killed count too."""
        return sum((node.usage for node in self.subtree(id)), Usage())

    def apply(self, entry: Entry) -> None:
        """Change the state by `entry`. Entries about agents that do not exist are skipped."""
        elapsed, self._at = entry.at - self._at, entry.at
        match entry:
            case RunStarted():
                for worked in (self.worked, *(record.worked for record in self.by_id.unpacked())):
                    worked.skip(max(0.0, elapsed))
                return
            case RootBudgetChanged():
                self.root_budgets.append(entry)
                return
            case RunSnapshot():
                self._restore(decode_state(entry.state, _RunState))
                return
            case AgentSpawned():
                self._touched.append(self._apply_agent_spawned(entry))
            case Snapshot():
                self._touched.append(self._apply_snapshot(entry))
            case _:
                record = self._own(entry.id)
                if record is None:
                    return
                self._apply_to(record, entry)
        for record in self._touched:
            self._index(record)
        self._touched.clear()

    def _apply_to(self, record: AgentRecord, entry: AgentEntry) -> None:
        """Change the existing agent `record` by `entry`."""
        match entry:
            case QueryStarted():
                self._apply_query_started(record, entry)
            case QueryFinished():
                self._apply_query_finished(record, entry)
            case BudgetReserved():
                self._apply_budget_reserved(record, entry)
            case BudgetReleased():
                self._apply_budget_released(record, entry)
            case TranscriptRewritten():
                self._apply_transcript_rewritten(record, entry)
            case WorkerLaunched():
                self._apply_worker_launched(record, entry)
            case WorkerReady():
                self._apply_worker_ready(record, entry)
            case WorkerExited():
                self._apply_worker_exited(record, entry)
            case WorkerStopping():
                self._apply_worker_stopping(record, entry)
            case TurnsArchived():
                self._apply_turns_archived(record, entry)
            case ReplyCollected():
                self._apply_reply_collected(record, entry)
            case UsageRecorded():
                self._apply_usage_recorded(record, entry)
            case AgentKilled():
                self._apply_agent_killed(record, entry)
            case AgentResumed():
                self._apply_agent_resumed(record, entry)
            case BudgetChanged():
                self._apply_budget_changed(record, entry)
            case LocalOnlySet():
                self._apply_local_only_set(record, entry)
            case ModelChanged():
                self._apply_model_changed(record, entry)
            case CredentialsSet():
                self._apply_credentials_set(record, entry)
            case TaintAdded():
                self._apply_taint_added(record, entry)
            case ToolsRevoked():
                self._apply_tools_revoked(record, entry)
            case AgentPlanApproved():
                self._apply_plan_approved(record, entry)
            case PlanStarted():
                self._apply_plan_started(record, entry)
            case SteeringQueued():
                self._apply_steering_queued(record, entry)
            case SteeringDelivered():
                self._apply_steering_delivered(record, entry)
            case TitleChanged():
                self._apply_title_changed(record, entry)
            case CatalogChanged():
                self._apply_catalog_changed(record, entry)
            case SteeringRetracted():
                self._apply_steering_retracted(record, entry)
            case QueueModesChanged():
                self._apply_queue_modes_changed(record, entry)
            case SourceMoved():
                self._apply_source_moved(record, entry)
            case ContentDeleted():
                self._apply_content_deleted(record, entry)
            case AgentWoken():
                self._apply_agent_woken(record, entry)
            case _:
                assert_never(entry)

    def _own(self, id: str | None) -> AgentRecord | None:
        """Return the agent, for a change."""
        node = self.by_id.take(id) if id is not None else None
        if node is not None:
            self._touched.append(node)
        return node

    def _index(self, node: AgentRecord) -> None:
        id, name = node.spec.id, node.spec.name
        warm = node.is_holder and node.running
        for index, belongs in (
            (self.alive, node.alive),
            (self.pending, node.pending is not None),
            (self.warm, warm),
        ):
            if belongs:
                index[id] = node
            else:
                index.pop(id, None)
        if node.status != "killed":
            self.names[name] = id
            if self._past_names.get(name) == id:
                del self._past_names[name]
        elif self.names.get(name) == id:
            del self.names[name]
            if name != f"agent-{node.spec.seq}":
                self._past_names[name] = id
        self.by_id.put(node)

    def _apply_agent_spawned(self, entry: AgentSpawned) -> AgentRecord:
        node = AgentRecord(
            entry.spec,
            entry.at,
            entry.at,
            model=_model(entry.spec),
            repaired=entry.repaired,
            credentials=entry.credentials,
        )
        above = self.get(entry.spec.parent_id)
        if above is not None and above.pending is not None:
            node.payers = above.payers
        if node.is_holder or entry.cold:
            node.status = "cold"  # until somebody asks it
        if entry.cold and entry.spec.archival is not None:
            self.unlooked.add(entry.id)
        self.by_id.add(node)
        if entry.request_id is not None:
            self.requests[entry.request_id] = entry.id
            if len(self.requests) > MAX_REQUESTS:
                del self.requests[next(iter(self.requests))]
        parent = self._own(entry.spec.parent_id)
        if parent is not None:
            parent.children.append(entry.id)
        return node

    def _apply_snapshot(self, entry: Snapshot) -> AgentRecord:
        node = decode_state(entry.state, AgentRecord)
        self.by_id.add(node)
        self.holders |= dict.fromkeys(node.archives, entry.id)
        return node

    def kept(self, at: float) -> list[Entry]:
        """Return entries that come to what these agents are; none of them may be at work."""
        agents = [Snapshot(at=at, id=node.spec.id, state=_encoded(node)) for node in self]
        run = _RunState(
            self._at,
            self.usage,
            self.processes,
            self.worked,
            self.failed_starts,
            self.root_budgets,
            self.requests,
            self.names,
            self._past_names,
            self.going,
            self.unlooked,
        )
        return [*agents, RunSnapshot(at=at, state=_encoded(run))]

    def _restore(self, run: _RunState) -> None:
        self._at, self.usage, self.processes = run.at, run.usage, run.processes
        self.worked, self.failed_starts, self.root_budgets = run.worked, run.failed_starts, run.root_budgets
        self.requests, self.names, self._past_names = run.requests, run.names, run.past_names
        self.going, self.unlooked = run.going, run.unlooked

    def _apply_worker_launched(self, node: AgentRecord, entry: WorkerLaunched) -> None:
        if not node.is_holder:
            self.processes += entry.incarnation - node.incarnation
            if node.pending is not None or entry.incarnation == 1:
                for payer in self._payers(node):
                    payer.peer_processes += entry.incarnation - node.incarnation
        node.status, node.incarnation, node.pid, node.running = "starting", entry.incarnation, None, True
        node.stopping, node.error, node.last_activity = False, None, entry.at

    def _apply_worker_ready(self, node: AgentRecord, entry: WorkerReady) -> None:
        node.status, node.came_up = "busy" if node.pending else "idle", True
        self.failed_starts.clear()
        node.pid, node.model = entry.pid, entry.model or node.model
        node.context_tokens, node.context_limit = entry.context_tokens, entry.context_limit
        node.last_activity = entry.at
        node.repaired = entry.repaired or node.repaired
        node.untold = entry.repaired or node.untold
        node.transcript = entry.transcript or node.transcript
        # The transcript holds the seeded history from here on.
        node.spec = msgspec.structs.replace(node.spec, history=())

    def chain(self, id: str | None) -> Iterator[AgentRecord]:
        """Yield the agent and those above it; nobody for None."""
        node = self.get(id)
        while node is not None:
            yield node
            node = self.get(node.spec.parent_id)

    def _working(self, node: AgentRecord) -> Iterator[BusyTime]:
        yield self.worked
        above: AgentRecord | None = node
        while above is not None:
            yield above.worked
            above = self._own(above.spec.parent_id)
        for payer in self._payers(node):
            yield payer.worked

    def _payers(self, node: AgentRecord) -> list[AgentRecord]:
        """Return the payers of `node`, for a change."""
        return [payer for payer in map(self._own, node.payers) if payer is not None]

    def payers(self, asker: str | None, id: str) -> tuple[str, ...]:
        """Return the agents that are charged, besides the path of `id`, for what it uses when `asker` asks it.

        They are the asker, the agents above it, and its own payers. Agents on the path of `id` are left out: they are
        charged already.
        """
        node = self.get(asker)
        if node is None:
            return ()
        own = {each.spec.id for each in self.chain(id)}
        path = (*(each.spec.id for each in self.chain(asker)), *node.payers)
        return tuple(each for each in dict.fromkeys(path) if each not in own)

    def _apply_query_started(self, node: AgentRecord, entry: QueryStarted) -> None:
        if node.pending is None:
            if not entry.from_inbox:  # a turn that goes on with the answers to the last one's queries
                node.payers = self.payers(entry.asker, entry.id)
            for worked in self._working(node):
                worked.begin(entry.at)
        node.pending, node.last_activity = entry, entry.at
        node.queries += 1
        if node.status == "idle" and not node.stopping:
            node.status = "busy"
        if entry.from_inbox:
            node.inbox.clear()
        if entry.request_id is not None:
            node.requests = {entry.request_id: entry.query_id}
        asker = self._own(entry.asker)
        if asker is not None and entry.wake is not None:
            asker.watching[entry.id] = entry.wake

    def _apply_query_finished(self, node: AgentRecord, entry: QueryFinished) -> None:
        pending = node.pending
        if pending is not None:
            for worked in self._working(node):
                worked.end(entry.at)
        taken_at = entry.at if entry.taken_by else None
        asked_by = pending.asker if pending else None
        stays = pending is not None and pending.stays
        if node.last is not None and node.last.stays and node.last.taken_by is None:
            node.earlier = [*node.earlier, node.last][-MAX_UNCOLLECTED:]
        node.last = QueryResult(
            entry.query_id, entry.reply, entry.error, entry.taken_by, taken_at, asked_by, entry.ended, stays
        )
        node.pending, node.last_activity = None, entry.at
        self.aside.pop(entry.id, None)
        self._use(node, entry.usage)
        if entry.reply is not None and node.running:
            node.crashes.clear()
        if entry.reply is not None and entry.reply.warning:
            node.untold = ""
        node.context_tokens = entry.context_tokens or node.context_tokens
        node.transcript = entry.transcript or node.transcript
        if node.status == "busy":
            node.status = "idle"
        asker = self._own(asked_by)
        if asker is not None and asker.watching.pop(entry.id, None) is not None:
            asker.news.append(finished_line(node, entry))

    def _apply_transcript_rewritten(self, node: AgentRecord, entry: TranscriptRewritten) -> None:
        node.transcript = entry.transcript

    def _apply_reply_collected(self, node: AgentRecord, entry: ReplyCollected) -> None:
        node.earlier = [result for result in node.earlier if result.taken_by is None]
        for result in (*node.earlier, node.last):
            if result is not None and result.query_id == entry.query_id:
                result.taken_by, result.taken_at = entry.by, entry.at

    def _apply_worker_stopping(self, node: AgentRecord, _: WorkerStopping) -> None:
        node.stopping = True

    def _apply_worker_exited(self, node: AgentRecord, entry: WorkerExited) -> None:
        if entry.crash:
            node.crashes.append(entry.at)
            if node.status == "starting":
                self.failed_starts.append(entry.at)
        node.status = entry.status  # type: ignore[assignment]
        node.pid, node.running, node.stopping, node.error = None, False, False, entry.error
        node.exit_code, node.end = entry.code, entry.error or ""
        if node.queries and node.spec.archival is not None:
            self.unlooked.add(node.spec.id)

    def _apply_agent_killed(self, node: AgentRecord, entry: AgentKilled) -> None:
        node.last_activity = entry.at
        # What a holder holds is not to be lost by a kill: its process ends, and the next query starts another.
        node.status, node.stopping = ("cold", node.running) if node.is_holder else ("killed", False)

    def _apply_agent_resumed(self, node: AgentRecord, entry: AgentResumed) -> None:
        node.status, node.error, node.last_activity = "cold", None, entry.at
        node.crashes.clear()

    def _apply_budget_changed(self, node: AgentRecord, entry: BudgetChanged) -> None:
        limits = apply_change(node.spec.limits, entry)
        node.spec = msgspec.structs.replace(node.spec, limits=limits)

    def _apply_local_only_set(self, node: AgentRecord, entry: LocalOnlySet) -> None:
        node.spec = msgspec.structs.replace(node.spec, backend=entry.backend, local=True)
        node.model = _model(node.spec)

    def _apply_model_changed(self, node: AgentRecord, entry: ModelChanged) -> None:
        node.spec = answered_by(node.spec, entry.answers)
        node.model = _model(node.spec)
        node.context_limit = node.spec.backend.options.get("context") or node.context_limit

    def _apply_credentials_set(self, node: AgentRecord, entry: CredentialsSet) -> None:
        node.credentials = entry.credentials or node.credentials
        if entry.base_url:
            spec, provider = node.spec, node.spec.backend.provider
            at = {"base_url": entry.base_url}
            backend = msgspec.structs.replace(spec.backend, options=spec.backend.options | at)
            born = spec.born
            if born is not None and born.provider == provider:
                born = msgspec.structs.replace(born, options=born.options | at)
            node.spec = msgspec.structs.replace(spec, backend=backend, born=born)

    def _apply_taint_added(self, node: AgentRecord, entry: TaintAdded) -> None:
        node.spec = msgspec.structs.replace(node.spec, marks=entry.marks)

    def _apply_tools_revoked(self, node: AgentRecord, entry: ToolsRevoked) -> None:
        node.spec = msgspec.structs.replace(node.spec, withdrawn=entry.withdrawn)

    def _apply_plan_approved(self, node: AgentRecord, _: AgentPlanApproved) -> None:
        node.spec = msgspec.structs.replace(node.spec, plan=False)

    def _apply_plan_started(self, node: AgentRecord, entry: PlanStarted) -> None:
        node.spec = in_plan_mode(node.spec, entry.plan)

    def _apply_steering_queued(self, node: AgentRecord, entry: SteeringQueued) -> None:
        node.unheard[entry.steer_id] = entry

    def _apply_steering_delivered(self, node: AgentRecord, entry: SteeringDelivered) -> None:
        node.unheard.pop(entry.steer_id, None)

    def _apply_title_changed(self, node: AgentRecord, entry: TitleChanged) -> None:
        node.title = entry.title

    def _apply_catalog_changed(self, node: AgentRecord, entry: CatalogChanged) -> None:
        """Whoever wants to know what it is now asks for it: here it is not kept."""

    def _apply_steering_retracted(self, node: AgentRecord, entry: SteeringRetracted) -> None:
        for id in entry.steer_ids:
            node.unheard.pop(id, None)

    def _apply_queue_modes_changed(self, node: AgentRecord, entry: QueueModesChanged) -> None:
        node.spec = msgspec.structs.replace(node.spec, queue_mode=entry.steering, follow_up_mode=entry.follow_up)

    def _apply_turns_archived(self, node: AgentRecord, entry: TurnsArchived) -> None:
        node.archives.update(entry.holders)
        self.holders |= {id: node.spec.id for id, _ in entry.holders}
        if entry.looked:
            self.unlooked.discard(node.spec.id)
        node.context_tokens = entry.context_tokens or node.context_tokens
        node.repaired = entry.problem or node.repaired

    def _apply_source_moved(self, node: AgentRecord, entry: SourceMoved) -> None:
        node.spec = msgspec.structs.replace(node.spec, source=entry.source)

    def _apply_content_deleted(self, node: AgentRecord, entry: ContentDeleted) -> None:
        forget_deleted(node, entry)
        self.holders |= dict.fromkeys(entry.holders, node.spec.id)
        for id, when in entry.holders.items():
            holder = self._own(id)
            if holder is not None:
                mark_archive_deleted(holder, when)
        if entry.session == "going":
            erase_session(node, iso_time(entry.at))
            self.going[node.spec.id] = node.spec.folder
        elif entry.session:
            self.going.pop(node.spec.id, None)

    def _apply_usage_recorded(self, node: AgentRecord, entry: UsageRecorded) -> None:
        self._use(node, entry.usage)

    def _use(self, node: AgentRecord, usage: Usage) -> None:
        node.usage, self.usage = node.usage + usage, self.usage + usage
        for payer in self._payers(node):
            payer.peer_usage += usage

    def _apply_budget_reserved(self, node: AgentRecord, entry: BudgetReserved) -> None:
        if node.pending is not None and node.pending.query_id == entry.query_id:
            self.aside.setdefault(entry.id, BudgetReservations()).held[entry.hold] = entry.least

    def _apply_budget_released(self, _: AgentRecord, entry: BudgetReleased) -> None:
        aside = self.aside.get(entry.id)
        if aside is not None and (least := aside.held.pop(entry.hold, None)) is not None:
            aside.let_go.append(least)

    def _apply_agent_woken(self, node: AgentRecord, entry: AgentWoken) -> None:
        node.inbox.append(entry.text)
        node.news.clear()


def answered_by(spec: AgentSpec, answers: RecordModel) -> AgentSpec:
    """Return the agent that `spec` describes with another model, which its conversation has on record."""
    backend, born = answers.backend, spec.born or spec.backend
    return msgspec.structs.replace(
        spec, backend=backend, born=born, chosen=answers.chosen, template=template_for(backend)
    )


def head_of(prompt: str) -> str:
    """Return the first HEAD characters of `prompt` on one line."""
    line = " ".join(prompt[: HEAD_CHARS * 4].split())
    return line if len(line) <= HEAD_CHARS else line[: HEAD_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"


def iso_time(at: float) -> str:
    """Return epoch time `at` as ISO 8601 UTC to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _model(spec: AgentSpec) -> str:
    return f"{spec.backend.provider}:{spec.backend.model}" if spec.backend.model else spec.backend.provider
