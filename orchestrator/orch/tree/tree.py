"""The tree of agents, which decides what changes an event causes.

The tree uses no I/O, no clock and no event loop. The supervisor executes a decision in this order:

    decision = tree.decide(event, now)     # raises OrchError: rejected, nothing changed
    journal.append(decision.entries)       # write first,
    tree.apply(decision.entries)           # then change the state,
    perform(decision.instructions)         # then act
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
from orch_protocol.services.agents.status import Status
from orch_protocol.wire import worker_messages

from .agents.state import AgentRecord, TreeState
from .agents.wait_graph import check_no_cycle
from .interface.events import (
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
    DiscardSessions,
    Event,
    FinishQuery,
    KillRequested,
    LaunchFailed,
    LocalOnlyRequested,
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
    SetQueueModes,
    SpawnRequested,
    StartPlan,
    StartQuery,
    StartWorker,
    StopIfIdle,
    StopTimeout,
    TurnTimeout,
    WorkerBooted,
)
from .interface.instructions import Decision, Instruction, Notify, Send, Signal, Timer
from .interface.topics import ReadyTopic
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
from .rules import admission, deletions, inherited_rights, query_results, steering, unstarted_agents
from .rules.crash_policy import launch, on_process_exit, relaunch
from .rules.query_results import finish_queries
from .rules.restart_backoff import check_starts

__all__ = ["Tree"]

STOP_SECONDS = 5.0


class Tree:
    """Makes the decisions about the agents in `agents` within the limits of `config`."""

    def __init__(self, config: SubagentsConfig, entries: Iterable[Entry] = (), *, warm_holders: int = 4) -> None:
        self.config = config
        self.warm_holders = warm_holders
        self.agents = TreeState(entries)

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of agents is alive."""
        return len(self.agents.alive) >= self.config.max_concurrent

    def apply(self, entries: Iterable[Entry]) -> None:
        """Apply `entries` to the state."""
        for entry in entries:
            self.agents.apply(entry)

    def decide(self, event: Event, now: float) -> Decision:
        """Return the decision about `event` at the epoch time `now`. Raises OrchError if the tree rejects a request."""
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
                return query_results.collect(self.agents, event, now)
            case QueueSteering():
                return steering.steer(self.agents, event, now)
            case ConfirmSteering():
                return steering.confirm(self.agents, event, now)
            case RecordArchives():
                return unstarted_agents.record_archives(self.agents, event, now)
            case RecordUsage():
                return Decision([UsageRecorded(at=now, id=event.id, usage=event.usage)])
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
                return unstarted_agents.add_agent(self.agents, event, now)
            case AddHolder():
                return unstarted_agents.add_holder(self.agents, event, now)
            case RecordDeletion():
                return deletions.record_deletion(self.agents, event, now)
            case DiscardSessions():
                return deletions.discard(self.agents, event, now)
            case LocalOnlyRequested():
                return Decision([journaled.LocalOnlySet(at=now, id=event.id, backend=event.backend)])
            case ChangeModel():
                return Decision([journaled.ModelChanged(at=now, id=event.id, answers=event.answers)])
            case RecordCatalog():
                return Decision([journaled.CatalogChanged(at=now, id=event.id, digest=event.digest)])
            case AddTaint():
                return self._on_add_taint(event, now)
            case StopIfIdle():
                return self._on_stop_if_idle(event, now)
            case RestartWorker():
                return relaunch(self.agents, event, now)
            case RetireIdleAgents():
                return self._on_retire_idle_agents(event, now)
            case KillRequested():
                return self._on_kill(event, now)
            case ChangeTitle():
                return self._on_change_title(event, now)
            case RetractionRequested():
                return steering.retract(self.agents, event, now)
            case SetQueueModes():
                return steering.set_queue_modes(self.agents, event, now)
            case CancelRequested():
                return self._on_cancel_turn(event, now)
            case ResumeRequested():
                return self._on_resume(event, now)
            case RevokeTools():
                return inherited_rights.revoke_tools(self.agents, event, now)
            case ApprovePlan():
                return Decision([journaled.AgentPlanApproved(at=now, id=event.id)])
            case StartPlan():
                return Decision([journaled.PlanStarted(at=now, id=event.id, plan=event.plan)])
            case Recover():
                return self._on_recover(event, now)
            case _:
                assert_never(event)

    # Spawning.

    def _on_spawn(self, event: SpawnRequested, now: float) -> Decision:
        if event.request_id is not None and event.request_id in self.agents.requests:
            return Decision(value=self.agents.requests[event.request_id])
        if (known := self.agents.find_item(event.spec.parent_id, event.spec.item)) is not None:
            return Decision(value=known.spec.id)
        parent = self.agents[event.caller] if event.caller is not None else None
        spec = event.spec
        depth = spec.depth if parent is None else parent.spec.depth + 1
        admission.check_spawn(self.config, parent, spec, depth)
        room_entries, instructions = self._make_room(now) if event.start else ([], [])
        check_starts(self.agents.failed_starts, now)
        seq = len(self.agents) + 1
        name = admission.name_for(self.agents, spec.name, seq)
        spec = msgspec.structs.replace(
            spec, seq=seq, name=name, depth=depth, parent_id=event.caller if parent else spec.parent_id
        )
        spawned = AgentSpawned(
            at=now,
            id=spec.id,
            spec=spec,
            request_id=event.request_id,
            credentials=event.credentials,
            ends_with_connection=event.ends_with_connection,
            cold=not event.start,
        )
        if not event.start:
            return Decision([spawned], [], spec.id)
        entries = [*room_entries, spawned, WorkerLaunched(at=now, id=spec.id, incarnation=1)]
        return Decision(entries, [*instructions, *launch(spec.id, 1)], spec.id)

    def _on_worker_booted(self, event: WorkerBooted, now: float) -> Decision:
        agent = self.agents[event.id]
        if event.incarnation != agent.incarnation or agent.status != "starting" or not agent.running:
            return Decision()
        ready, repaired = event.ready, event.ready.repaired
        if not ready.entries and agent.last is not None:
            repaired = "the transcript is missing, so the agent has no memory of earlier queries"
        ready_entry = WorkerReady(
            at=now,
            id=event.id,
            pid=event.pid,
            model=ready.model,
            context_tokens=ready.context_tokens,
            context_limit=ready.context_limit,
            repaired=repaired,
            transcript=ready.transcript,
            executor_tools=ready.executor_tools,
        )
        instructions: list[Instruction] = [Notify(ReadyTopic(event.id))]
        instructions += [*inherited_rights.initial_frames(agent), *steering.initial_frames(agent)]
        if agent.pending is not None:
            instructions.append(Send(event.id, agent.pending.query_id))
        return Decision([ready_entry], instructions)

    def _on_launch_failed(self, event: LaunchFailed, now: float) -> Decision:
        return self._on_process_exited(
            ProcessExited(event.id, event.incarnation, None, detail=event.error, timed_out=event.timed_out), now
        )

    def _on_boot_timeout(self, event: BootTimeout, _: float) -> Decision:
        agent = self.agents[event.id]
        if agent.incarnation != event.incarnation or agent.status != "starting" or not agent.running:
            return Decision()
        return Decision([], [Signal(event.id, event.incarnation, "late")])

    # Querying.

    def _on_start_query(self, event: StartQuery, now: float) -> Decision:
        agent = self.agents[event.id]
        if event.request_id is not None and event.request_id in agent.requests:
            return Decision(value=agent.requests[event.request_id])
        spec = agent.spec
        asker = event.asker
        if asker is not None:
            admission.check_asker(self.agents[asker])
        if asker and (event.waits or asker == spec.id):
            check_no_cycle(self.agents.pending.values(), asker, agent)
        admission.check_can_be_queried(agent)
        if agent.pending is not None:
            raise AgentBusyError(
                f"agent {spec.name!r} ({spec.id}) is busy with: {agent.pending.head}; "
                f"wait for it, or collect its answer first"
            )
        started = QueryStarted(
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
            images=event.images if spec.persist else (),
            item=event.item,
        )
        if agent.status == "idle" and not agent.stopping:
            return Decision([started], [Send(spec.id, event.query_id)], event.query_id)
        if agent.status == "starting":
            return Decision([started], [], event.query_id)
        entries, instructions = self._start_worker(agent, now)
        return Decision([started, *entries], instructions, event.query_id)

    def _on_start_worker(self, event: StartWorker, now: float) -> Decision:
        agent = self.agents[event.id]
        admission.check_can_be_queried(agent)
        return Decision() if agent.running else Decision(*self._start_worker(agent, now))

    def _start_worker(self, agent: AgentRecord, now: float) -> tuple[list[Entry], list[Instruction]]:
        """Start a process for the agent unless the agent already has one."""
        entries, instructions = (
            self._limit_warm_holders(agent, now, answered=False) if agent.is_holder else self._make_room(now)
        )
        if not agent.running:
            check_starts(self.agents.failed_starts, now)
            incarnation = agent.incarnation + 1
            entries.append(WorkerLaunched(at=now, id=agent.spec.id, incarnation=incarnation))
            instructions += launch(agent.spec.id, incarnation)
        return entries, instructions

    def _make_room(self, now: float) -> tuple[list[Entry], list[Instruction]]:
        """If the process limit is reached, stop the process of the agent that has been idle longest."""
        if not self.is_full:
            return [], []
        idle = [other for other in self.agents.alive.values() if other.status == "idle" and not other.stopping]
        if not idle:
            raise admission.no_idle_agent_error(self.config, self.agents)
        return self._stop_process(min(idle, key=lambda other: other.last_activity), now)

    def _stop_process(self, agent: AgentRecord, now: float) -> tuple[list[Entry], list[Instruction]]:
        id, incarnation = agent.spec.id, agent.incarnation
        return (
            [WorkerStopping(at=now, id=id)],
            [Signal(id, incarnation, "stop"), Timer(STOP_SECONDS, StopTimeout(id, incarnation))],
        )

    def _on_finish_query(self, event: FinishQuery, now: float) -> Decision:
        agent = self.agents[event.id]
        if agent.pending is None or agent.pending.query_id != event.query_id:
            return Decision()
        finished = QueryFinished(
            at=now,
            id=event.id,
            query_id=event.query_id,
            reply=agent.with_warning(event.reply),
            error=event.error,
            usage=event.reply.usage if event.reply else event.usage,
            context_tokens=event.context_tokens,
            taken_by=event.taken_by,
            transcript=event.transcript,
        )
        decision = finish_queries(self.agents, [finished])
        if not agent.is_holder:
            return decision
        entries, instructions = self._limit_warm_holders(agent, now, answered=True)
        return Decision([*decision.entries, *entries], [*decision.instructions, *instructions])

    def _limit_warm_holders(
        self, agent: AgentRecord, now: float, *, answered: bool
    ) -> tuple[list[Entry], list[Instruction]]:
        """Stop processes of holders if more than the permitted number run. Keep `agent` and the holders that answered
        last.

        A holder that is answering keeps its process until the reply, even if the limit is exceeded.
        """
        others = [other for other in self.agents.warm.values() if other is not agent and not other.stopping]
        idle = sorted((other for other in others if other.status == "idle"), key=lambda other: other.last_activity)
        entries: list[Entry] = []
        instructions: list[Instruction] = []
        for other in [*idle, *([agent] if answered else [])][: max(0, len(others) + 1 - self.warm_holders)]:
            new_entries, new_instructions = self._stop_process(other, now)
            entries += new_entries
            instructions += new_instructions
        return entries, instructions

    # Facts about an agent.

    def _on_add_taint(self, event: AddTaint, now: float) -> Decision:
        marks = join_labels(self.agents[event.id].spec.marks, event.marks)
        return Decision([journaled.TaintAdded(at=now, id=event.id, marks=marks)])

    def _on_change_title(self, event: ChangeTitle, now: float) -> Decision:
        is_changed = event.title != self.agents[event.id].title
        return Decision([journaled.TitleChanged(at=now, id=event.id, title=event.title)] if is_changed else [])

    # Ending.

    def _on_stop_if_idle(self, event: StopIfIdle, now: float) -> Decision:
        agent = self.agents[event.id]
        return (
            Decision(*self._stop_process(agent, now)) if agent.status == "idle" and not agent.stopping else Decision()
        )

    def _on_process_exited(self, event: ProcessExited, now: float) -> Decision:
        return on_process_exit(self.agents, event, now, self.config.restarts)

    def _on_stop_timeout(self, event: StopTimeout, _: float) -> Decision:
        agent = self.agents[event.id]
        if agent.incarnation != event.incarnation or not agent.stopping:
            return Decision()
        return Decision([], [Signal(event.id, event.incarnation, "kill")])

    def _on_turn_timeout(self, event: TurnTimeout, _: float) -> Decision:
        agent = self.agents[event.id]
        if agent.incarnation != event.incarnation or agent.pending is None or agent.pending.query_id != event.query_id:
            return Decision()
        return Decision([], [Signal(event.id, event.incarnation, "late")])

    def _on_retire_idle_agents(self, event: RetireIdleAgents, now: float) -> Decision:
        seconds = self.config.timeout_minutes * 60
        entries: list[Entry] = []
        instructions: list[Instruction] = [Timer(min(60.0, seconds / 2), event)]
        for agent in self.agents.alive.values():
            if agent.status == "idle" and not agent.stopping and now - agent.last_activity >= seconds:
                new_entries, new_instructions = self._stop_process(agent, now)
                entries += new_entries
                instructions += new_instructions
        return Decision(entries, instructions)

    def _on_kill(self, event: KillRequested, now: float) -> Decision:
        agents: dict[str, AgentRecord] = {}
        for id in event.ids:
            agents |= {agent.spec.id: agent for agent in self.agents.subtree(id) if agent.status != "killed"}
        finished_queries: list[QueryFinished] = []
        killed: list[Entry] = []
        instructions: list[Instruction] = []
        for id, agent in agents.items():
            if agent.pending is not None:
                hint = (
                    "query it again: its content is still stored"
                    if agent.is_holder
                    else f"`orch resume {agent.spec.seq}` makes it usable again"
                )
                error = AgentGoneError(f"agent {agent.spec.name!r} ({id}) was killed by {event.by}; {hint}")
                query_id = agent.pending.query_id
                used = event.used.get(query_id, Usage())
                finished_queries.append(
                    QueryFinished(at=now, id=id, query_id=query_id, error=error_info(error), usage=used)
                )
            if agent.status == "starting":
                error = AgentGoneError(f"agent {agent.spec.name!r} ({id}) was killed by {event.by} while it started")
                instructions.append(Notify(ReadyTopic(id), None, error_info(error)))
            killed.append(AgentKilled(at=now, id=id, by=event.by))
            if agent.running:
                instructions.append(Signal(id, agent.incarnation, "kill"))
        decision = finish_queries(self.agents, finished_queries)
        return Decision([*decision.entries, *killed], [*decision.instructions, *instructions], tuple(agents))

    def _on_cancel_turn(self, event: CancelRequested, now: float) -> Decision:
        agent = self.agents[event.id]
        if agent.pending is None or agent.status != "busy":
            return Decision()
        if event.hard:
            killed_error = AgentDiedError(
                f"the turn of agent {agent.spec.name!r} ({event.id}) was ended together with its process"
            )
            killed_error = killed_error.as_outcome("killed")
            query_id, error = agent.pending.query_id, error_info(killed_error)
            finished = QueryFinished(at=now, id=event.id, query_id=query_id, error=error, usage=event.usage, ended=True)
            decision = finish_queries(self.agents, [finished])
            # As after a stop, the next process answers a query that arrives before the exit.
            kill = Signal(event.id, agent.incarnation, "kill")
            return Decision([*decision.entries, WorkerStopping(at=now, id=event.id)], [*decision.instructions, kill])
        return Decision([], [Send(event.id, agent.pending.query_id, "cancel", worker_messages.CancelCurrentTurn())])

    def _on_resume(self, event: ResumeRequested, now: float) -> Decision:
        agent = self.agents[event.id]
        if agent.deleted:
            raise agent.refusal()
        change = event.budget.limits()
        budget_entries: list[Entry] = [BudgetChanged(at=now, id=event.id, **change)] if change else []
        if agent.status not in ("killed", "failed"):
            return Decision(budget_entries)
        if agent.running:
            raise AgentBusyError(
                f"the process of agent {agent.spec.name!r} ({event.id}) was killed and has not ended yet; try again in "
                "a moment"
            )
        name_owner = self.agents.names.get(agent.spec.name)
        if name_owner is not None and name_owner != event.id:
            raise SpawnError(f"name {agent.spec.name!r} now belongs to agent {name_owner}; kill that agent first")
        resumed = AgentResumed(at=now, id=event.id, ends_with_connection=event.ends_with_connection)
        return Decision([*budget_entries, resumed])

    def _on_recover(self, event: Recover, now: float) -> Decision:
        finished_queries: list[QueryFinished] = []
        exit_entries: list[Entry] = []
        instructions: list[Instruction] = []
        for agent in self.agents.by_id.unpacked():
            id = agent.spec.id
            status: Status = "killed" if agent.status == "killed" else "cold"
            if agent.pending is not None and agent.pending.prompt and agent.pending.query_id not in event.begun:
                # The query was accepted, and no running caller could repeat the query.
                exit_entries.append(WorkerExited(at=now, id=id, incarnation=agent.incarnation, status="starting"))
                instructions.append(Timer(0.0, RestartWorker(id, agent.incarnation)))
                continue
            if agent.pending is not None:
                reply = event.replies.get(agent.pending.query_id)
                error = AgentDiedError(
                    f"agent {agent.spec.name!r} ({id}) was interrupted when its root ended; the next query starts a "
                    "new process"
                )
                finished_queries.append(
                    QueryFinished(
                        at=now,
                        id=id,
                        query_id=agent.pending.query_id,
                        reply=reply,
                        error=None if reply else error_info(error),
                        usage=reply.usage if reply else event.used.get(agent.pending.query_id, Usage()),
                        context_tokens=agent.context_tokens,
                    )
                )
                status = "cold" if reply else "died"
            if agent.running or agent.status == "starting":
                exit_entries.append(WorkerExited(at=now, id=id, incarnation=agent.incarnation, status=status))
        # Wake messages wait for the agent's next turn, because the start of a root does not start turns.
        return Decision(
            [RunStarted(at=now, pid=event.pid), *finish_queries(self.agents, finished_queries).entries, *exit_entries],
            instructions,
        )
