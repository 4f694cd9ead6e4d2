"""Bodies of the frames between root and worker. The frame's `kind` names the type of its body.

Root to worker: `init ping query watch steer unsay hearing sum_up compact edit export prompt do cancel revoke_tools stop
root_reply limit happened`. Worker to root: `hello ready pong finished progress event so_far called steered unsaid
summed compacted edited exported prompted did root_call cancel`. `ack` goes both ways and has no body.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

from ..agent.spec import AgentSpec, QueueMode, ToolSpec
from ..core.errors import ErrorInfo
from ..core.messages import Image, Reply, Usage
from ..core.prompts import PromptResult
from ..core.taint import TaintLabel
from ..core.values import ExportResult, ExportValue
from ..hooks.stages import HookRow
from ..resources.slash_commands import UserAction, UserActionResult
from ..session.entries import TranscriptPosition
from ..session.tree import CompactRequest, CompactResult, EditResult, SessionEdit
from .tool_events import CallReport

__all__ = [
    "ANSWERS",
    "BODIES",
    "AddLabels",
    "AgentEvent",
    "BranchSummarized",
    "CancelCurrentTurn",
    "EmptyBody",
    "Hello",
    "Init",
    "Ping",
    "Progress",
    "Query",
    "RateLimited",
    "Ready",
    "RetractSteering",
    "RootCall",
    "RootReply",
    "SetSteeringModes",
    "SteerTurn",
    "SteeringDelivered",
    "SteeringRetractedReply",
    "StopWorker",
    "SummarizeBranch",
    "TurnEvent",
    "TurnFinished",
    "TurnSoFar",
    "WithdrawTools",
]


class EmptyBody(Struct, frozen=True, gc=False):
    """An empty body."""


class Hello(Struct, frozen=True, gc=False):
    """The first message of a worker. The root sends Init if token, version, incarnation, pid and uid all match."""

    token: bytes
    version: int
    pid: int


class Init(Struct, frozen=True, gc=False):
    """The agent of the worker. `rate_limited_models` names the models that are currently rate-limited. See RateLimited.

    `transcript` is the last acknowledged line of the agent's transcript, or None if this line is unknown.
    `orch_folders` are absolute paths of folders that belong to orch: its homes, the run, all sessions, and folders of
    sockets elsewhere.
    """

    spec: AgentSpec
    rate_limited_models: tuple[str, ...] = ()
    transcript: TranscriptPosition | None = None
    orch_folders: tuple[str, ...] = ()


class Ready(Struct, frozen=True, gc=False):
    """The worker has opened its transcript.

    `interrupted` is the query that was interrupted when a process died. None means no query. `transcript` is the last
    line of the transcript. `executor_tools` are the tools that the agent's executor lists. None means that the root
    knows the tools.
    """

    entries: int = 0
    interrupted: str | None = None
    context_tokens: int = 0
    context_limit: int = 0
    model: str = ""
    repaired: str = ""
    transcript: TranscriptPosition | None = None
    executor_tools: tuple[ToolSpec, ...] | None = None


class Ping(Struct, frozen=True, gc=False):
    """Check that the worker responds. The pong contains only the length of `payload`."""

    payload: bytes = b""


class Query(Struct, frozen=True, gc=False):
    """Run a turn. The frame's id is the query id. `seconds` is the time left before the deadline of the query.

    - `stream`: send a TurnEvent for each event. If False, the worker sends TurnEvents only after a `watch` frame with
      the same id, and first sends a TurnSoFar.
    - `budgeted`: the kinds of BudgetAmounts that have a limit.
    - `ended`: the user ended the previous turn together with the agent's process. `died`: how that process died, if the
      user did not end it.
    - `local`: the prompt may be sent to local models only. From then on, the same applies to the conversation.
    - `observed`: send a CallReport for each tool call.
    - `hooks`: hooks of the user's program, which run in the root.
    - `marks`: taint labels of the agents that have sent queries so far.
    - `images`: the images of the prompt; see `place_images`.
    """

    prompt: str
    seconds: float | None = None
    stream: bool = False
    budgeted: tuple[str, ...] = ()
    ended: bool = False
    died: str = ""
    local: bool = False
    observed: bool = False
    hooks: tuple[HookRow, ...] = ()
    marks: tuple[TaintLabel, ...] = ()
    images: tuple[Image, ...] = ()


class WithdrawTools(Struct, frozen=True, gc=False):
    """All tools that were revoked for the agent."""

    withdrawn: tuple[str, ...]


class SteerTurn(Struct, frozen=True, gc=False):
    """A message to a running agent. The frame's id is the id of the message.

    A steering message becomes a user message before the next model request. A follow-up becomes a user message when the
    agent would otherwise stop.
    """

    text: str
    follow_up: bool = False


class SteeringDelivered(Struct, frozen=True, gc=False):
    """The message that the frame's id names is now part of the conversation."""


class RetractSteering(Struct, frozen=True, gc=False):
    """Remove the messages `ids` from the queue."""

    ids: tuple[str, ...]


class SteeringRetractedReply(Struct, frozen=True, gc=False):
    """The messages that were removed: the reply to the RetractSteering with the same frame id."""

    ids: tuple[str, ...]


class SetSteeringModes(Struct, frozen=True, gc=False):
    """How many queued messages of each kind the agent takes at once, from now on."""

    steering: QueueMode
    follow_up: QueueMode


class SummarizeBranch(Struct, frozen=True, gc=False):
    """Summarize the branch that the conversation would leave by returning to the entry `to`.

    None means the beginning of the conversation.

    `budgeted` are the kinds of BudgetAmounts that have a limit.
    """

    to: str | None = None
    budgeted: tuple[str, ...] = ()


