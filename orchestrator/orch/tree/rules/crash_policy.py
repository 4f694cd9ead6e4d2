"""What follows when an agent's process is gone: its query is over, or another process is asked the same."""

from __future__ import annotations

from orch_protocol.core.errors import error_info
from orch_protocol.services.requests import Status

from ..agents.state import AgentRecord, TreeState
from ..journal.entries import Entry, QueryFinished, WorkerExited, WorkerLaunched
from ..journal.events import (
    BOOT_SECONDS,
    BootTimeout,
    Decision,
    Instruction,
    Launch,
    Notify,
    ProcessExited,
    RestartWorker,
    Timer,
)
from .exit_reasons import describe_exit_code, exit_error
from .query_results import finish_queries
from .restart_backoff import JITTER, WINDOW, count_recent, restart_delay

__all__ = ["launch", "on_process_exit", "relaunch"]


def launch(id: str, incarnation: int) -> list[Instruction]:
    """Return what starts a process, and looks whether it came up in time."""
    return [Launch(id, incarnation), Timer(BOOT_SECONDS, BootTimeout(id, incarnation))]


def on_process_exit(nodes: TreeState, event: ProcessExited, now: float, most: int) -> Decision:
    """Return what follows from the end of a process, of which an agent may have `most` others a minute."""
    node, id, incarnation = nodes[event.id], event.id, event.incarnation
    if node.incarnation != incarnation or not node.running:
        return Decision()
    gone = Notify(f"gone:{id}:{incarnation}")
    if node.status == "killed" or (node.stopping and node.pending is None):
        status: Status = "killed" if node.status == "killed" else "cold"
        error = event.detail or None if node.pending is not None else None
        return Decision(
            [WorkerExited(at=now, id=id, incarnation=incarnation, status=status, code=event.code, error=error)], [gone]
        )
    if node.stopping:
        # A query arrived while the process was leaving: it is answered by the next one.
        ended = WorkerExited(at=now, id=id, incarnation=incarnation, status="cold", code=event.code)
        launched = WorkerLaunched(at=now, id=id, incarnation=incarnation + 1)
        return Decision([ended, launched], [gone, *launch(id, incarnation + 1)])
    crashed = node.status in ("starting", "busy") and event.recovered is None
    seconds = restart_delay(node.crashes, now, most) if crashed else None
    if seconds is not None and _can_retry(node, event):
        again = WorkerExited(
            at=now,
            id=id,
            incarnation=incarnation,
            status="starting",
            code=event.code,
            error=event.detail or None,
            crash=True,
        )
        return Decision([again], [gone, Timer(seconds, RestartWorker(id, incarnation), spread=JITTER)])
    return _give_up(nodes, node, event, now, crashed=crashed, failed=crashed and seconds is None)


def relaunch(nodes: TreeState, event: RestartWorker, now: float) -> Decision:
    """Return what follows when the pause before another process is over; it may not be had, as `refused` says."""
    node = nodes[event.id]
    if node.incarnation != event.incarnation or node.running or node.status != "starting":
        return Decision()
    if event.refused:
        return _give_up(
            nodes, node, ProcessExited(event.id, event.incarnation, None, detail=event.refused), now, failed=True
        )
    incarnation = event.incarnation + 1
    return Decision([WorkerLaunched(at=now, id=event.id, incarnation=incarnation)], launch(event.id, incarnation))


def _can_retry(node: AgentRecord, event: ProcessExited) -> bool:
    """Whether nothing was begun, and it may be chance that it was not: the process neither ended by itself nor took all
    the time, or memory, there is."""
    if event.late or event.oom:
        return False
    return not event.begun if node.status == "busy" else event.code is None or event.code < 0


def _give_up(
    nodes: TreeState,
    node: AgentRecord,
    event: ProcessExited,
    now: float,
    *,
    crashed: bool = False,
    failed: bool = False,
) -> Decision:
    """The pending query is over, and so is the process; with `failed` nobody starts another before a resume."""
    id, code, detail = event.id, event.code, event.detail
    entries: list[Entry] = []
    instructions: list[Instruction] = []
    number = count_recent(node.crashes, now) + 1
    if failed and number > 1:
        ended = f"this was the end of its process number {number} within {WINDOW:g} s"
        detail = f"{detail or event.oom or describe_exit_code(code)}; {ended}"
    if node.pending is not None:
        failure = None if event.recovered else exit_error(node, event, detail, failed=failed)
        answered = QueryFinished(
            at=now,
            id=id,
            query_id=node.pending.query_id,
            reply=event.recovered,
            error=error_info(failure) if failure else None,
            usage=event.recovered.usage if event.recovered else event.usage,
            context_tokens=node.context_tokens,
            taken_by=event.taken_by,
        )
        settled = finish_queries(nodes, [answered])
        entries += settled.entries
        instructions += settled.instructions
    never = node.status == "starting" and not node.came_up
    status: Status = "failed" if (failed or never) and not node.is_holder else "died"
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
    if node.status == "starting":
        instructions.append(Notify(f"up:{id}", None, error_info(exit_error(node, event, detail))))
    instructions.append(Notify(f"gone:{id}:{event.incarnation}"))
    return Decision(entries, instructions)
