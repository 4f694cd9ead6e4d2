"""Decides what happens when an agent's process ends.

Either a new process repeats the agent's query, or the query fails.
"""

from __future__ import annotations

from orch_protocol.core.errors import error_info
from orch_protocol.services.agents.status import Status

from ..agents.state import AgentRecord, TreeState
from ..interface.events import BOOT_SECONDS, BootTimeout, ProcessExited, RestartWorker
from ..interface.instructions import Decision, Instruction, Launch, Notify, Timer
from ..interface.topics import ExitTopic, ReadyTopic
from ..journal.entries import Entry, QueryFinished, WorkerExited, WorkerLaunched
from .exit_reasons import describe_exit_code, exit_error
from .query_results import finish_queries
from .restart_backoff import JITTER, WINDOW, count_recent, restart_delay

__all__ = ["launch", "on_process_exit", "relaunch"]


def launch(id: str, incarnation: int) -> list[Instruction]:
    """Return the instructions that start a process. A timer checks that the process becomes ready in time."""
    return [Launch(id, incarnation), Timer(BOOT_SECONDS, BootTimeout(id, incarnation))]


def on_process_exit(agents: TreeState, event: ProcessExited, now: float, max_restarts: int) -> Decision:
    """Return the decision for the end of a process. `max_restarts` is the limit of restarts per minute."""
    agent, id, incarnation = agents[event.id], event.id, event.incarnation
    if agent.incarnation != incarnation or not agent.running:
        return Decision()
    exit_notice = Notify(ExitTopic(id, incarnation))
    if agent.status == "killed" or (agent.stopping and agent.pending is None):
        status: Status = "killed" if agent.status == "killed" else "cold"
        error = event.detail or None if agent.pending is not None else None
        return Decision(
            [WorkerExited(at=now, id=id, incarnation=incarnation, status=status, code=event.code, error=error)],
            [exit_notice],
        )
    if agent.stopping:
        # A query arrived while the process was stopping. The next process answers the query.
        exit_entry = WorkerExited(at=now, id=id, incarnation=incarnation, status="cold", code=event.code)
        launch_entry = WorkerLaunched(at=now, id=id, incarnation=incarnation + 1)
        return Decision([exit_entry, launch_entry], [exit_notice, *launch(id, incarnation + 1)])
    crashed = agent.status in ("starting", "busy") and event.recovered is None
    delay_seconds = restart_delay(agent.crashes, now, max_restarts) if crashed else None
    if delay_seconds is not None and _can_retry(agent, event):
        retry_entry = WorkerExited(
            at=now,
            id=id,
            incarnation=incarnation,
            status="starting",
            code=event.code,
            error=event.detail or None,
            crash=True,
        )
        return Decision(
            [retry_entry], [exit_notice, Timer(delay_seconds, RestartWorker(id, incarnation), spread=JITTER)]
        )
    return _give_up(agents, agent, event, now, crashed=crashed, failed=crashed and delay_seconds is None)


def relaunch(agents: TreeState, event: RestartWorker, now: float) -> Decision:
    """Return the decision at the end of a restart delay. If `event.refused` is set, no process can be started."""
    agent = agents[event.id]
    if agent.incarnation != event.incarnation or agent.running or agent.status != "starting":
        return Decision()
    if event.refused:
        return _give_up(
            agents, agent, ProcessExited(event.id, event.incarnation, None, detail=event.refused), now, failed=True
        )
    incarnation = event.incarnation + 1
    return Decision([WorkerLaunched(at=now, id=event.id, incarnation=incarnation)], launch(event.id, incarnation))


def _can_retry(agent: AgentRecord, event: ProcessExited) -> bool:
    """Return whether a new process can repeat the query.

    If the agent was busy, the process must not have begun the query. If the process was still starting, it must have
    been ended by a signal or for an unknown reason. No query is repeated after a process exceeded a limit of time or
    memory.
    """
    if event.timed_out or event.oom:
        return False
    return not event.begun if agent.status == "busy" else event.code is None or event.code < 0


def _give_up(
    agents: TreeState,
    agent: AgentRecord,
    event: ProcessExited,
    now: float,
    *,
    crashed: bool = False,
    failed: bool = False,
) -> Decision:
    """End the pending query and record the exit.

    If `failed` is True, the agent gets no new process until it is resumed.
    """
    id, code, detail = event.id, event.code, event.detail
    entries: list[Entry] = []
    instructions: list[Instruction] = []
    crash_count = count_recent(agent.crashes, now) + 1
    if failed and crash_count > 1:
        ending = f"{crash_count} processes of this agent ended within {WINDOW:g} s"
        detail = f"{detail or event.oom or describe_exit_code(code)}; {ending}"
    if agent.pending is not None:
        failure = None if event.recovered else exit_error(agent, event, detail, failed=failed)
        finished = QueryFinished(
            at=now,
            id=id,
            query_id=agent.pending.query_id,
            reply=event.recovered,
            error=error_info(failure) if failure else None,
            usage=event.recovered.usage if event.recovered else event.usage,
            context_tokens=agent.context_tokens,
            taken_by=event.taken_by,
        )
        decision = finish_queries(agents, [finished])
        entries += decision.entries
        instructions += decision.instructions
    never_ready = agent.status == "starting" and not agent.came_up
    status: Status = "failed" if (failed or never_ready) and not agent.is_holder else "died"
    entries.append(
        WorkerExited(
            at=now,
            id=id,
            incarnation=event.incarnation,
            status=status,
            code=code,
            error=detail or event.oom or None,
            crash=crashed,
        )
    )
    if agent.status == "starting":
        instructions.append(Notify(ReadyTopic(id), None, error_info(exit_error(agent, event, detail))))
    instructions.append(Notify(ExitTopic(id, event.incarnation)))
    return Decision(entries, instructions)
