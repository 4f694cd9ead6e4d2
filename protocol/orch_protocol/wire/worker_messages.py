"""Bodies of the frames between root and worker. The frame's `kind` names the type of its body.

Root to worker: `init ping query watch steer unsay hearing sum_up compact edit export prompt do cancel revoke_tools stop
root_reply limit happened`.
Worker to root: `hello ready pong finished progress event so_far called steered unsaid summed compacted edited exported
prompted did root_call cancel`.
`ack` goes both ways and has no body.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

from ..agent.spec import AgentSpec, QueueMode
from ..core.errors import ErrorInfo
from ..core.messages import Reply, Usage
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
    "SteeringHeard",
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
    """A worker's first word. The root answers Init only when token, version, incarnation, pid and uid all match."""

    token: bytes
    version: int
    pid: int


class Init(Struct, frozen=True, gc=False):
    """The worker's agent. `crowded` names models that refuse requests for being too many just now; see Limit.

    `transcript` is the last acknowledged line of its transcript, None when none is known. `orch_folders` are absolute
    paths of folders that belong to orch: its homes, the run, all sessions, and folders of sockets elsewhere.
    """

    spec: AgentSpec
    crowded: tuple[str, ...] = ()
    transcript: TranscriptPosition | None = None
    orch_folders: tuple[str, ...] = ()


class Ready(Struct, frozen=True, gc=False):
    """The worker has opened its transcript. `interrupted` names the query that a death cut short, if one was.

    `transcript` is the last line of the transcript.
    """

    entries: int = 0
    interrupted: str | None = None
    context_tokens: int = 0
    context_limit: int = 0
    model: str = ""
    repaired: str = ""
    transcript: TranscriptPosition | None = None


class Ping(Struct, frozen=True, gc=False):
    """Are you there? `payload` comes back in the pong only as its length."""

    payload: bytes = b""


class Query(Struct, frozen=True, gc=False):
    """Run a turn. The frame's id is the query id; `seconds` is what is left of its deadline.

    With `stream` the worker sends a TurnEvent for whatever happens in it; without, from a `watch` of that frame id on,
    which it answers with a TurnSoFar. `budgeted` are the kinds of Amounts that have a limit.
    `ended` says that the user ended the turn before it together with the agent's process, `died` how that process ended
    when it did so by itself.
    What is said in a `local` one is for models of this machine alone, and so is the conversation from then on. With
    `observed` the worker tells of each call, as Called. `hooks` are those of the root's program.
    `marks` are those of the agents that it was asked by so far.
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


class WithdrawTools(Struct, frozen=True, gc=False):
    """All of its tools that the agent may not use any more."""

    withdrawn: tuple[str, ...]


class SteerTurn(Struct, frozen=True, gc=False):
    """Something said to the agent while it works; the frame's id names it.

    It becomes a user message before the next model request; a follow-up does so when the agent would stop.
    """

    text: str
    follow_up: bool = False


class SteeringHeard(Struct, frozen=True, gc=False):
    """What the frame's id names is in the conversation now."""


class RetractSteering(Struct, frozen=True, gc=False):
    """What these ids name is not to be heard any more."""

    ids: tuple[str, ...]


class SteeringRetractedReply(Struct, frozen=True, gc=False):
    """Of what the Unsay of that frame id names this much had not been heard, and is not going to be."""

    ids: tuple[str, ...]


class SetSteeringModes(Struct, frozen=True, gc=False):
    """How many of the things said to the agent it hears at once from now on."""

    steering: QueueMode
    follow_up: QueueMode


class SummarizeBranch(Struct, frozen=True, gc=False):
    """Say what came of what the conversation would leave if it went back to the entry `to`, None: to its beginning.

    `budgeted` are the kinds of Amounts that have a limit.
    """

    to: str | None = None
    budgeted: tuple[str, ...] = ()


class BranchSummarized(Struct, frozen=True, gc=False, omit_defaults=True):
    """What is to be said of it, "" for nothing: it leaves nothing; whether a model wrote that, and what it took."""

    text: str = ""
    by_model: bool = False
    usage: Usage = Usage()
    error: ErrorInfo | None = None


class TurnEvent(Struct, frozen=True, gc=False, omit_defaults=True):
    """Something happened in the turn that the frame's id names; events may be lost, `n` counts them from 1.

    `text`: a piece of the response. `tool_call`: tool `name` is called with `text`, JSON. `tool_result`: it returned
    `text`, cut short; `is_error` if so. `message`: a response is complete. `steered`: `text` was said to the agent.
    `continued`: it has reached its limit of responses and goes on, which `text` told the agent.
    `budget`: it is nearly used up, which `text` tells the agent too. `retry`: a request failed and is made again, all
    text of the response so far is void. `hook`: hook `name` changed or decided something, or failed (`is_error`), as
    `text` says. `compacted`: the conversation is shorter now, as `text` says. `assess` and
    `reflect`: the prompt was assessed, the outcome reflected upon, by `name`, with what `text` says came of it.
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
    """What has happened so far in the turn of query `query_id`, for somebody who comes in the middle of it.

    The pieces of the response under way are one `text`, the last event; those of responses that are complete are left
    out. `n` is the number of the last event so far, `lost` how many before `events` are kept no more.
    """

    query_id: str
    events: tuple[TurnEvent, ...] = ()
    n: int = 0
    lost: int = 0
    kind: Literal["so_far"] = "so_far"


class TurnFinished(Struct, frozen=True, gc=False, omit_defaults=True):
    """A turn is over and durable in the transcript. Exactly one of `reply` and `error` is set.

    `usage` is what a failed turn used before it failed; a reply carries its own. `transcript` is the last line of the
    transcript.
    """

    reply: Reply | None = None
    error: ErrorInfo | None = None
    usage: Usage = Usage()
    context_tokens: int = 0
    transcript: TranscriptPosition | None = None


class CancelCurrentTurn(Struct, frozen=True, gc=False):
    """End the running turn at the next safe point; it finishes with stop reason `cancelled`, or `budget` when that is
    used up, as `short` tells.

    From a worker: it does not wait any more for the answer to the RootCall of that frame id.
    """

    short: str = ""


class RateLimited(Struct, frozen=True, gc=False):
    """The model `lane`, `provider:model`, refuses requests for being too many: ask the root before the next one."""

    lane: str


class StopWorker(Struct, frozen=True, gc=False):
    """Leave: finish nothing new, close the transcript, exit 0."""


class Progress(Struct, frozen=True, gc=False):
    """What the agent does just now, for people (`phase` is `model`, `tool` or `idle`; `detail` one line)."""

    phase: str
    detail: str = ""
    step: int = 0


class RootCall(Struct, frozen=True, gc=False):
    """Something a worker asks of the root. `payload` is the service's own parameter struct, as msgpack."""

    service: str
    payload: msgspec.Raw


class RootReply(Struct, frozen=True, gc=False, omit_defaults=True):
    """The answer to the RootCall with the same frame id. Exactly one of `payload` and `error` is set."""

    payload: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: ErrorInfo | None = None


class AgentEvent(Struct, frozen=True, gc=False):
    """Something happened that the agent's hooks at `stage` are to be told of: `event`, as msgpack."""

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
    "steered": SteeringHeard,
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
    "progress": Progress,
    "root_call": RootCall,
    "root_reply": RootReply,
}

ANSWERS: Final = frozenset({"summed", "compacted", "edited", "exported", "prompted", "did"})
"""Frames of workers that each answer one of the root's, named by the same id; their bodies have an `error` or not."""
