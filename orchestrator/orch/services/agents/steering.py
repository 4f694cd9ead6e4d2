"""Services that send messages to running agents, show and clear the queue of messages, and set the delivery mode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_protocol.core.errors import AmbiguousRefError, ConfigError, EntryNotFoundError
from orch_protocol.core.ids import new_id
from orch_protocol.core.text import scrub
from orch_protocol.services.agents.steering import (
    CLEAR_QUEUE,
    SET_QUEUE,
    SHOW_QUEUE,
    STEER,
    AgentSteered,
    ClearQueue,
    Queued,
    QueueShown,
    SetQueue,
    SteerAgent,
)
from orch_protocol.services.service import AgentRef
from orch_protocol.wire.worker_messages import RetractSteering
from orch_worker.session.session_reader import read_session

from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord, iso_time
from ...tree.interface import events
from ..checks.reach import find_agent
from ..dispatch.handlers import handles
from .processes import request_worker

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["clear_queue", "queue", "set_queue", "steer"]

RETRACT_TIMEOUT_SECONDS: Final = 10.0


@handles(STEER)
async def steer(root: Supervisor, caller: Caller, params: SteerAgent) -> AgentSteered:
    """Send a message to a running agent. Raises AgentError."""
    node = find_agent(root, caller, params.ref, "steer")
    if not params.text.strip():
        raise ConfigError(f"the message to agent {node.spec.name!r} is empty")
    if params.follow_up and node.pending is None:
        return AgentSteered(node.spec.id, query_id=root.ask(node, params.text, asker=caller.agent_id, stays=True))
    steer_id: str = root.handle(events.QueueSteering(node.spec.id, new_id(), scrub(params.text), params.follow_up))
    return AgentSteered(node.spec.id, steer_id)


@handles(SHOW_QUEUE)
async def queue(root: Supervisor, caller: Caller, params: AgentRef) -> QueueShown:
    """Return the messages that an agent has not received yet."""
    node = find_agent(root, caller, params.ref, "read the queue of")
    return _queue_shown(node, _waiting_messages(node))


@handles(SET_QUEUE)
async def set_queue(root: Supervisor, caller: Caller, params: SetQueue) -> QueueShown:
    """Set whether an agent takes one message or all waiting messages at a time. Return the agent's queue."""
    node = find_agent(root, caller, params.ref, "steer")
    current = _queue_shown(node, ())
    root.handle(
        events.SetQueueModes(node.spec.id, params.steering or current.steering, params.follow_up or current.follow_up)
    )
    return _queue_shown(node, _waiting_messages(node))


@handles(CLEAR_QUEUE)
async def clear_queue(root: Supervisor, caller: Caller, params: ClearQueue) -> QueueShown:
    """Remove messages that an agent has not received, and return the removed messages.

    Requested messages that are not in the result were already delivered. Raises EntryNotFoundError for an unknown id.
    Raises QueryTimeoutError if the process does not reply.
    """
    node = find_agent(root, caller, params.ref, "steer")
    waiting = _waiting_messages(node)
    selected = waiting if params.ids is None else [_find_message(node, waiting, id) for id in params.ids]
    removed_ids = set(await _remove_messages(root, node, tuple(dict.fromkeys(message.id for message in selected))))
    return _queue_shown(node, [message for message in waiting if message.id in removed_ids])


def _queue_shown(node: AgentRecord, waiting: Sequence[Queued]) -> QueueShown:
    spec = node.spec
    return QueueShown(spec.id, tuple(waiting), spec.queue_mode, spec.follow_up_mode or spec.queue_mode)


def _waiting_messages(node: AgentRecord) -> list[Queued]:
    """Return the waiting messages in the order of delivery: steering messages first."""
    messages = sorted(node.unheard.values(), key=lambda each: each.follow_up)
    return [Queued(each.steer_id, each.text, each.follow_up, iso_time(each.at)) for each in messages]


def _find_message(node: AgentRecord, waiting: Sequence[Queued], id: str) -> Queued:
    found = [message for message in waiting if id and message.id.startswith(id)]
    if len(found) != 1:
        names = ", ".join(message.id for message in waiting) or "nothing"
        problem = f"{len(found)} things wait" if found else "nothing waits"
        raise (AmbiguousRefError if found else EntryNotFoundError)(
            f"{problem} for agent {node.spec.name!r} under the id {id[:40]!r}: it was delivered or removed, or never "
            f"existed. Waiting: {names}"
        )
    return found[0]


async def _remove_messages(root: Supervisor, node: AgentRecord, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Remove the messages `ids` from the queue and return the ids of the removed messages.

    Messages that were already delivered cannot be removed. A running process knows which messages it received. If there
    is no process, the session file shows which messages were delivered, because a killed process may not have reported
    a delivery.
    """
    while ids:
        old_state = node.status, node.incarnation
        if node.running and node.status != "starting":
            reply = await request_worker(
                root, node, "unsay", RetractSteering(ids), new_id(), "unsaid", RETRACT_TIMEOUT_SECONDS
            )
            if reply is None:
                continue
            removable = reply.ids
        else:
            session = await root.disk.do(read_session, Path(node.spec.folder))
            if (node.status, node.incarnation) != old_state:
                continue  # a new process has just received the queue
            removable = tuple(id for id in ids if id not in session.delivered_steer_ids)
        removed: tuple[str, ...] = root.handle(events.RetractionRequested(node.spec.id, removable))
        return removed
    return ()