class BranchSummarized(Struct, frozen=True, gc=False, omit_defaults=True):
    """The summary in `text`, or "" if there is no branch to leave.

    `by_model` is True if a model wrote the summary. `usage` is the usage of this model.
    """

    text: str = ""
    by_model: bool = False
    usage: Usage = Usage()
    error: ErrorInfo | None = None


class TurnEvent(Struct, frozen=True, gc=False, omit_defaults=True):
    """An event of the turn that the frame's id names. Events may be lost.

    `n` is the number of the event, counted from 1.

    - "text": a piece of the response
    - "tool_call": the tool `name` is called; `text` contains the arguments as JSON
    - "tool_result": a tool returned `text`, which may be shortened
    - "message": a response is complete
    - "steered": the steering message `text` was delivered
    - "continued": the turn continues after its limit of responses; `text` is the message to the agent
    - "budget": the budget is nearly used up; `text` is the message to the agent
    - "retry": a request is retried; discard the text of the response so far
    - "hook": the hook `name` made a change or a decision, or failed (`is_error`)
    - "compacted": the conversation was shortened
    - "assess", "reflect": `name` assessed the prompt or reflected on the outcome; `text` is the result
    """

    n: int
    kind: Literal[
        "text",
        "tool_call",
        "tool_result",
        "message",
        "steered",
        "continued",
        "budget",
        "retry",
        "hook",
        "compacted",
        "assess",
        "reflect",
    ]
    text: str = ""
    name: str = ""
    step: int = 0
    is_error: bool = False


class TurnSoFar(Struct, frozen=True, gc=False):
    """The events of the query `query_id` so far, for a client that connects during the turn.

    The last event contains all text of the current response so far. The text pieces of complete responses are left out.
    `n` is the number of the last event. `lost` is the number of events before `events` that are no longer stored.
    """

    query_id: str
    events: tuple[TurnEvent, ...] = ()
    n: int = 0
    lost: int = 0
    kind: Literal["so_far"] = "so_far"


class TurnFinished(Struct, frozen=True, gc=False, omit_defaults=True):
    """A turn has ended and is recorded in the transcript. Exactly one of `reply` and `error` is set.

    `usage` is the usage of a failed turn. A reply contains its own usage. `transcript` is the last line of the
    transcript.
    """

    reply: Reply | None = None
    error: ErrorInfo | None = None
    usage: Usage = Usage()
    context_tokens: int = 0
    transcript: TranscriptPosition | None = None


class CancelCurrentTurn(Struct, frozen=True, gc=False):
    """End the current turn at the next safe point.

    The stop reason of the turn is `cancelled`, or `budget` if `exceeded_budget` is not empty. A worker that sends this
    frame no longer waits for the reply to the RootCall with the same frame id.
    """

    exceeded_budget: str = ""


class RateLimited(Struct, frozen=True, gc=False):
    """The model `lane` (`provider:model`) is rate-limited: the worker must ask the root before the next request."""

    lane: str


class AddLabels(Struct, frozen=True, gc=False):
    """Add the taint labels `marks` to the conversation: a command of the agent received content with these labels."""

    marks: tuple[TaintLabel, ...]


class StopWorker(Struct, frozen=True, gc=False):
    """Stop: start no new work, close the transcript, and exit with status 0."""


class Progress(Struct, frozen=True, gc=False):
    """The agent's current activity, for people. `phase` is `model`, `tool` or `idle`. `detail` is one line of text."""

    phase: str
    detail: str = ""
    step: int = 0


class RootCall(Struct, frozen=True, gc=False):
    """A service call of a worker. `payload` is the service's parameter struct, as msgpack."""

    service: str
    payload: msgspec.Raw


class RootReply(Struct, frozen=True, gc=False, omit_defaults=True):
    """The reply to the RootCall with the same frame id. Exactly one of `payload` and `error` is set."""

    payload: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: ErrorInfo | None = None


class AgentEvent(Struct, frozen=True, gc=False):
    """An event for the agent's hooks at `stage`. `event` is the event as msgpack."""

    stage: str
    event: msgspec.Raw


BODIES: Final[dict[str, type[Struct]]] = {
    "ack": EmptyBody,
    "hello": Hello,
    "init": Init,
    "ready": Ready,
    "ping": Ping,
    "pong": EmptyBody,
    "query": Query,
    "finished": TurnFinished,
    "cancel": CancelCurrentTurn,
    "revoke_tools": WithdrawTools,
    "happened": AgentEvent,
    "steer": SteerTurn,
    "steered": SteeringDelivered,
    "sum_up": SummarizeBranch,
    "summed": BranchSummarized,
    "unsay": RetractSteering,
    "unsaid": SteeringRetractedReply,
    "hearing": SetSteeringModes,
    "compact": CompactRequest,
    "compacted": CompactResult,
    "edit": SessionEdit,
    "edited": EditResult,
    "export": ExportValue,
    "exported": ExportResult,
    "prompt": EmptyBody,
    "prompted": PromptResult,
    "do": UserAction,
    "did": UserActionResult,
    "drop": EmptyBody,
    "event": TurnEvent,
    "so_far": TurnSoFar,
    "watch": EmptyBody,
    "called": CallReport,
    "stop": StopWorker,
    "limit": RateLimited,
    "taint": AddLabels,
    "progress": Progress,
    "root_call": RootCall,
    "root_reply": RootReply,
}

ANSWERS: Final = frozenset({"summed", "compacted", "edited", "exported", "prompted", "did"})
"""Kinds of frames that reply to a frame of the root with the same id.

The bodies of these frames may have an `error`.
"""
