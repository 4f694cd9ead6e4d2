"""What is said to agents while they work: what follows from it. Pure.

What was accepted is in the journal until the agent's process says that it is in the conversation, and each process that
comes up is told what is not. One that has it on record already says so, and does not hear it twice.
"""

from __future__ import annotations

from orch_protocol.wire import worker_messages

from ..agents.state import AgentRecord, TreeState
from ..journal.entries import QueueModesChanged, SteeringDelivered, SteeringQueued, SteeringRetracted
from ..journal.events import (
    ConfirmSteering,
    Decision,
    Instruction,
    QueueSteering,
    RetractionRequested,
    Send,
    SetQueueModes,
)
from . import admission

__all__ = ["confirm", "reminder", "retract", "set_queue_modes", "steer"]


def steer(nodes: TreeState, event: QueueSteering, now: float) -> Decision:
    """Let the agent hear something. Raises AgentGoneError, ArchiveDeletedError."""
    node = nodes[event.id]
    admission.check_answers(node)
    said = SteeringQueued(at=now, id=event.id, steer_id=event.steer_id, text=event.text, follow_up=event.follow_up)
    return Decision([said], [_steer_frame(said)] if node.status in ("idle", "busy") else [], event.steer_id)


def confirm(nodes: TreeState, event: ConfirmSteering, now: float) -> Decision:
    """Take note that something is in the conversation."""
    if event.steer_id not in nodes[event.id].unheard:
        return Decision()
    return Decision([SteeringDelivered(at=now, id=event.id, steer_id=event.steer_id)])


def retract(nodes: TreeState, event: RetractionRequested, now: float) -> Decision:
    """Take note that things are not going to be heard; return which of them had not been."""
    gone = tuple(id for id in event.steer_ids if id in nodes[event.id].unheard)
    return Decision([SteeringRetracted(at=now, id=event.id, steer_ids=gone)] if gone else [], [], gone)


def set_queue_modes(nodes: TreeState, event: SetQueueModes, now: float) -> Decision:
    """Let the agent hear so many things at once."""
    node = nodes[event.id]
    told = Send(event.id, "", "hearing", worker_messages.SetSteeringModes(event.steering, event.follow_up))
    entry = QueueModesChanged(at=now, id=event.id, steering=event.steering, follow_up=event.follow_up)
    return Decision([entry], [told] if node.status in ("idle", "busy") else [])


def reminder(node: AgentRecord) -> list[Instruction]:
    """Return what a process that has just come up is told: what nobody has heard yet, and how much of it at once."""
    spec = node.spec
    told: list[Instruction] = [_steer_frame(said) for said in node.unheard.values()]
    if spec.follow_up_mode is None:
        return told
    # It may have been described before that was set.
    return [Send(spec.id, "", "hearing", worker_messages.SetSteeringModes(spec.queue_mode, spec.follow_up_mode)), *told]


def _steer_frame(said: SteeringQueued) -> Send:
    return Send(said.id, said.steer_id, "steer", worker_messages.SteerTurn(said.text, said.follow_up))
