"""The agents of a run, computed by applying the entries of the run's journal. Nothing else changes this state."""

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
from orch_protocol.policy.budget import BudgetAmounts, apply_change, is_limited
from orch_protocol.session.entries import TranscriptPosition
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
    CustomEventEmitted,
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

__all__ = ["AgentRecord", "BudgetReservations", "QueryResult", "TreeState", "head_of", "iso_time", "with_model"]

HEAD_CHARS = 80
MAX_UNCOLLECTED = 16
"""Maximum number of uncollected results of an agent, not counting the agent's last result."""
MAX_REQUESTS = 4096
DEFAULT_NAME = re.compile(r"agent-([1-9][0-9]{0,17})")


@dataclass(slots=True)
class BudgetReservations:
    """The budget reservations of a query.

    `current` contains the minimum amounts of the current reservations, by reservation id. `released` contains those of
    the reservations that ended.
    """

    current: dict[str, BudgetAmounts] = field(default_factory=dict)
    released: list[BudgetAmounts] = field(default_factory=list)


class _RunState(msgspec.Struct):
    """State of the run as a whole; see the attributes of TreeState."""

    at: float
    usage: Usage
    processes: int
    worked: BusyTime
    failed_starts: list[float]
    root_budgets: list[RootBudgetChanged]
    requests: dict[str, str]
    names: dict[str, str]
    past_names: dict[str, str]
    unremoved_folders: dict[str, str] = msgspec.field(default_factory=dict)
    unsearched: set[str] = msgspec.field(default_factory=set)
    rewriting: dict[str, TranscriptPosition] = {}


def _encode_state(state: AgentRecord | _RunState) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(state))


