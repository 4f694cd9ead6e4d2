"""The tree of agents: what follows from an event. No I/O, no clock, no event loop.

decision = tree.decide(event, now)     # raises OrchError: refused, nothing changed
journal.append(decision.entries)       # first written,
tree.apply(decision.entries)           # then true,
perform(decision.instructions)         # then acted on
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from orch_protocol.agent.config import SubagentsConfig
from orch_protocol.core.errors import (
    AgentBusyError,
    AgentDiedError,
    AgentGoneError,
    QueryCycleError,
    SpawnError,
    error_info,
)
from orch_protocol.core.messages import Usage
from orch_protocol.core.taint import joined
from orch_protocol.services.requests import Status
from orch_protocol.wire import worker_messages

from .agents.state import Node, Nodes
from .journal import entries as journaled
from .journal.entries import (
    Answered,
    Asked,
    Budgeted,
    Ended,
    Entry,
    Killed,
    Launched,
    Opened,
    Resumed,
    Spawned,
    Spent,
    Stopping,
    Up,
)
from .journal.events import (
    Adopt,
    ApprovePlan,
    Archived,
    Ask,
    BeginPlan,
    BootOverdue,
    Cancel,
    CatalogChanged,
    Choose,
    Collect,
    Decision,
    Deleted,
    Discard,
    Event,
    Finish,
    Gone,
    Hear,
    Hold,
    Instruction,
    Kill,
    LaunchFailed,
    Localise,
    MarkAgent,
    Narrow,
    Notify,
    Recover,
    Relaunch,
    Rest,
    Resume,
    Rouse,
    Send,
    SetHearing,
    Signal,
    Spawn,
    Spend,
    Steer,
    StopOverdue,
    Sweep,
    Timer,
    Title,
    TurnOverdue,
    Unsay,
    WorkerUp,
)
from .rules import admission, deletions, inherited_rights, query_results, steering, unstarted_agents
from .rules.crash_policy import launch, lost, relaunch
from .rules.query_results import settle
from .rules.restart_backoff import check_starts

__all__ = ["Tree"]

STOP_SECONDS = 5.0


class Tree:
    """Decides over the agents in `nodes`, under the limits of `config`."""

    def __init__(self, config: SubagentsConfig, entries: Iterable[Entry] = (), *, warm_holders: int = 4) -> None:
        self.config = config
        self.warm_holders = warm_holders
        self.nodes = Nodes(entries)

    def apply(self, entries: Iterable[Entry]) -> None:
        """Make `entries` true."""
        for entry in entries:
            self.nodes.apply(entry)

    def decide(self, event: Event, now: float) -> Decision:
        """Return what follows from `event` at epoch time `now`. Raises OrchError for a request that is refused."""
        decision: Decision = getattr(self, f"_on_{type(event).__name__.lower()}")(event, now)
        return decision

    # Spawning.

    def _on_spawn(self, event: Spawn, now: float) -> Decision:
        if event.request_id is not None and event.request_id in self.nodes.requests:
            return Decision(value=self.nodes.requests[event.request_id])
        parent = self.nodes[event.caller] if event.caller is not None else None
        spec = event.spec
        depth = spec.depth if parent is None else parent.spec.depth + 1
        admission.check_spawn(self.config, parent, spec, depth)
        admission.check_width(self.config, self.nodes)
        check_starts(self.nodes.failed_starts, now)
        seq = len(self.nodes) + 1
        name = admission.name_for(self.nodes, spec.name, seq)
        spec = msgspec.structs.replace(
            spec, seq=seq, name=name, depth=depth, parent_id=event.caller if parent else spec.parent_id
        )
        entries: list[Entry] = [
            Spawned(at=now, id=spec.id, spec=spec, request_id=event.request_id, credentials=event.credentials),
            Launched(at=now, id=spec.id, incarnation=1),
        ]
        return Decision(entries, launch(spec.id, 1), spec.id)

    def _on_workerup(self, event: WorkerUp, now: float) -> Decision:
        node = self.nodes[event.id]
        if event.incarnation != node.incarnation or node.status != "starting" or not node.running:
            return Decision()
        ready, repaired = event.ready, event.ready.repaired
        if not ready.entries and node.last is not None:
            repaired = "its transcript is gone: it remembers nothing of what it was asked before"
        up = Up(
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

    def _on_launchfailed(self, event: LaunchFailed, now: float) -> Decision:
        return self._on_gone(Gone(event.id, event.incarnation, None, detail=event.error, late=event.late), now)

    def _on_bootoverdue(self, event: BootOverdue, _: float) -> Decision:
        node = self.nodes[event.id]
        if node.incarnation != event.incarnation or node.status != "starting" or not node.running:
            return Decision()
        return Decision([], [Signal(event.id, event.incarnation, "late")])

    # Asking.

    def _on_ask(self, event: Ask, now: float) -> Decision:
        node = self.nodes[event.id]
        if event.request_id is not None and event.request_id in node.requests:
            return Decision(value=node.requests[event.request_id])
        spec = node.spec
        asker = event.asker
        if asker is not None:
            admission.check_asker(self.nodes[asker])
        if asker == spec.id or (asker and event.waits and asker in self.nodes.waited_for_by(spec.id)):
            raise QueryCycleError(
                f"agent {spec.name!r} waits, directly or not, for the agent that asks it; "
                "answer your own query first, or report what you need in your reply"
            )
        admission.check_answers(node)
        if node.pending is not None:
            raise AgentBusyError(
                f"agent {spec.name!r} ({spec.id}) is busy with: {node.pending.head}; "
                f"wait for it, or collect its answer first"
            )
        asked = Asked(
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
        entries, instructions = self._rouse(node, now)
        return Decision([asked, *entries], instructions, event.query_id)

    def _on_rouse(self, event: Rouse, now: float) -> Decision:
        node = self.nodes[event.id]
        admission.check_answers(node)
        return Decision() if node.running else Decision(*self._rouse(node, now))

    def _rouse(self, node: Node, now: float) -> tuple[list[Entry], list[Instruction]]:
        """Let the agent have a process, if it has none."""
        entries, instructions = self._cool(node, now, answered=False) if node.is_holder else self._make_room(now)
        if not node.running:
            check_starts(self.nodes.failed_starts, now)
            incarnation = node.incarnation + 1
            entries.append(Launched(at=now, id=node.spec.id, incarnation=incarnation))
            instructions += launch(node.spec.id, incarnation)
        return entries, instructions

    def _make_room(self, now: float) -> tuple[list[Entry], list[Instruction]]:
        """Let there be room for one more process: at the limit the agent that idled longest is sent to sleep."""
        if len(self.nodes.alive) < self.config.max_concurrent:
            return [], []
        idle = [other for other in self.nodes.alive.values() if other.status == "idle" and not other.stopping]
        if not idle:
            raise admission.nobody_idle(self.config, self.nodes)
        return self._retire(min(idle, key=lambda other: other.last_activity), now)

    def _retire(self, node: Node, now: float) -> tuple[list[Entry], list[Instruction]]:
        id, incarnation = node.spec.id, node.incarnation
        return (
            [Stopping(at=now, id=id)],
            [Signal(id, incarnation, "stop"), Timer(STOP_SECONDS, StopOverdue(id, incarnation))],
        )

    def _on_finish(self, event: Finish, now: float) -> Decision:
        node = self.nodes[event.id]
        if node.pending is None or node.pending.query_id != event.query_id:
            return Decision()
        answered = Answered(
            at=now,
            id=event.id,
            query_id=event.query_id,
            reply=node.warned(event.reply),
            error=event.error,
            usage=event.reply.usage if event.reply else event.usage,
            context_tokens=event.context_tokens,
            taken_by=event.taken_by,
            transcript=event.transcript,
        )
        settled = settle(self.nodes, [answered])
        if not node.is_holder:
            return settled
        entries, instructions = self._cool(node, now, answered=True)
        return Decision([*settled.entries, *entries], [*settled.instructions, *instructions])

    # Agents without a process: those that have a transcript already, and holders.

    def _on_adopt(self, event: Adopt, now: float) -> Decision:
        return unstarted_agents.adopt(self.nodes, event, now)

    def _on_hold(self, event: Hold, now: float) -> Decision:
        return unstarted_agents.hold(self.nodes, event, now)

    def _on_archived(self, event: Archived, now: float) -> Decision:
        return unstarted_agents.archived(self.nodes, event, now)

    def _on_deleted(self, event: Deleted, now: float) -> Decision:
        return deletions.decide(self.nodes, event, now)

    def _on_discard(self, event: Discard, now: float) -> Decision:
        return deletions.discard(self.nodes, event, now)

    def _on_localise(self, event: Localise, now: float) -> Decision:
        return Decision([journaled.Localised(at=now, id=event.id, backend=event.backend)])

    def _on_choose(self, event: Choose, now: float) -> Decision:
        return Decision([journaled.Chosen(at=now, id=event.id, answers=event.answers)])

    def _on_catalogchanged(self, event: CatalogChanged, now: float) -> Decision:
        return Decision([journaled.CatalogChanged(at=now, id=event.id, digest=event.digest)])

    def _on_markagent(self, event: MarkAgent, now: float) -> Decision:
        marks = joined(self.nodes[event.id].spec.marks, event.marks)
        return Decision([journaled.Marked(at=now, id=event.id, marks=marks)])

    def _on_spend(self, event: Spend, now: float) -> Decision:
        return Decision([Spent(at=now, id=event.id, usage=event.usage)])

    def _cool(self, node: Node, now: float, *, answered: bool) -> tuple[list[Entry], list[Instruction]]:
        """Let as many holders have a process as may, `node` among them: those that answered last.

        One that answers keeps its process until then, however many there are.
        """
        others = [other for other in self.nodes.warm.values() if other is not node and not other.stopping]
        idle = sorted((other for other in others if other.status == "idle"), key=lambda other: other.last_activity)
        entries: list[Entry] = []
        instructions: list[Instruction] = []
        for other in [*idle, *([node] if answered else [])][: max(0, len(others) + 1 - self.warm_holders)]:
            more, acts = self._retire(other, now)
            entries += more
            instructions += acts
        return entries, instructions

    # Ending.

    def _on_rest(self, event: Rest, now: float) -> Decision:
        node = self.nodes[event.id]
        return Decision(*self._retire(node, now)) if node.status == "idle" and not node.stopping else Decision()

    def _on_gone(self, event: Gone, now: float) -> Decision:
        return lost(self.nodes, event, now, self.config.restarts)

    def _on_relaunch(self, event: Relaunch, now: float) -> Decision:
        return relaunch(self.nodes, event, now)

    def _on_stopoverdue(self, event: StopOverdue, _: float) -> Decision:
        node = self.nodes[event.id]
        if node.incarnation != event.incarnation or not node.stopping:
            return Decision()
        return Decision([], [Signal(event.id, event.incarnation, "kill")])

    def _on_turnoverdue(self, event: TurnOverdue, _: float) -> Decision:
        node = self.nodes[event.id]
        if node.incarnation != event.incarnation or node.pending is None or node.pending.query_id != event.query_id:
            return Decision()
        return Decision([], [Signal(event.id, event.incarnation, "late")])

    def _on_sweep(self, event: Sweep, now: float) -> Decision:
        seconds = self.config.timeout_minutes * 60
        entries: list[Entry] = []
        instructions: list[Instruction] = [Timer(min(60.0, seconds / 2), event)]
        for node in self.nodes.alive.values():
            if node.status == "idle" and not node.stopping and now - node.last_activity >= seconds:
                more, acts = self._retire(node, now)
                entries += more
                instructions += acts
        return Decision(entries, instructions)

    def _on_kill(self, event: Kill, now: float) -> Decision:
        doomed: dict[str, Node] = {}
        for id in event.ids:
            doomed |= {node.spec.id: node for node in self.nodes.subtree(id) if node.status != "killed"}
        answers: list[Answered] = []
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
                answers.append(Answered(at=now, id=id, query_id=query_id, error=error_info(gone), usage=used))
            if node.status == "starting":
                gone = AgentGoneError(f"agent {node.spec.name!r} ({id}) was killed by {event.by} as it started")
                instructions.append(Notify(f"up:{id}", None, error_info(gone)))
            killed.append(Killed(at=now, id=id, by=event.by))
            if node.running:
                instructions.append(Signal(id, node.incarnation, "kill"))
        settled = settle(self.nodes, answers)
        return Decision([*settled.entries, *killed], [*settled.instructions, *instructions], tuple(doomed))

    def _on_steer(self, event: Steer, now: float) -> Decision:
        return steering.steer(self.nodes, event, now)

    def _on_hear(self, event: Hear, now: float) -> Decision:
        return steering.hear(self.nodes, event, now)

    def _on_title(self, event: Title, now: float) -> Decision:
        new = event.title != self.nodes[event.id].title
        return Decision([journaled.Titled(at=now, id=event.id, title=event.title)] if new else [])

    def _on_unsay(self, event: Unsay, now: float) -> Decision:
        return steering.unsay(self.nodes, event, now)

    def _on_sethearing(self, event: SetHearing, now: float) -> Decision:
        return steering.set_hearing(self.nodes, event, now)

    def _on_cancel(self, event: Cancel, now: float) -> Decision:
        node = self.nodes[event.id]
        if node.pending is None or node.status != "busy":
            return Decision()
        if event.hard:
            cut = AgentDiedError(f"the turn of agent {node.spec.name!r} ({event.id}) was ended with its process")
            cut = cut.as_outcome("killed")
            query_id, error = node.pending.query_id, error_info(cut)
            answered = Answered(at=now, id=event.id, query_id=query_id, error=error, usage=event.usage, ended=True)
            settled = settle(self.nodes, [answered])
            # Who asks it meanwhile is answered by the next process, as when this one had been asked to leave.
            kill = Signal(event.id, node.incarnation, "kill")
            return Decision([*settled.entries, Stopping(at=now, id=event.id)], [*settled.instructions, kill])
        return Decision([], [Send(event.id, node.pending.query_id, "cancel", worker_messages.Cancel())])

    def _on_resume(self, event: Resume, now: float) -> Decision:
        node = self.nodes[event.id]
        if node.deleted:
            raise node.refusal()
        change = event.budget.limits()
        limit: list[Entry] = [Budgeted(at=now, id=event.id, **change)] if change else []
        if node.status not in ("killed", "failed"):
            return Decision(limit)
        if node.running:
            raise AgentBusyError(
                f"the process of agent {node.spec.name!r} ({event.id}) was killed and has not ended yet: try again soon"
            )
        holder = self.nodes.names.get(node.spec.name)
        if holder is not None and holder != event.id:
            raise SpawnError(f"name {node.spec.name!r} is now agent {holder}'s; kill that one first")
        return Decision([*limit, Resumed(at=now, id=event.id)])

    def _on_narrow(self, event: Narrow, now: float) -> Decision:
        return inherited_rights.narrow(self.nodes, event, now)

    def _on_approveplan(self, event: ApprovePlan, now: float) -> Decision:
        return Decision([journaled.PlanApproved(at=now, id=event.id)])

    def _on_beginplan(self, event: BeginPlan, now: float) -> Decision:
        return Decision([journaled.PlanBegun(at=now, id=event.id, plan=event.plan)])

    def _on_collect(self, event: Collect, now: float) -> Decision:
        return query_results.collect(self.nodes, event, now)

    def _on_recover(self, event: Recover, now: float) -> Decision:
        answers: list[Answered] = []
        ended: list[Entry] = []
        instructions: list[Instruction] = []
        for node in self.nodes.by_id.awake():
            id = node.spec.id
            status: Status = "killed" if node.status == "killed" else "cold"
            if node.pending is not None and node.pending.prompt and node.pending.query_id not in event.begun:
                # The query was accepted, and nobody waits who could ask it again.
                ended.append(Ended(at=now, id=id, incarnation=node.incarnation, status="starting"))
                instructions.append(Timer(0.0, Relaunch(id, node.incarnation)))
                continue
            if node.pending is not None:
                reply = event.replies.get(node.pending.query_id)
                lost = AgentDiedError(
                    f"agent {node.spec.name!r} ({id}) was cut short when its root ended; the next query revives it"
                )
                answers.append(
                    Answered(
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
                ended.append(Ended(at=now, id=id, incarnation=node.incarnation, status=status))
        # News waits for its reader's next turn: nobody starts to work because a root did.
        return Decision([Opened(at=now, pid=event.pid), *settle(self.nodes, answers).entries, *ended], instructions)
