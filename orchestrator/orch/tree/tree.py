"""The tree of agents: what follows from an event. No I/O, no clock, no event loop.

decision = tree.decide(event, now)     # raises OrchError: refused, nothing changed
journal.append(decision.entries)       # first written,
tree.apply(decision.entries)           # then true,
perform(decision.instructions)         # then acted on
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from orch_protocol.agent.config import SubagentsConfig
from orch_protocol.core.errors import (
    AgentBusyError,
    AgentDiedError,
    AgentGoneError,
    SpawnError,
    error_info,
)
from orch_protocol.core.messages import Usage
from orch_protocol.core.taint import join_labels
from orch_protocol.services.requests import Status
from orch_protocol.wire import worker_messages

from .agents.state import AgentRecord, TreeState
from .agents.wait_graph import check_no_cycle
from .journal import entries as journaled
from .journal.entries import (
    AgentKilled,
    AgentResumed,
    AgentSpawned,
    BudgetChanged,
    Entry,
    QueryFinished,
    QueryStarted,
    RunStarted,
    UsageRecorded,
    WorkerExited,
    WorkerLaunched,
    WorkerReady,
    WorkerStopping,
)
from .journal.events import (
    AddAgent,
    AddHolder,
    AddTaint,
    ApprovePlan,
    BootTimeout,
    CancelRequested,
    ChangeModel,
    ChangeTitle,
    CollectReply,
    ConfirmSteering,
    Decision,
    DiscardSession,
    Event,
    FinishQuery,
    Instruction,
    KillRequested,
    LaunchFailed,
    LocalOnlyRequested,
    Notify,
    ProcessExited,
    QueueSteering,
    RecordArchives,
    RecordCatalog,
    RecordDeletion,
    RecordUsage,
    Recover,
    RestartWorker,
    ResumeRequested,
    RetireIdleAgents,
    RetractionRequested,
    RevokeTools,
    Send,
    SetQueueModes,
    Signal,
    SpawnRequested,
    StartPlan,
    StartQuery,
    StartWorker,
    StopIfIdle,
    StopTimeout,
    Timer,
    TurnTimeout,
    WorkerBooted,
)
from .rules import admission, deletions, inherited_rights, query_results, steering, unstarted_agents
from .rules.crash_policy import launch, on_process_exit, relaunch
from .rules.query_results import finish_queries
from .rules.restart_backoff import check_starts

__all__ = ["Tree"]

STOP_SECONDS = 5.0


class Tree:
    """Decides over the agents in `agents`, under the limits of `config`."""

    def __init__(self, config: SubagentsConfig, entries: Iterable[Entry] = (), *, warm_holders: int = 4) -> None:
        self.config = config
        self.warm_holders = warm_holders
        self.agents = TreeState(entries)

    def apply(self, entries: Iterable[Entry]) -> None:
        """Make `entries` true."""
        for entry in entries:
            self.agents.apply(entry)

    def decide(self, event: Event, now: float) -> Decision:
        """Return what follows from `event` at epoch time `now`. Raises OrchError for a request that is refused."""
        match event:
            case StartQuery():
                return self._on_start_query(event, now)
            case FinishQuery():
                return self._on_finish_query(event, now)
            case WorkerBooted():
                return self._on_worker_booted(event, now)
            case ProcessExited():
                return self._on_process_exited(event, now)
            case SpawnRequested():
                return self._on_spawn(event, now)
            case CollectReply():
                return self._on_collect_reply(event, now)
            case QueueSteering():
                return self._on_queue_steering(event, now)
            case ConfirmSteering():
                return self._on_confirm_steering(event, now)
            case RecordArchives():
                return self._on_record_archives(event, now)
            case RecordUsage():
                return self._on_record_usage(event, now)
            case BootTimeout():
                return self._on_boot_timeout(event, now)
            case StopTimeout():
                return self._on_stop_timeout(event, now)
            case TurnTimeout():
                return self._on_turn_timeout(event, now)
            case LaunchFailed():
                return self._on_launch_failed(event, now)
            case StartWorker():
                return self._on_start_worker(event, now)
            case AddAgent():
                return self._on_add_agent(event, now)
            case AddHolder():
                return self._on_add_holder(event, now)
            case RecordDeletion():
                return self._on_record_deletion(event, now)
            case DiscardSession():
                return self._on_discard_session(event, now)
            case LocalOnlyRequested():
                return self._on_restrict_to_local(event, now)
            case ChangeModel():
                return self._on_change_model(event, now)
            case RecordCatalog():
                return self._on_record_catalog(event, now)
            case AddTaint():
                return self._on_add_taint(event, now)
            case StopIfIdle():
                return self._on_stop_if_idle(event, now)
            case RestartWorker():
                return self._on_restart_worker(event, now)
            case RetireIdleAgents():
                return self._on_retire_idle_agents(event, now)
            case KillRequested():
                return self._on_kill(event, now)
            case ChangeTitle():
                return self._on_change_title(event, now)
            case RetractionRequested():
                return self._on_retract_steering(event, now)
            case SetQueueModes():
                return self._on_set_queue_modes(event, now)
            case CancelRequested():
                return self._on_cancel_turn(event, now)
            case ResumeRequested():
                return self._on_resume(event, now)
            case RevokeTools():
                return self._on_revoke_tools(event, now)
            case ApprovePlan():
                return self._on_approve_plan(event, now)
            case StartPlan():
                return self._on_start_plan(event, now)
            case Recover():
                return self._on_recover(event, now)
            case _:
                assert_never(event)

    # Spawning.

    def _on_spawn(self, event: SpawnRequested, now: float) -> Decision:
        if event.request_id is not None and event.request_id in self.agents.requests:
            return Decision(value=self.agents.requests[event.request_id])
        parent = self.agents[event.caller] if event.caller is not None else None
        spec = event.spec
        depth = spec.depth if parent is None else parent.spec.depth + 1
        admission.check_spawn(self.config, parent, spec, depth)
        admission.check_concurrency(self.config, self.agents)
        check_starts(self.agents.failed_starts, now)
        seq = len(self.agents) + 1
        name = admission.name_for(self.agents, spec.name, seq)
        spec = msgspec.structs.replace(
            spec, seq=seq, name=name, depth=depth, parent_id=event.caller if parent else spec.parent_id
        )
        entries: list[Entry] = [
            AgentSpawned(at=now, id=spec.id, spec=spec, request_id=event.request_id, credentials=event.credentials),
            WorkerLaunched(at=now, id=spec.id, incarnation=1),
        ]
        return Decision(entries, launch(spec.id, 1), spec.id)

    def _on_worker_booted(self, event: WorkerBooted, now: float) -> Decision:
        node = self.agents[event.id]
        if event.incarnation != node.incarnation or node.status != "starting" or not node.running:
            return Decision()
        ready, repaired = event.ready, event.ready.repaired
        if not ready.entries and node.last is not None:
            repaired = "its transcript is gone: it remembers nothing of what it was asked before"
        up = WorkerReady(
            at=now,
            id=event.id,
            pid=event.pid,
            model=ready.model,
            context_tokens=ready.context_tokens,
            context_limit=ready.context_limit,
            repaired=repaired,
            transcript=ready.transcript,
        )
        instructions: list[Instruction] = [Notify(f"up:{event.id}")]
        instructions += [*inherited_rights.reminder(node), *steering.reminder(node)]
        if node.pending is not None:
            instructions.append(Send(event.id, node.pending.query_id))
        return Decision([up], instructions)

    def _on_launch_failed(self, event: LaunchFailed, now: float) -> Decision:
        return self._on_process_exited(
            ProcessExited(event.id, event.incarnation, None, detail=event.error, late=event.late), now
        )

    def _on_boot_timeout(self, event: BootTimeout, _: float) -> Decision:
        node = self.agents[event.id]
        if node.incarnation != event.incarnation or node.status != "starting" or not node.running:
            return Decision()
        return Decision([], [Signal(event.id, event.incarnation, "late")])

    # Asking.

    def _on_start_query(self, event: StartQuery, now: float) -> Decision:
        node = self.agents[event.id]
        if event.request_id is not None and event.request_id in node.requests:
            return Decision(value=node.requests[event.request_id])
        spec = node.spec
        asker = event.asker
        if asker is not None:
            admission.check_asker(self.agents[asker])
        if asker and (event.waits or asker == spec.id):
            check_no_cycle(self.agents.pending.values(), asker, node)
        admission.check_answers(node)
        if node.pending is not None:
            raise AgentBusyError(
                f"agent {spec.name!r} ({spec.id}) is busy with: {node.pending.head}; "
                f"wait for it, or collect its answer first"
            )
        asked = QueryStarted(
            at=now,
            id=spec.id,
            query_id=event.query_id,
            head=event.head,
            asker=asker,
            waits=event.waits,
            wake=event.wake,
            from_inbox=event.from_inbox,
            request_id=event.request_id,
            stays=event.stays,
            prompt=event.prompt if spec.persist else "",
        )
        if node.status == "idle" and not node.stopping:
            return Decision([asked], [Send(spec.id, event.query_id)], event.query_id)
        if node.status == "starting":
            return Decision([asked], [], event.query_id)
        entries, instructions = self._start_worker(node, now)
        return Decision([asked, *entries], instructions, event.query_id)

    def _on_start_worker(self, event: StartWorker, now: float) -> Decision:
        node = self.agents[event.id]
        admission.check_answers(node)
        return Decision() if node.running else Decision(*self._start_worker(node, now))

    def _start_worker(self, node: AgentRecord, now: float) -> tuple[list[Entry], list[Instruction]]:
        """Let the agent have a process, if it has none."""
        entries, instructions = (
            self._limit_warm_holders(node, now, answered=False) if node.is_holder else self._make_room(now)
        )
        if not node.running:
            check_starts(self.agents.failed_starts, now)
            incarnation = node.incarnation + 1
            entries.append(WorkerLaunched(at=now, id=node.spec.id, incarnation=incarnation))
            instructions += launch(node.spec.id, incarnation)
        return entries, instructions

    def _make_room(self, now: float) -> tuple[list[Entry], list[Instruction]]:
        """Let there be room for one more process: at the limit the agent that idled longest is sent to sleep."""
        if len(self.agents.alive) < self.config.max_concurrent:
            return [], []
        idle = [other for other in self.agents.alive.values() if other.status == "idle" and not other.stopping]
        if not idle:
            raise admission.no_idle_agent_error(self.config, self.agents)
        return self._retire(min(idle, key=lambda other: other.last_activity), now)

    def _retire(self, node: AgentRecord, now: float) -> tuple[list[Entry], list[Instruction]]:
        id, incarnation = node.spec.id, node.incarnation
        return (
            [WorkerStopping(at=now, id=id)],
            [Signal(id, incarnation, "stop"), Timer(STOP_SECONDS, StopTimeout(id, incarnation))],
        )

    def _on_finish_query(self, event: FinishQuery, now: float) -> Decision:
        node = self.agents[event.id]
        if node.pending is None or node.pending.query_id != event.query_id:
            return Decision()
        answered = QueryFinished(
            at=now,
            id=event.id,
            query_id=event.query_id,
            reply=node.with_warning(event.reply),
            error=event.error,
            usage=event.reply.usage if event.reply else event.usage,
            context_tokens=event.context_tokens,
            taken_by=event.taken_by,
            transcript=event.transcript,
        )
        settled = finish_queries(self.agents, [answered])
        if not node.is_holder:
            return settled
        entries, instructions = self._limit_warm_holders(node, now, answered=True)
        return Decision([*settled.entries, *entries], [*settled.instructions, *instructions])

    # Agents without a process: those that have a transcript already, and holders.

    def _on_add_agent(self, event: AddAgent, now: float) -> Decision:
        return unstarted_agents.add_agent(self.agents, event, now)

    def _on_add_holder(self, event: AddHolder, now: float) -> Decision:
        return unstarted_agents.add_holder(self.agents, event, now)

    def _on_record_archives(self, event: RecordArchives, now: float) -> Decision:
        return unstarted_agents.record_archives(self.agents, event, now)

    def _on_record_deletion(self, event: RecordDeletion, now: float) -> Decision:
        return deletions.record_deletion(self.agents, event, now)

    def _on_discard_session(self, event: DiscardSession, now: float) -> Decision:
        return deletions.discard(self.agents, event, now)

    def _on_restrict_to_local(self, event: LocalOnlyRequested, now: float) -> Decision:
        return Decision([journaled.LocalOnlySet(at=now, id=event.id, backend=event.backend)])

    def _on_change_model(self, event: ChangeModel, now: float) -> Decision:
        return Decision([journaled.ModelChanged(at=now, id=event.id, answers=event.answers)])

    def _on_record_catalog(self, event: RecordCatalog, now: float) -> Decision:
        return Decision([journaled.CatalogChanged(at=now, id=event.id, digest=event.digest)])

    def _on_add_taint(self, event: AddTaint, now: float) -> Decision:
        marks = join_labels(self.agents[event.id].spec.marks, event.marks)
        return Decision([journaled.TaintAdded(at=now, id=event.id, marks=marks)])

    def _on_record_usage(self, event: RecordUsage, now: float) -> Decision:
        return Decision([UsageRecorded(at=now, id=event.id, usage=event.usage)])

    def _limit_warm_holders(
        self, node: AgentRecord, now: float, *, answered: bool
    ) -> tuple[list[Entry], list[Instruction]]:
        """Let as many holders have a process as may, `node` among them: those that answered last.

        One that answers keeps its process until then, however many there are.
        """
        others = [other for other in self.agents.warm.values() if other is not node and not other.stopping]
        idle = sorted((other for other in others if other.status == "idle"), key=lambda other: other.last_activity)
        entries: list[Entry] = []
        instructions: list[Instruction] = []
        for other in [*idle, *([node] if answered else [])][: max(0, len(others) + 1 - self.warm_holders)]:
            more, acts = self._retire(other, now)
            entries += more
            instructions += acts
        return entries, instructions

    # Ending.

    def _on_stop_if_idle(self, event: StopIfIdle, now: float) -> Decision:
        node = self.agents[event.id]
        return Decision(*self._retire(node, now)) if node.status == "idle" and not node.stopping else Decision()

    def _on_process_exited(self, event: ProcessExited, now: float) -> Decision:
        return on_process_exit(self.agents, event, now, self.config.restarts)

    def _on_restart_worker(self, event: RestartWorker, now: float) -> Decision:
        return relaunch(self.agents, event, now)

    def _on_stop_timeout(self, event: StopTimeout, _: float) -> Decision:
        node = self.agents[event.id]
        if node.incarnation != event.incarnation or not node.stopping:
            return Decision()
        return Decision([], [Signal(event.id, event.incarnation, "kill")])

    def _on_turn_timeout(self, event: TurnTimeout, _: float) -> Decision:
        node = self.agents[event.id]
        if node.incarnation != event.incarnation or node.pending is None or node.pending.query_id != event.query_id:
            return Decision()
        return Decision([], [Signal(event.id, event.incarnation, "late")])

    def _on_retire_idle_agents(self, event: RetireIdleAgents, now: float) -> Decision:
        seconds = self.config.timeout_minutes * 60
        entries: list[Entry] = []
        instructions: list[Instruction] = [Timer(min(60.0, seconds / 2), event)]
        for node in self.agents.alive.values():
            if node.status == "idle" and not node.stopping and now - node.last_activity >= seconds:
                more, acts = self._retire(node, now)
                entries += more
                instructions += acts
        return Decision(entries, instructions)

    def _on_kill(self, event: KillRequested, now: float) -> Decision:
        doomed: dict[str, AgentRecord] = {}
        for id in event.ids:
            doomed |= {node.spec.id: node for node in self.agents.subtree(id) if node.status != "killed"}
        answers: list[QueryFinished] = []
        killed: list[Entry] = []
        instructions: list[Instruction] = []
        for id, node in doomed.items():
            if node.pending is not None:
                after = (
                    "ask again, what it holds is kept"
                    if node.is_holder
                    else f"`orch resume {node.spec.seq}` brings it back"
                )
                gone = AgentGoneError(f"agent {node.spec.name!r} ({id}) was killed by {event.by}; {after}")
                query_id = node.pending.query_id
                used = event.used.get(query_id, Usage())
                answers.append(QueryFinished(at=now, id=id, query_id=query_id, error=error_info(gone), usage=used))
            if node.status == "starting":
                gone = AgentGoneError(f"agent {node.spec.name!r} ({id}) was killed by {event.by} as it started")
                instructions.append(Notify(f"up:{id}", None, error_info(gone)))
            killed.append(AgentKilled(at=now, id=id, by=event.by))
            if node.running:
                instructions.append(Signal(id, node.incarnation, "kill"))
        settled = finish_queries(self.agents, answers)
        return Decision([*settled.entries, *killed], [*settled.instructions, *instructions], tuple(doomed))

    def _on_queue_steering(self, event: QueueSteering, now: float) -> Decision:
        return steering.steer(self.agents, event, now)

    def _on_confirm_steering(self, event: ConfirmSteering, now: float) -> Decision:
        return steering.confirm(self.agents, event, now)

    def _on_change_title(self, event: ChangeTitle, now: float) -> Decision:
        new = event.title != self.agents[event.id].title
        return Decision([journaled.TitleChanged(at=now, id=event.id, title=event.title)] if new else [])

    def _on_retract_steering(self, event: RetractionRequested, now: float) -> Decision:
        return steering.retract(self.agents, event, now)

    def _on_set_queue_modes(self, event: SetQueueModes, now: float) -> Decision:
        return steering.set_queue_modes(self.agents, event, now)

    def _on_cancel_turn(self, event: CancelRequested, now: float) -> Decision:
        node = self.agents[event.id]
        if node.pending is None or node.status != "busy":
            return Decision()
        if event.hard:
            cut = AgentDiedError(f"the turn of agent {node.spec.name!r} ({event.id}) was ended with its process")
            cut = cut.as_outcome("killed")
            query_id, error = node.pending.query_id, error_info(cut)
            answered = QueryFinished(at=now, id=event.id, query_id=query_id, error=error, usage=event.usage, ended=True)
            settled = finish_queries(self.agents, [answered])
            # Who asks it meanwhile is answered by the next process, as when this one had been asked to leave.
            kill = Signal(event.id, node.incarnation, "kill")
            return Decision([*settled.entries, WorkerStopping(at=now, id=event.id)], [*settled.instructions, kill])
        return Decision([], [Send(event.id, node.pending.query_id, "cancel", worker_messages.CancelCurrentTurn())])

    def _on_resume(self, event: ResumeRequested, now: float) -> Decision:
        node = self.agents[event.id]
        if node.deleted:
            raise node.refusal()
        change = event.budget.limits()
        limit: list[Entry] = [BudgetChanged(at=now, id=event.id, **change)] if change else []
        if node.status not in ("killed", "failed"):
            return Decision(limit)
        if node.running:
            raise AgentBusyError(
                f"the process of agent {node.spec.name!r} ({event.id}) was killed and has not ended yet: try again soon"
            )
        holder = self.agents.names.get(node.spec.name)
        if holder is not None and holder != event.id:
            raise SpawnError(f"name {node.spec.name!r} is now agent {holder}'s; kill that one first")
        return Decision([*limit, AgentResumed(at=now, id=event.id)])

    def _on_revoke_tools(self, event: RevokeTools, now: float) -> Decision:
        return inherited_rights.revoke_tools(self.agents, event, now)

    def _on_approve_plan(self, event: ApprovePlan, now: float) -> Decision:
        return Decision([journaled.AgentPlanApproved(at=now, id=event.id)])

    def _on_start_plan(self, event: StartPlan, now: float) -> Decision:
        return Decision([journaled.PlanStarted(at=now, id=event.id, plan=event.plan)])

    def _on_collect_reply(self, event: CollectReply, now: float) -> Decision:
        return query_results.collect(self.agents, event, now)

    def _on_recover(self, event: Recover, now: float) -> Decision:
        answers: list[QueryFinished] = []
        ended: list[Entry] = []
        instructions: list[Instruction] = []
        for node in self.agents.by_id.unpacked():
            id = node.spec.id
            status: Status = "killed" if node.status == "killed" else "cold"
            if node.pending is not None and node.pending.prompt and node.pending.query_id not in event.begun:
                # The query was accepted, and nobody waits who could ask it again.
                ended.append(WorkerExited(at=now, id=id, incarnation=node.incarnation, status="starting"))
                instructions.append(Timer(0.0, RestartWorker(id, node.incarnation)))
                continue
            if node.pending is not None:
                reply = event.replies.get(node.pending.query_id)
                lost = AgentDiedError(
                    f"agent {node.spec.name!r} ({id}) was cut short when its root ended; the next query revives it"
                )
                answers.append(
                    QueryFinished(
                        at=now,
                        id=id,
                        query_id=node.pending.query_id,
                        reply=reply,
                        error=None if reply else error_info(lost),
                        usage=reply.usage if reply else event.used.get(node.pending.query_id, Usage()),
                        context_tokens=node.context_tokens,
                    )
                )
                status = "cold" if reply else "died"
            if node.running or node.status == "starting":
                ended.append(WorkerExited(at=now, id=id, incarnation=node.incarnation, status=status))
        # News waits for its reader's next turn: nobody starts to work because a root did.
        return Decision(
            [RunStarted(at=now, pid=event.pid), *finish_queries(self.agents, answers).entries, *ended], instructions
        )