class TreeState:
    """All agents by id, in the order in which they were spawned, with indexes for frequent lookups."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.by_id = AgentTable()
        self.names: dict[str, str] = {}
        """Ids of agents by name. When an agent is killed, the agent's name becomes free."""
        self._past_names: dict[str, str] = {}
        """Ids of the most recent killed agents by name. Default names are left out, because they contain the agent's
        number.
        """
        self.alive: dict[str, AgentRecord] = {}
        self.pending: dict[str, AgentRecord] = {}
        self.warm: dict[str, AgentRecord] = {}
        """Holders that have a process."""
        self.holders: dict[str, str] = {}
        """Ids of the agents that own the archives, by holder id. The table includes holders that were never queried."""
        self.unsearched: set[str] = set()
        """Agents whose transcripts may contain archives that the journal does not list.

        For example, a process can end before it reports an archive.
        """
        self.requests: dict[str, str] = {}
        """Ids of recently spawned agents, by the id of the spawn request."""
        self.items: dict[tuple[str, str], str] = {}
        """Ids of the agents for items of maps, by the id of their parent and the item. Killed agents are left out."""
        self.unremoved_folders: dict[str, str] = {}
        """Folders of deleted sessions that may still exist, by agent id."""
        self.rewriting: dict[str, TranscriptPosition] = {}
        """The last line of each transcript before its unfinished deletion, by agent id."""
        self.usage = Usage()
        """Usage of all agents in finished turns."""
        self.processes = 0
        """Number of processes started so far. Processes of holders do not count."""
        self.failed_starts: list[float] = []
        """Times at which a process of any agent ended before the process was ready.

        The list is cleared when a process becomes ready.
        """
        self.worked = BusyTime()
        """The time during which any agent worked."""
        self.root_budgets: list[RootBudgetChanged] = []
        """Changes to the budget of the whole run, in order."""
        self.has_budgets = False
        """Whether the run or any agent of the run has, or had, a budget with a limit. If not, no ledger is needed."""
        self.reservations: dict[str, BudgetReservations] = {}
        """Budget reservations of queries in progress, by agent id."""
        self._touched: list[AgentRecord] = []
        self._last_entry_at = 0.0
        for entry in entries:
            self.apply(entry)

    def __getitem__(self, id: str) -> AgentRecord:
        return self.by_id[id]

    def __iter__(self) -> Iterator[AgentRecord]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, id: str | None) -> AgentRecord | None:
        """Return the agent with the id `id`. Return None if `id` is None or unknown."""
        return self.by_id.find(id) if id is not None else None

    def find_item(self, parent_id: str | None, item: str) -> AgentRecord | None:
        """Return the agent for the item of a map below `parent_id`. Return None if there is no such agent."""
        return self.get(self.items.get((parent_id or "", item))) if item else None

    def find_by_name(self, name: str) -> AgentRecord | None:
        """Return the agent named `name`.

        If there is none, return the most recent killed agent that had this name, or None.
        """
        id = self.names.get(name) or self._past_names.get(name)
        agent = self.get(id)
        match = DEFAULT_NAME.fullmatch(name)
        if match is None or name in self.names:
            return agent
        agent_by_number = self.by_id.find_by_seq(int(match[1]))
        if (
            agent_by_number is None
            or agent_by_number.spec.name != name
            or (agent and agent.spec.seq > agent_by_number.spec.seq)
        ):
            return agent
        return agent_by_number

    def subtree(self, id: str) -> list[AgentRecord]:
        """Return the agent and its descendants, children before parents, youngest first."""
        record = self.by_id[id]
        descendants = [grandchild for child in reversed(record.children) for grandchild in self.subtree(child)]
        return [*descendants, record]

    def tree_usage(self, id: str) -> Usage:
        """Return the usage of the agent and its descendants, including killed ones."""
        return sum((record.usage for record in self.subtree(id)), Usage())

    def apply(self, entry: Entry) -> None:
        """Apply `entry` to the state. Entries about unknown agents are skipped."""
        elapsed, self._last_entry_at = entry.at - self._last_entry_at, entry.at
        match entry:
            case RunStarted():
                for worked in (self.worked, *(record.worked for record in self.by_id.unpacked())):
                    worked.skip(max(0.0, elapsed))
                return
            case RootBudgetChanged():
                self.root_budgets.append(entry)
                self.has_budgets = True
                return
            case RunSnapshot():
                self._restore(msgspec.json.decode(entry.state, type=_RunState))
                return
            case AgentSpawned():
                self._touched.append(self._apply_agent_spawned(entry))
            case Snapshot():
                self._touched.append(self._apply_snapshot(entry))
            case _:
                record = self._take_agent(entry.id)
                if record is None:
                    return
                self._apply_to(record, entry)
        for record in self._touched:
            self._index(record)
        self._touched.clear()

    def _apply_to(self, record: AgentRecord, entry: AgentEntry) -> None:
        """Apply `entry` to the agent `record`."""
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
            case CatalogChanged() | CustomEventEmitted():
                pass  # for readers of the journal
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

    def _take_agent(self, id: str | None) -> AgentRecord | None:
        """Return the agent `id` for modification, or None."""
        record = self.by_id.take(id) if id is not None else None
        if record is not None:
            self._touched.append(record)
        return record

    def _index(self, record: AgentRecord) -> None:
        id, name = record.spec.id, record.spec.name
        warm = record.is_holder and record.running
        for index, is_member in (
            (self.alive, record.alive),
            (self.pending, record.pending is not None),
            (self.warm, warm),
        ):
            if is_member:
                index[id] = record
            else:
                index.pop(id, None)
        if item := record.spec.item:
            place = (record.spec.parent_id or "", item)
            if record.status != "killed":
                self.items[place] = id
            elif self.items.get(place) == id:
                del self.items[place]
        if record.status != "killed":
            self.names[name] = id
            if self._past_names.get(name) == id:
                del self._past_names[name]
        elif self.names.get(name) == id:
            del self.names[name]
            if name != f"agent-{record.spec.seq}":
                self._past_names[name] = id
        self.by_id.put(record)

    def _apply_agent_spawned(self, entry: AgentSpawned) -> AgentRecord:
        record = AgentRecord(
            entry.spec,
            entry.at,
            entry.at,
            model=_model_name(entry.spec),
            repaired=entry.repaired,
            credentials=entry.credentials,
            ends_with_connection=entry.ends_with_connection,
        )
        self.has_budgets = self.has_budgets or is_limited(entry.spec.limits)
        spawner = self.get(entry.spec.parent_id)
        if spawner is not None and spawner.pending is not None:
            record.payers = spawner.payers
        if record.is_holder or entry.cold:
            record.status = "cold"  # until the first query
        if entry.cold and entry.spec.archival is not None:
            self.unsearched.add(entry.id)
        self.by_id.add(record)
        if entry.request_id is not None:
            self.requests[entry.request_id] = entry.id
            if len(self.requests) > MAX_REQUESTS:
                del self.requests[next(iter(self.requests))]
        parent = self._take_agent(entry.spec.parent_id)
        if parent is not None:
            parent.children.append(entry.id)
        return record

    def _apply_snapshot(self, entry: Snapshot) -> AgentRecord:
        record = msgspec.json.decode(entry.state, type=AgentRecord)
        self.has_budgets = self.has_budgets or is_limited(record.spec.limits)
        self.by_id.add(record)
        self.holders |= dict.fromkeys(record.archives, entry.id)
        return record

    def snapshot_entries(self, at: float) -> list[Entry]:
        """Return snapshot entries that describe the whole state. The caller must ensure that no agent is working."""
        agents = [Snapshot(at=at, id=record.spec.id, state=_encode_state(record)) for record in self]
        run = _RunState(
            self._last_entry_at,
            self.usage,
            self.processes,
            self.worked,
            self.failed_starts,
            self.root_budgets,
            self.requests,
            self.names,
            self._past_names,
            self.unremoved_folders,
            self.unsearched,
            self.rewriting,
        )
        return [*agents, RunSnapshot(at=at, state=_encode_state(run))]

    def _restore(self, run: _RunState) -> None:
        self._last_entry_at, self.usage, self.processes = run.at, run.usage, run.processes
        self.worked, self.failed_starts, self.root_budgets = run.worked, run.failed_starts, run.root_budgets
        self.requests, self.names, self._past_names = run.requests, run.names, run.past_names
        self.unremoved_folders, self.unsearched, self.rewriting = run.unremoved_folders, run.unsearched, run.rewriting
        self.has_budgets = self.has_budgets or bool(run.root_budgets)

    def _apply_worker_launched(self, record: AgentRecord, entry: WorkerLaunched) -> None:
        if not record.is_holder:
            self.processes += entry.incarnation - record.incarnation
            if record.pending is not None or entry.incarnation == 1:
                for payer in self._take_payers(record):
                    payer.peer_processes += entry.incarnation - record.incarnation
        record.status, record.incarnation, record.pid, record.running = "starting", entry.incarnation, None, True
        record.stopping, record.error, record.last_activity = False, None, entry.at

    def _apply_worker_ready(self, record: AgentRecord, entry: WorkerReady) -> None:
        record.status, record.came_up = "busy" if record.pending else "idle", True
        self.failed_starts.clear()
        record.pid, record.model = entry.pid, entry.model or record.model
        record.context_tokens, record.context_limit = entry.context_tokens, entry.context_limit
        record.last_activity = entry.at
        record.repaired = entry.repaired or record.repaired
        record.untold = entry.repaired or record.untold
        record.transcript = entry.transcript or record.transcript
        executor = record.spec.executor
        if executor is not None and entry.executor_tools is not None:
            executor = msgspec.structs.replace(executor, tools=entry.executor_tools)
        # From here on, the transcript contains the seeded history.
        record.spec = msgspec.structs.replace(record.spec, history=(), executor=executor)

    def chain(self, id: str | None) -> Iterator[AgentRecord]:
        """Yield the agent `id` and its ancestors. If `id` is None, yield nothing."""
        record = self.get(id)
        while record is not None:
            yield record
            record = self.get(record.spec.parent_id)

    def _busy_times(self, record: AgentRecord) -> list[BusyTime]:
        """Return the busy times that include a turn of `record`. The caller modifies them."""
        times, ancestor_id = [self.worked, record.worked], record.spec.parent_id
        while ancestor_id is not None and (parent := self._take_agent(ancestor_id)) is not None:
            times.append(parent.worked)
            ancestor_id = parent.spec.parent_id
        if record.payers:
            times += [payer.worked for payer in self._take_payers(record)]
        return times

    def _take_payers(self, record: AgentRecord) -> list[AgentRecord]:
        """Return the agents that are charged for the query of `record`. The caller modifies them."""
        return [payer for payer in map(self._take_agent, record.payers) if payer is not None]

    def payers(self, asker: str | None, id: str) -> tuple[str, ...]:
        """Return the agents that are charged for a query of `asker` to agent `id`, in addition to `id` and its
        ancestors.

        The result contains the asker, the asker's ancestors, and the agents that are charged for the asker's own query.
        Ancestors of `id` are left out, because they are charged anyway.
        """
        record = self.get(asker)
        if record is None:
            return ()
        charged_anyway = {each.spec.id for each in self.chain(id)}
        askers = (*(each.spec.id for each in self.chain(asker)), *record.payers)
        return tuple(each for each in dict.fromkeys(askers) if each not in charged_anyway)

    def _apply_query_started(self, record: AgentRecord, entry: QueryStarted) -> None:
        if record.pending is None:
            if not entry.from_inbox:  # a turn that was started from the inbox continues the last turn
                record.payers = self.payers(entry.asker, entry.id) if entry.asker is not None else ()
            for worked in self._busy_times(record):
                worked.begin(entry.at)
        record.pending, record.last_activity = entry, entry.at
        record.queries += 1
        if record.status == "idle" and not record.stopping:
            record.status = "busy"
        if entry.from_inbox:
            record.inbox.clear()
        if entry.request_id is not None:
            record.requests = {entry.request_id: entry.query_id}
        if entry.wake is not None and (asker := self._take_agent(entry.asker)) is not None:
            asker.watching[entry.id] = entry.wake

    def _apply_query_finished(self, record: AgentRecord, entry: QueryFinished) -> None:
        pending = record.pending
        if pending is not None:
            for worked in self._busy_times(record):
                worked.end(entry.at)
        taken_at = entry.at if entry.taken_by else None
        asker_id = pending.asker if pending else None
        stays = pending is not None and pending.stays
        item = pending.item if pending is not None else ""
        if record.last is not None and record.last.stays and record.last.taken_by is None:
            record.earlier = [*record.earlier, record.last][-MAX_UNCOLLECTED:]
        record.last = QueryResult(
            entry.query_id, entry.reply, entry.error, entry.taken_by, taken_at, asker_id, entry.ended, stays, item
        )
        record.pending, record.last_activity = None, entry.at
        self.reservations.pop(entry.id, None)
        self._add_usage(record, entry.usage)
        if entry.reply is not None and record.running:
            record.crashes.clear()
        if entry.reply is not None and entry.reply.warning:
            record.untold = ""
        record.context_tokens = entry.context_tokens or record.context_tokens
        record.transcript = entry.transcript or record.transcript
        if record.status == "busy":
            record.status = "idle"
        asker = self._take_agent(asker_id) if asker_id is not None else None
        if asker is not None and asker.watching.pop(entry.id, None) is not None:
            asker.news.append(finished_line(record, entry))

    def _apply_transcript_rewritten(self, record: AgentRecord, entry: TranscriptRewritten) -> None:
        if entry.before is not None:
            self.rewriting.setdefault(record.spec.id, entry.before)
        elif entry.transcript is not None:
            self.rewriting.pop(record.spec.id, None)
        # A turn may have ended between the rewrite and the entry about the rewrite. The line of this turn comes later
        # in the file.
        if entry.transcript is None or record.transcript is None:
            record.transcript = entry.transcript

    def _apply_reply_collected(self, record: AgentRecord, entry: ReplyCollected) -> None:
        record.earlier = [result for result in record.earlier if result.taken_by is None]
        for result in (*record.earlier, record.last):
            if result is not None and result.query_id == entry.query_id:
                result.taken_by, result.taken_at = entry.by, entry.at

    def _apply_worker_stopping(self, record: AgentRecord, _: WorkerStopping) -> None:
        record.stopping = True

    def _apply_worker_exited(self, record: AgentRecord, entry: WorkerExited) -> None:
        if entry.crash:
            record.crashes.append(entry.at)
            if record.status == "starting":
                self.failed_starts.append(entry.at)
        record.status = entry.status  # type: ignore[assignment]
        record.pid, record.running, record.stopping, record.error = None, False, False, entry.error
        record.exit_code, record.end = entry.code, entry.error or ""
        if record.queries and record.spec.archival is not None:
            self.unsearched.add(record.spec.id)

    def _apply_agent_killed(self, record: AgentRecord, entry: AgentKilled) -> None:
        record.last_activity = entry.at
        # The archive of a killed holder still exists. The holder's process ends, and the next query starts a new
        # process.
        record.status, record.stopping = ("cold", record.running) if record.is_holder else ("killed", False)

    def _apply_agent_resumed(self, record: AgentRecord, entry: AgentResumed) -> None:
        record.status, record.error, record.last_activity = "cold", None, entry.at
        record.ends_with_connection = entry.ends_with_connection
        record.crashes.clear()

    def _apply_budget_changed(self, record: AgentRecord, entry: BudgetChanged) -> None:
        limits = apply_change(record.spec.limits, entry)
        self.has_budgets = True
        record.spec = msgspec.structs.replace(record.spec, limits=limits)

    def _apply_local_only_set(self, record: AgentRecord, entry: LocalOnlySet) -> None:
        record.spec = msgspec.structs.replace(record.spec, backend=entry.backend, local=True)
        record.model = _model_name(record.spec)

    def _apply_model_changed(self, record: AgentRecord, entry: ModelChanged) -> None:
        record.spec = with_model(record.spec, entry.answers)
        record.model = _model_name(record.spec)
        record.context_limit = record.spec.backend.options.get("context") or record.context_limit

    def _apply_credentials_set(self, record: AgentRecord, entry: CredentialsSet) -> None:
        record.credentials = entry.credentials or record.credentials
        if entry.base_url:
            spec, provider = record.spec, record.spec.backend.provider
            changed_options = {"base_url": entry.base_url}
            backend = msgspec.structs.replace(spec.backend, options=spec.backend.options | changed_options)
            born = spec.born
            if born is not None and born.provider == provider:
                born = msgspec.structs.replace(born, options=born.options | changed_options)
            record.spec = msgspec.structs.replace(spec, backend=backend, born=born)

    def _apply_taint_added(self, record: AgentRecord, entry: TaintAdded) -> None:
        record.spec = msgspec.structs.replace(record.spec, marks=entry.marks)

    def _apply_tools_revoked(self, record: AgentRecord, entry: ToolsRevoked) -> None:
        record.spec = msgspec.structs.replace(record.spec, withdrawn=entry.withdrawn)

    def _apply_plan_approved(self, record: AgentRecord, _: AgentPlanApproved) -> None:
        record.spec = msgspec.structs.replace(record.spec, plan=False)

    def _apply_plan_started(self, record: AgentRecord, entry: PlanStarted) -> None:
        record.spec = in_plan_mode(record.spec, entry.plan)

    def _apply_steering_queued(self, record: AgentRecord, entry: SteeringQueued) -> None:
        record.unheard[entry.steer_id] = entry

    def _apply_steering_delivered(self, record: AgentRecord, entry: SteeringDelivered) -> None:
        record.unheard.pop(entry.steer_id, None)

    def _apply_title_changed(self, record: AgentRecord, entry: TitleChanged) -> None:
        record.title = entry.title

    def _apply_steering_retracted(self, record: AgentRecord, entry: SteeringRetracted) -> None:
        for id in entry.steer_ids:
            record.unheard.pop(id, None)

    def _apply_queue_modes_changed(self, record: AgentRecord, entry: QueueModesChanged) -> None:
        record.spec = msgspec.structs.replace(record.spec, queue_mode=entry.steering, follow_up_mode=entry.follow_up)

    def _apply_turns_archived(self, record: AgentRecord, entry: TurnsArchived) -> None:
        record.archives.update(entry.holders)
        self.holders |= {id: record.spec.id for id, _ in entry.holders}
        if entry.looked:
            self.unsearched.discard(record.spec.id)
        record.context_tokens = entry.context_tokens or record.context_tokens
        record.repaired = entry.problem or record.repaired

    def _apply_source_moved(self, record: AgentRecord, entry: SourceMoved) -> None:
        record.spec = msgspec.structs.replace(record.spec, source=entry.source)

    def _apply_content_deleted(self, record: AgentRecord, entry: ContentDeleted) -> None:
        forget_deleted(record, entry)
        self.holders |= dict.fromkeys(entry.holders, record.spec.id)
        for id, when in entry.holders.items():
            holder = self._take_agent(id)
            if holder is not None:
                mark_archive_deleted(holder, when)
        if entry.session == "going":
            erase_session(record, iso_time(entry.at))
            self.unremoved_folders[record.spec.id] = record.spec.folder
            self.rewriting.pop(record.spec.id, None)
        elif entry.session:
            self.unremoved_folders.pop(record.spec.id, None)

    def _apply_usage_recorded(self, record: AgentRecord, entry: UsageRecorded) -> None:
        self._add_usage(record, entry.usage)

    def _add_usage(self, record: AgentRecord, usage: Usage) -> None:
        record.usage, self.usage = record.usage + usage, self.usage + usage
        if record.payers:
            for payer in self._take_payers(record):
                payer.peer_usage += usage

    def _apply_budget_reserved(self, record: AgentRecord, entry: BudgetReserved) -> None:
        if record.pending is not None and record.pending.query_id == entry.query_id:
            self.reservations.setdefault(entry.id, BudgetReservations()).current[entry.hold] = entry.minimum

    def _apply_budget_released(self, _: AgentRecord, entry: BudgetReleased) -> None:
        reservations = self.reservations.get(entry.id)
        if reservations is not None and (minimum := reservations.current.pop(entry.hold, None)) is not None:
            reservations.released.append(minimum)

    def _apply_agent_woken(self, record: AgentRecord, entry: AgentWoken) -> None:
        record.inbox.append(entry.text)
        record.news.clear()


def with_model(spec: AgentSpec, answers: RecordModel) -> AgentSpec:
    """Return `spec` with the model in `answers`, which the agent's conversation records."""
    backend, born = answers.backend, spec.born or spec.backend
    return msgspec.structs.replace(
        spec, backend=backend, born=born, chosen=answers.chosen, template=template_for(backend)
    )


def head_of(prompt: str) -> str:
    """Return the first `HEAD_CHARS` characters of `prompt` on one line."""
    line = " ".join(prompt[: HEAD_CHARS * 4].split())
    return line if len(line) <= HEAD_CHARS else line[: HEAD_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"


def iso_time(at: float) -> str:
    """Return epoch time `at` as ISO 8601 UTC to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _model_name(spec: AgentSpec) -> str:
    return f"{spec.backend.provider}:{spec.backend.model}" if spec.backend.model else spec.backend.provider
