"""What was said to an agent that works, and waits until it hears it: looked at, taken back, heard in other portions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.ids import new_id
from orch_protocol.services.requests import AgentRef
from orch_protocol.services.steering_queue import (
    CLEAR_QUEUE,
    SET_QUEUE,
    SHOW_QUEUE,
    ClearQueue,
    Queued,
    QueueShown,
    SetQueue,
)
from orch_protocol.wire.worker_messages import RetractSteering
from orch_worker.session.transcript import read_session

from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord, iso_time
from ...tree.journal import events
from ..checks.reach import find_agent
from ..dispatch.handlers import handles
from .processes import request_worker

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["clear_queue", "queue", "set_queue"]

UNSAY_SECONDS: Final = 10.0


@handles(SHOW_QUEUE)
async def queue(root: Supervisor, caller: Caller, params: AgentRef) -> QueueShown:
    """Return what an agent has not heard yet."""
    node = find_agent(root, caller, params.ref, "look at what is said to")
    return _shown(node, _waiting(node))


@handles(SET_QUEUE)
async def set_queue(root: Supervisor, caller: Caller, params: SetQueue) -> QueueShown:
    """Let an agent hear one thing at a time, or all that wait, from now on; return its queue."""
    node = find_agent(root, caller, params.ref, "steer")
    shown = _shown(node, ())
    root.handle(
        events.SetQueueModes(node.spec.id, params.steering or shown.steering, params.follow_up or shown.follow_up)
    )
    return _shown(node, _waiting(node))


@handles(CLEAR_QUEUE)
async def clear_queue(root: Supervisor, caller: Caller, params: ClearQueue) -> QueueShown:
    """Take back what an agent has not heard; return what that was: what is not among it was heard.

    Raises ConfigError for an id under which nothing waits, QueryTimeoutError when the process keeps silent.
    """
    node = find_agent(root, caller, params.ref, "steer")
    waiting = _waiting(node)
    wanted = waiting if params.ids is None else [_named(node, waiting, id) for id in params.ids]
    gone = set(await _taken(root, node, tuple(dict.fromkeys(said.id for said in wanted))))
    return _shown(node, [said for said in waiting if said.id in gone])


def _shown(node: AgentRecord, waiting: Sequence[Queued]) -> QueueShown:
    spec = node.spec
    return QueueShown(spec.id, tuple(waiting), spec.queue_mode, spec.follow_up_mode or spec.queue_mode)


def _waiting(node: AgentRecord) -> list[Queued]:
    """Return what waits, as it is going to be heard: steering first."""
    said = sorted(node.unheard.values(), key=lambda each: each.follow_up)
    return [Queued(each.steer_id, each.text, each.follow_up, iso_time(each.at)) for each in said]


def _named(node: AgentRecord, waiting: Sequence[Queued], id: str) -> Queued:
    found = [said for said in waiting if id and said.id.startswith(id)]
    if len(found) != 1:
        names = ", ".join(said.id for said in waiting) or "nothing"
        what = f"{len(found)} things wait" if found else "nothing waits"
        raise ConfigError(
            f"{what} for agent {node.spec.name!r} under the id {id[:40]!r}: it was delivered or removed, or never "
            f"existed. Waiting: {names}"
        )
    return found[0]


async def _taken(root: Supervisor, node: AgentRecord, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Let the agent not hear what `ids` name; return those that it had not heard, which is on record then.

    While it has a process, that knows. Before and after, its session file does: a process may have been killed before
    it could say what it had recorded.
    """
    while ids:
        was = node.status, node.incarnation
        if node.running and node.status != "starting":
            said = await request_worker(root, node, "unsay", RetractSteering(ids), new_id(), "unsaid", UNSAY_SECONDS)
            if said is None:
                continue
            gone = said.ids
        else:
            session = await root.disk.do(read_session, Path(node.spec.folder))
            if (node.status, node.incarnation) != was:
                continue  # its process has been told of it meanwhile
            gone = tuple(id for id in ids if id not in session.said)
        taken: tuple[str, ...] = root.handle(events.RetractionRequested(node.spec.id, gone))
        return taken
    return ()
