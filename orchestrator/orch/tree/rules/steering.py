"""Decisions about steering messages. Pure functions.

The journal lists an accepted message as pending until the agent's process confirms that the conversation contains the
message. Each new process receives the pending messages. If the transcript already contains such a message, the process
confirms the message again and does not add the message twice.
"""

from __future__ import annotations

from orch_protocol.wire import worker_messages

from ..agents.state import AgentRecord, TreeState
from ..interface.events import ConfirmSteering, QueueSteering, RetractionRequested, SetQueueModes
from ..interface.instructions import Decision, Instruction, Send
from ..journal.entries import QueueModesChanged, SteeringDelivered, SteeringQueued, SteeringRetracted
from . import admission

__all__ = ["confirm", "initial_frames", "retract", "set_queue_modes", "steer"]


def steer(agents: TreeState, event: QueueSteering, now: float) -> Decision:
    """Queue a message for the agent. Raises AgentGoneError or ArchiveDeletedError."""
    agent = agents[event.id]
    admission.check_can_be_queried(agent)
    queued = SteeringQueued(at=now, id=event.id, steer_id=event.steer_id, text=event.text, follow_up=event.follow_up)
    return Decision([queued], [_steer_frame(queued)] if agent.status in ("idle", "busy") else [], event.steer_id)


def confirm(agents: TreeState, event: ConfirmSteering, now: float) -> Decision:
    """Record that the conversation contains a steering message."""
    if event.steer_id not in agents[event.id].unheard:
        return Decision()
    return Decision([SteeringDelivered(at=now, id=event.id, steer_id=event.steer_id)])


def retract(agents: TreeState, event: RetractionRequested, now: float) -> Decision:
    """Record that steering messages were retracted. Return the ids of the messages that were still pending."""
    retracted = tuple(id for id in event.steer_ids if id in agents[event.id].unheard)
    return Decision([SteeringRetracted(at=now, id=event.id, steer_ids=retracted)] if retracted else [], [], retracted)


def set_queue_modes(agents: TreeState, event: SetQueueModes, now: float) -> Decision:
    """Set the agent's delivery modes for steering messages and follow-ups."""
    agent = agents[event.id]
    instruction = Send(event.id, "", "hearing", worker_messages.SetSteeringModes(event.steering, event.follow_up))
    entry = QueueModesChanged(at=now, id=event.id, steering=event.steering, follow_up=event.follow_up)
    return Decision([entry], [instruction] if agent.status in ("idle", "busy") else [])


def initial_frames(agent: AgentRecord) -> list[Instruction]:
    """Return the frames for a new process, which contain the delivery modes and the pending messages."""
    spec = agent.spec
    instructions: list[Instruction] = [_steer_frame(queued) for queued in agent.unheard.values()]
    if spec.follow_up_mode is None:
        return instructions
    # The spec that the process got may be older than the change of the modes.
    return [
        Send(spec.id, "", "hearing", worker_messages.SetSteeringModes(spec.queue_mode, spec.follow_up_mode)),
        *instructions,
    ]


def _steer_frame(queued: SteeringQueued) -> Send:
    return Send(queued.id, queued.steer_id, "steer", worker_messages.SteerTurn(queued.text, queued.follow_up))
